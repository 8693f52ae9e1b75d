"""Every quantised type gives the values of the gguf package, bit for bit."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from pyvllm.model_loader.gguf_dequant import DEQUANTISE
from pyvllm.model_loader.tensor_info import QUANTISED_BLOCKS

#: Bytes of each type's block that hold float16 numbers.
SCALES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


def ours(kind, blocks):
    out = torch.full((len(blocks), QUANTISED_BLOCKS[kind][0]), float("nan"))
    DEQUANTISE[kind](torch.from_numpy(blocks), out)
    return out.numpy()


def random_blocks(kind, count=2000):
    return np.random.default_rng(0).integers(0, 256, size=(count, QUANTISED_BLOCKS[kind][1]), dtype=np.uint8)


def test_every_quantised_type_has_a_function_and_the_block_of_the_reference():
    assert DEQUANTISE.keys() == QUANTISED_BLOCKS.keys()
    for kind, block in QUANTISED_BLOCKS.items():
        assert gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]] == block


@pytest.mark.parametrize("kind", QUANTISED_BLOCKS)
def test_finite_blocks_are_equal_bit_for_bit(kind):
    blocks = random_blocks(kind)
    for start in SCALES[kind]:
        blocks[:, start + 1] &= 0xBF  # clears the exponent's highest bit: the scale is below 2
    expected = gguf.dequantize(blocks, GGMLQuantizationType[kind])
    assert np.isfinite(expected).all()
    assert np.array_equal(ours(kind, blocks).view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("kind", QUANTISED_BLOCKS)
def test_blocks_of_any_bytes_are_equal(kind):
    """Scales may be infinite or not a number here; only the sign and payload of a NaN are left open."""
    blocks = random_blocks(kind)
    with np.errstate(all="ignore"):
        expected = gguf.dequantize(blocks, GGMLQuantizationType[kind])
    assert np.isnan(expected).any()
    assert np.array_equal(ours(kind, blocks), expected, equal_nan=True)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_quantised_numbers_come_back_near_themselves(kind):
    values = np.random.default_rng(1).normal(size=(64, 32)).astype(np.float32)
    error = ours(kind, gguf.quantize(values, GGMLQuantizationType[kind])) - values
    steps = {"Q4_0": 16, "Q4_1": 15, "Q5_0": 32, "Q5_1": 31, "Q8_0": 254}[kind]
    assert (abs(error).max(axis=1) <= 2.2 * abs(values).max(axis=1) / steps).all()
