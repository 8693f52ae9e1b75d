"""Projections against float64, and bit for bit against themselves in other batches and on other threads."""

import pytest
import torch

from pyvllm.layers.kernels import plain_rows

DTYPES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
SHAPES = [(1, 2), (16, 32), (50, 72), (49, 33), (257, 576), (33, 1537)]


def _normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make(kernels, parts, bias=None):
    return kernels.make_linear([plain_rows(part) for part in parts], parts[0].shape[1], bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_a_projection_is_the_product_in_float64_rounded(kernels, dtype, rows, columns):
    weight, bias = _normal(rows, columns, seed=1, dtype=dtype), _normal(rows, seed=2, dtype=dtype)
    linear = make(kernels, [weight], bias)
    for count in (1, 2, 3, 4, 7, 70):
        x = _normal(count, columns, seed=count, dtype=dtype)
        exact = x.double() @ weight.double().T + bias.double()
        # Rounding of the result, and of a sum of `columns` products in float32.
        scale = x.double().abs() @ weight.double().abs().T + bias.double().abs()
        error = (kernels.linear(linear, x).double() - exact).abs()
        assert (error <= DTYPES[dtype] * exact.abs() + 2e-7 * columns**0.5 * scale + 1e-7).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_is_the_same_in_every_batch_and_on_any_number_of_threads(kernels, one_thread, dtype):
    weight, x = _normal(209, 200, seed=1, dtype=dtype), _normal(131, 200, seed=2, dtype=dtype)
    whole = kernels.linear(make(kernels, [weight]), x)
    alone = make(one_thread, [weight])
    for first, last in ((0, 1), (1, 3), (3, 6), (6, 13), (13, 131)):
        assert torch.equal(one_thread.linear(alone, x[first:last]), whole[first:last])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rows_of_unlike_types_equal_rows_that_were_converted_before(kernels, dtype):
    parts = [_normal(rows, 64, seed=rows, dtype=kind) for rows, kind in zip((21, 5, 40), DTYPES, strict=True)]
    converted = torch.cat([part.to(dtype) for part in parts])
    for count in (1, 9):
        x = _normal(count, 64, seed=count, dtype=dtype)
        mixed = kernels.linear(make(kernels, parts), x)
        assert torch.equal(mixed, kernels.linear(make(kernels, [converted]), x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_embedding_gives_the_rows_asked_for(kernels, dtype):
    table = _normal(30, 20, dtype=dtype)
    ids = torch.tensor([29, 0, 7, 7])
    assert torch.equal(kernels.embed(make(kernels, [table]), ids, dtype), table[ids])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_norm_is_the_one_of_float64_rounded(kernels, dtype):
    x, weight = _normal(5, 83, dtype=dtype), _normal(83, seed=1, dtype=dtype)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5).double(), exact, rtol=DTYPES[dtype], atol=1e-6)
