"""What is the same on every instruction set, and what shows that the one that was asked for computes."""

import pytest
import torch

from pyvllm.layers.kernel_library import INSTRUCTION_SETS, open_library, supported_sets
from pyvllm.layers.kernels import load_kernels, plain_rows

#: Halfway between two numbers of bfloat16 below and above, of float16 likewise; greatest numbers, and none.
BITS = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F801000, 0x3F803000, 0x477FEFFF, 0x477FF000, 0x7F7F8000, 0x7F7F7FFF]
EVERY_BIT = [*BITS, 0, 0x7F800000, 0x7FFFFFFF, 0x7F800001]


def test_the_fastest_set_of_the_processor_is_taken_where_none_is_asked_for(kernels):
    ffi, library = open_library()
    assert load_kernels(1).instruction_set == supported_sets(library)[0]
    assert kernels.instruction_set in supported_sets(library)
    assert not library.vk_is_supported(0)
    assert library.vk_pool_create(1, 0) == ffi.NULL


def test_the_set_that_was_asked_for_computes(kernels):
    """Sixteen sums beside each other bring the large numbers together before the one; eight lose it in between."""
    x = torch.zeros(1, 17)
    x[0, [0, 8, 16]] = torch.tensor([2.0**24, 1, -(2.0**24)])
    linear = kernels.make_linear([plain_rows(torch.ones(1, 17))], 17)
    assert kernels.linear(linear, x).item() == {"avx512": 1, "avx2": 0}[kernels.instruction_set]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_numbers_are_rounded_as_torch_rounds_them(kernels, dtype):
    bits = torch.tensor([*EVERY_BIT, *(word | 1 << 31 for word in EVERY_BIT)], dtype=torch.int64)
    numbers = bits.to(torch.int32).view(torch.float32).view(1, -1)
    found = kernels.embed(kernels.make_linear([plain_rows(numbers)], numbers.shape[1]), torch.tensor([0]), dtype)
    wanted = numbers.to(dtype)
    assert torch.equal(found.isnan(), wanted.isnan())
    found, wanted = (x.masked_fill(wanted.isnan(), 0) for x in (found, wanted))
    assert torch.equal(found.view(torch.int16), wanted.view(torch.int16))


def test_no_other_set_is_loaded_than_those_that_are_named():
    assert load_kernels(1, "sse2") is None
    assert "sse2" not in INSTRUCTION_SETS
