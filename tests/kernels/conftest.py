"""The kernels under test, or the reason why they are not."""

import pytest

from pyvllm.layers.kernels import load_kernels


@pytest.fixture(scope="session")
def kernels():
    """Kernels of three threads: more than this machine may have cores, so that the order of tasks varies."""
    found = load_kernels(3)
    if found is None:
        pytest.skip("this processor has none of the instruction sets that the kernels are written for")
    return found


@pytest.fixture(scope="session")
def one_thread(kernels):
    """The same, computing alone."""
    return load_kernels(1)
