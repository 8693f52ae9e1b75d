"""The kernels under test on every instruction set that this processor has, or the reason why they are not."""

import pytest

from pyvllm.layers.kernel_library import INSTRUCTION_SETS
from pyvllm.layers.kernels import load_kernels


@pytest.fixture(scope="session", params=INSTRUCTION_SETS)
def kernels(request):
    """Kernels of three threads: more than this machine may have cores, so that the order of tasks varies."""
    found = load_kernels(3, request.param)
    if found is None:
        pytest.skip(f"the kernels are not built, or this processor lacks what they use of {request.param}")
    return found


@pytest.fixture(scope="session")
def one_thread(kernels):
    """The same, computing alone."""
    return load_kernels(1, kernels.instruction_set)
