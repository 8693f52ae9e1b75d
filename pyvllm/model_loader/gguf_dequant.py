"""Block-quantised values of GGUF files back to float32: one function per type.

Each function takes `blocks`, uint8 [N, bytes of a block], and `out`, float32 [N, elements of a block], and fills `out`.
Values are equal, bit for bit, to the reference's: products and sums are rounded to float32 in the same order.
Source of the layouts and formulas: the block structs and `dequantize_row_*` of ggml (ggml-common.h, ggml-quants.c).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor


def _half(blocks: Tensor, start: int) -> Tensor:
    """Read the float16 at byte `start` of every block: float32 [N, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor, out: Tensor) -> None:
    """Write the low halves of packed bytes [N, G, B], then the high ones, into out [N, G, 2, B]."""
    out[:, :, 0].copy_(packed & 15)
    out[:, :, 1].copy_(packed >> 4)


def q4_0(blocks: Tensor, out: Tensor) -> None:
    """From d (f16), 16 bytes of nibbles: d * (q - 8)."""
    _nibbles(blocks[:, 2:18].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.sub_(8.0).mul_(_half(blocks, 0))


def q4_1(blocks: Tensor, out: Tensor) -> None:
    """From d, m (f16), 16 bytes of nibbles: d * q + m."""
    _nibbles(blocks[:, 4:20].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def _fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """Spread the 32 bits at byte `start`, lowest first, as 0 or 16: uint8 [N, 32]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (blocks[:, start : start + 4].unsqueeze(2) >> shifts) & 1
    return (bits << 4).flatten(1)


def q5_0(blocks: Tensor, out: Tensor) -> None:
    """From d (f16), 32 high bits, 16 bytes of nibbles: d * (q - 16)."""
    _nibbles(blocks[:, 6:22].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.add_(_fifth_bits(blocks, 2)).sub_(16.0).mul_(_half(blocks, 0))


def q5_1(blocks: Tensor, out: Tensor) -> None:
    """From d, m (f16), 32 high bits, 16 bytes of nibbles: d * q + m."""
    _nibbles(blocks[:, 8:24].unsqueeze(1), out.view(-1, 1, 2, 16))
    out.add_(_fifth_bits(blocks, 4)).mul_(_half(blocks, 0)).add_(_half(blocks, 2))


def q8_0(blocks: Tensor, out: Tensor) -> None:
    """From d (f16), 32 signed bytes: d * q."""
    out.copy_(blocks[:, 2:34].view(torch.int8))
    out.mul_(_half(blocks, 0))


def _scales_and_mins(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Unpack the eight 6-bit scales and minima at byte 4, times d and dmin: two of float32 [N, 8].

    Bytes 0-3 and 4-7 hold the first four scales and minima in their low 6 bits, and the two high bits of the last four;
    bytes 8-11 hold the low 4 bits of the last four scales and minima.
    """
    first, second, third = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 2) & 48)), dim=1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 2) & 48)), dim=1)
    return _half(blocks, 0) * scales, _half(blocks, 2) * minima


def q4_k(blocks: Tensor, out: Tensor) -> None:
    """From d, dmin (f16), 12 bytes of scales, 128 of nibbles: d * scale * q - dmin * min, for each 32 elements."""
    scales, minima = _scales_and_mins(blocks)
    _nibbles(blocks[:, 16:144].reshape(-1, 4, 32), out.view(-1, 4, 2, 32))
    out.view(-1, 8, 32).mul_(scales.unsqueeze(2)).sub_(minima.unsqueeze(2))


def q5_k(blocks: Tensor, out: Tensor) -> None:
    """As Q4_K, with 32 bytes of high bits before the nibbles; bit j of byte i belongs to element i of group j."""
    scales, minima = _scales_and_mins(blocks)
    _nibbles(blocks[:, 48:176].reshape(-1, 4, 32), out.view(-1, 4, 2, 32))
    shifts = torch.arange(8, dtype=torch.uint8).view(1, 8, 1)
    out.view(-1, 8, 32).add_(((blocks[:, 16:48].unsqueeze(1) >> shifts) & 1) << 4)
    out.view(-1, 8, 32).mul_(scales.unsqueeze(2)).sub_(minima.unsqueeze(2))


def q6_k(blocks: Tensor, out: Tensor) -> None:
    """128 bytes of low nibbles, 64 of high 2-bit parts, 16 signed scales, d (f16): d * scale * (q - 32).

    Each half of the block: 64 bytes of nibbles make 128 elements, and so do 32 bytes of 2-bit parts.
    """
    _nibbles(blocks[:, 0:128].reshape(-1, 2, 64), out.view(-1, 2, 2, 64))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8).view(1, 1, 4, 1)
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3
    out.view(-1, 2, 4, 32).add_(high << 4)
    scales = _half(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    out.sub_(32.0).view(-1, 16, 16).mul_(scales.unsqueeze(2))


#: The function of every quantised type that is read.
DEQUANTISE: Mapping[str, Callable[[Tensor, Tensor], None]] = {
    "Q4_0": q4_0,
    "Q4_1": q4_1,
    "Q5_0": q5_0,
    "Q5_1": q5_1,
    "Q8_0": q8_0,
    "Q4_K": q4_k,
    "Q5_K": q5_k,
    "Q6_K": q6_k,
}
