"""The CPU kernels, where a test needs them: an engine then loads those of the same instruction set."""

from functools import partial

import pytest

from pyvllm.engine import loading
from tests.kernels.conftest import kernels as every_instruction_set

__all__ = ["every_instruction_set", "kernels"]


@pytest.fixture
def kernels(every_instruction_set, monkeypatch):
    """Kernels as `every_instruction_set` gives them."""
    chosen = every_instruction_set.instruction_set
    monkeypatch.setattr(loading, "load_kernels", partial(loading.load_kernels, instruction_set=chosen))
    return every_instruction_set
