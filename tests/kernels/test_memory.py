"""What the kernels read ends where a weight and its tokens end: the page behind them may not be read."""

import ctypes
import mmap

import pytest
import torch

from pyvllm.layers.kernel_library import TYPE_NUMBERS
from pyvllm.layers.kernels import Rows
from tests.kernels.test_quantised import random_blocks

ROWS, COLUMNS = 75, 512
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def at_the_end():
    """Gives copies of tensors whose last byte is the last that may be read."""
    maps = []

    def place(tensor):
        pages = -(-tensor.nbytes // mmap.PAGESIZE)
        memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        maps.append(memory)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        end = pages * mmap.PAGESIZE
        assert LIBC.mprotect(ctypes.c_void_p(whole.data_ptr() + end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        copy = whole[end - tensor.nbytes : end]
        copy.copy_(tensor.reshape(-1).view(torch.uint8))
        return copy.view(tensor.dtype).view(tensor.shape)

    return place


def weight_of(kind):
    if kind in ("F32", "F16", "BF16"):
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
        return torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(dtype)
    return random_blocks(kind, ROWS, COLUMNS)


@pytest.mark.parametrize("kind", TYPE_NUMBERS)
def test_nothing_behind_a_weight_or_its_tokens_is_read(kernels, at_the_end, kind):
    weight = weight_of(kind)
    linear = kernels.make_linear([Rows(weight, TYPE_NUMBERS[kind], ROWS)], COLUMNS)
    guarded = kernels.make_linear([Rows(at_the_end(weight), TYPE_NUMBERS[kind], ROWS)], COLUMNS)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        ids = torch.tensor([ROWS - 1])
        assert torch.equal(kernels.embed(guarded, ids, dtype), kernels.embed(linear, ids, dtype))
        for count in (1, 2, 3, 4, 9, 66):
            x = torch.randn(count, COLUMNS, generator=torch.Generator().manual_seed(count)).to(dtype)
            assert torch.equal(kernels.linear(guarded, at_the_end(x)), kernels.linear(linear, x))
