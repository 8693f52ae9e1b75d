"""Quantised weights as they are stored: bit for bit what the loader's expansion gives, and so are their products."""

import pytest
import torch

from pyvllm.layers.kernel_library import TYPE_NUMBERS
from pyvllm.layers.kernels import Rows, plain_rows
from pyvllm.model_loader.gguf_dequant import DEQUANTISE
from pyvllm.model_loader.tensor_info import QUANTISED_BLOCKS

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
#: Where a block's float16 numbers are, in bytes.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


def random_blocks(kind, rows, columns, seed=0):
    """Blocks of random bits whose scales are ordinary numbers: [rows, bytes of a row]."""
    elements, nbytes = QUANTISED_BLOCKS[kind]
    generator = torch.Generator().manual_seed(seed)
    count = rows * columns // elements
    blocks = torch.randint(0, 256, (count, nbytes), generator=generator, dtype=torch.uint8)
    for start in HALVES.get(kind, (0,)):
        scales = torch.randn(count, 1, generator=generator).mul_(0.02).half()
        blocks[:, start : start + 2] = scales.view(torch.uint8)
    return blocks.view(rows, -1)


def expanded(kind, blocks, columns, dtype):
    """What the loader makes of them."""
    elements, nbytes = QUANTISED_BLOCKS[kind]
    values = torch.empty(blocks.numel() // nbytes, elements)
    DEQUANTISE[kind](blocks.view(-1, nbytes), values)
    return values.view(-1, columns).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", QUANTISED_BLOCKS)
def test_stored_rows_are_expanded_bit_for_bit_as_a_load_expands_them(kernels, kind, dtype):
    blocks = random_blocks(kind, 9, 768)
    table = kernels.make_linear([Rows(blocks, TYPE_NUMBERS[kind], 9)], 768)
    found = kernels.embed(table, torch.arange(9), dtype)
    wanted = expanded(kind, blocks, 768, dtype)
    assert found.isfinite().all()
    assert torch.equal(found.view(torch.uint8), wanted.view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", QUANTISED_BLOCKS)
def test_products_with_stored_rows_equal_products_with_expanded_ones(kernels, one_thread, kind, dtype):
    # Several tasks for each thread: what one expands beside its products is multiplied in the next.
    rows = 437
    blocks, bias = random_blocks(kind, rows, 512), torch.arange(rows).to(dtype)
    stored = kernels.make_linear([Rows(blocks, TYPE_NUMBERS[kind], rows)], 512, bias)
    plain = one_thread.make_linear([plain_rows(expanded(kind, blocks, 512, dtype))], 512, bias)
    for count in (1, 2, 3, 4, 9, 17, 66, 130):
        x = torch.randn(count, 512, generator=torch.Generator().manual_seed(count)).to(dtype)
        assert torch.equal(kernels.linear(stored, x), one_thread.linear(plain, x))


def test_parts_of_unlike_types_equal_their_expansion(kernels):
    kinds, sizes = ("Q4_K", "Q8_0", "Q6_K"), (213, 5, 340)
    blocks = [random_blocks(kind, rows, 256, rows) for kind, rows in zip(kinds, sizes, strict=True)]
    parts = [Rows(part, TYPE_NUMBERS[kind], len(part)) for kind, part in zip(kinds, blocks, strict=True)]
    whole = torch.cat([expanded(kind, part, 256, torch.bfloat16) for kind, part in zip(kinds, blocks, strict=True)])
    for count in (1, 3, 8, 70):
        x = torch.randn(count, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
        found = kernels.linear(kernels.make_linear(parts, 256), x)
        assert torch.equal(found, kernels.linear(kernels.make_linear([plain_rows(whole)], 256), x))


def test_blocks_that_changed_in_place_are_expanded_anew(kernels):
    """As those of a prefetch slot do from layer to layer."""
    rows, number = 437, TYPE_NUMBERS["Q4_1"]
    slot = random_blocks("Q4_1", rows, 512)
    stored = kernels.make_linear([Rows(slot, number, rows)], 512)
    x = torch.randn(8, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    for seed in range(1, 4):
        slot.copy_(random_blocks("Q4_1", rows, 512, seed))
        fresh = kernels.make_linear([Rows(slot.clone(), number, rows)], 512)
        assert torch.equal(kernels.linear(stored, x), kernels.linear(fresh, x))


def test_a_projection_without_memory_to_expand_in_says_so(kernels):
    endless = kernels.make_linear([Rows(torch.zeros(34, dtype=torch.uint8), TYPE_NUMBERS["Q8_0"], 1)], 2**45)
    with pytest.raises(MemoryError, match="could not get memory for this step"):
        kernels.linear(endless, torch.zeros(1, 32))
