"""What computes on the CPU device, where a test says so: every instruction set of the kernels that this machine has."""

import pytest

from pyvllm.layers.kernel_library import INSTRUCTION_SETS, usable_sets


@pytest.fixture(params=INSTRUCTION_SETS)
def cpu_kernels(request):
    """The setting `cpu_kernels` of an engine."""
    if request.param not in usable_sets():
        pytest.skip(f"the kernels are not built, or this processor lacks what they use of {request.param}")
    return request.param
