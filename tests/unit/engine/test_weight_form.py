"""What computes on the CPU device: chosen, or refused by name."""

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.engine import weight_form
from pyvllm.errors import InvalidArgument


def chosen(cpu_kernels, device="cpu"):
    return weight_form.choose_instruction_set(EngineConfig(model="m", cpu_kernels=cpu_kernels), device)


@pytest.fixture(params=[["avx512", "avx2"], ["avx2"], []], ids=str)
def usable(request, monkeypatch):
    """A processor with these instruction sets."""
    monkeypatch.setattr(weight_form, "usable_sets", lambda: request.param)
    return request.param


def test_auto_takes_the_fastest_and_torch_is_taken_anywhere(usable):
    assert chosen("auto") == (usable[0] if usable else None)
    assert chosen("torch") is None


@pytest.mark.parametrize("wanted", ["avx512", "avx2"])
def test_a_set_that_the_processor_lacks_is_refused_and_those_it_has_are_named(usable, wanted):
    if wanted in usable:
        assert chosen(wanted) == wanted
        return
    found = "this processor can use avx2" if usable else "not built or do not serve this processor"
    with pytest.raises(InvalidArgument, match=rf"cpu_kernels '{wanted}' cannot be used: .*{found}.*; use 'auto'"):
        chosen(wanted)


@pytest.mark.parametrize("wanted", ["avx512", "avx2", "torch"])
def test_kernels_of_the_cpu_are_refused_for_another_device(wanted):
    with pytest.raises(InvalidArgument, match=f"cpu_kernels '{wanted}' is for device cpu, and the device is cuda"):
        chosen(wanted, "cuda")
    assert chosen("auto", "cuda") is None
