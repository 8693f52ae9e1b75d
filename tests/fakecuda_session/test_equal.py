"""On the imagined device, offload changes where weights live and never a token, whatever the order of execution."""

import pytest
import torch

from pyvllm.errors import InvalidArgument, LoaderDefect
from pyvllm.memory.cuda_memory import CudaMemory
from pyvllm.offloader.base import Place
from pyvllm.offloader.uva import UVAOffloader
from tests.fakecuda.machine import ORDERS
from tests.fakecuda_session.engines import GIB, GREEDY, loaded, logits_of, on_cpu, prefetch, run, uva
from tests.tiny_models import ARCHITECTURES

DOCUMENTS = {
    "resident": None,
    "uva-part": uva(10**5),
    "uva-all": uva(GIB),
    "prefetch": prefetch(2, 1, 1),
    "prefetch-two-slots": prefetch(4, 3, 2),
    "prefetch-some": prefetch(1, 1, 3, ["mlp", "block_sparse_moe"]),
}


#: Every architecture under what moves most, and two of them under everything.
CASES = [
    pytest.param(architecture, document, id=f"{architecture}-{name}")
    for architecture in ARCHITECTURES
    for name, document in DOCUMENTS.items()
    if architecture in ("LlamaForCausalLM", "Qwen3MoeForCausalLM") or name in ("uva-all", "prefetch-two-slots")
]


@pytest.mark.parametrize(("architecture", "document"), CASES)
def test_every_architecture_says_what_it_says_on_the_cpu_in_every_order(
    machine, device, models, architecture, document
):
    model = models(architecture)
    expected = on_cpu(model)
    for order in ORDERS:
        machine.set_order(order, seed=7)
        tokens, report = run(device, model, document)
        assert tokens == expected, order
        assert machine.races() == "", order
        assert report["measured"]["host_bytes"] == report["planned"]["host_bytes"]
        assert report["measured"]["streamed_bytes"] == report["planned"]["streamed_bytes"]
        assert (report["planned"]["host_bytes"] + report["planned"]["streamed_bytes"] > 0) == (document is not None)
    assert machine.counters()["pageable_copies"] == 0
    assert {name: machine.held()[name] for name in ("regions", "events")} == {"regions": 0, "events": 0}


@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("document", [uva(10**5), uva(GIB), prefetch(1, 1, 3)])
def test_bfloat16_logits_are_bit_equal_to_the_resident_run(machine, device, models, architecture, document):
    model = models(architecture)
    resident = logits_of(device, model, None, "bfloat16")
    offloaded = logits_of(device, model, document, "bfloat16")
    assert all(torch.equal(a, b) for a, b in zip(resident, offloaded, strict=True))
    assert not any(torch.isnan(one).any() for one in resident)
    assert machine.races() == ""


@pytest.mark.parametrize("document", [None, uva(GIB), prefetch(1, 1, 3)])
@pytest.mark.parametrize("order", ORDERS)
def test_requests_in_one_step_say_what_each_says_alone(machine, device, models, document, order):
    """Twelve rows and more in a step, and one prompt in several chunks."""
    machine.set_order(order, seed=11)
    prompts = [f"{number}: {'word ' * number}" for number in (1, 3, 5, 19)]
    with loaded(device, models("Qwen3MoeForCausalLM"), document) as engine:
        alone = [engine.generate(prompt, GREEDY).token_ids for prompt in prompts]
        items = [engine.submit(prompt, GREEDY) for prompt in prompts]
        assert all(item.wait(60) for item in items)
        assert [item.request.output_token_ids for item in items] == alone
    assert machine.races() == ""


@pytest.mark.parametrize("document", [None, uva(10**5), prefetch(2, 1, 1)])
def test_no_code_of_ours_reads_device_memory_on_the_cpu(machine, device, models, document):
    """Under guard such a read ends the process."""
    machine.set_memory(guarded=True)
    model = models("LlamaForCausalLM")
    assert run(device, model, document)[0] == on_cpu(model)


@pytest.mark.parametrize("document", [uva(GIB), prefetch(2, 1, 1)])
def test_host_memory_with_another_device_address_is_read_by_that_address(machine, device, models, document):
    machine.set_memory(aliased=True)
    model = models("MixtralForCausalLM")
    assert run(device, model, document)[0] == on_cpu(model)


# What follows breaks the product on purpose: a suite that stays green then would prove nothing.


def test_an_offloader_that_does_nothing_is_seen(machine, device, models, monkeypatch):
    monkeypatch.setattr(UVAOffloader, "consider", lambda self, spec: Place.DEVICE)
    with pytest.raises(InvalidArgument, match="would free nothing"):
        run(device, models("LlamaForCausalLM"), uva(10**5))


def test_a_memory_that_leaves_host_weights_on_the_device_is_seen(machine, device, models):
    class OnDevice(CudaMemory):
        def device_view(self, host):
            return self.allocate("device", {"a": host.nbytes})["a"]

    with pytest.raises(LoaderDefect, match="planned host, found device"):
        run(device, models("LlamaForCausalLM"), uva(10**5), memory_class=OnDevice)


def test_half_a_budget_is_seen(machine, device, models, monkeypatch):
    init = UVAOffloader.__init__
    monkeypatch.setattr(UVAOffloader, "__init__", lambda self, budget, params=(): init(self, budget // 2, params))
    report = run(device, models("LlamaForCausalLM"), uva(10**5))[1]
    assert report["measured"]["host_bytes"] < report["asked"]["host_bytes"]
    assert any("all weights it may take are" in text for text in report["warnings"])
