"""The oracles are worth something: each planted fault is seen by the numbers or by the race checker."""

import pytest

from pyvllm.errors import VllmError
from tests.fakecuda.faults import FAULTS, Faulty
from tests.fakecuda.machine import ORDERS
from tests.fakecuda_session.engines import loaded, on_cpu, prefetch, tokens_of

DOCUMENT = prefetch(1, 1, 2)


def seen(machine, device, model, fault, order) -> set[str]:
    """What shows a fault: `numbers`, `races`, or an `error`."""
    machine.set_order(order, seed=3)
    machine.forget()

    found = set()
    try:
        with loaded(device, model, DOCUMENT) as engine:
            engine._model.memory._cudart = fault(device.stream)
            machine.forget()
            if tokens_of(engine) != on_cpu(model):
                found.add("numbers")
    except VllmError:
        found.add("numbers")  # NaN, which the sampler refuses
    return found | ({"races"} if machine.races() else set())


@pytest.mark.parametrize("order", ORDERS)
def test_the_correct_calls_are_seen_by_neither(machine, device, models, order):
    assert seen(machine, device, models("LlamaForCausalLM"), Faulty, order) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_seen(machine, device, models, name):
    found = {order: seen(machine, device, models("LlamaForCausalLM"), FAULTS[name], order) for order in ORDERS}
    assert all(found.values()), f"{name} was not seen: {found}"


def test_neither_oracle_would_be_enough_alone(machine, device, models):
    model = models("LlamaForCausalLM")
    no_race = seen(machine, device, model, FAULTS["AnotherLayerIsCopied"], "eager")
    only_race = seen(machine, device, model, FAULTS["CopyDoesNotWait"], "lazy")
    assert no_race == {"numbers"}
    assert "races" in only_race
