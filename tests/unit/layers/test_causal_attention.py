"""causal_attention equals attention by the book: a loop over queries and heads, in float64."""

import pytest
import torch

from pyvllm.layers.attention import causal_attention
from tests.checkpoint_weights import book_attention


def random_qkv(queries, keys, heads=6, kv_heads=2, head_dim=8):
    generator = torch.Generator().manual_seed(queries * 100 + keys)
    shapes = ((queries, heads, head_dim), (keys, kv_heads, head_dim), (keys, kv_heads, head_dim))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.parametrize("window", [None, 1, 4, 9, 100])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 12), (5, 12), (12, 12), (11, 12)])
def test_causal_attention_equals_the_book(queries, keys, window):
    q, k, v = random_qkv(queries, keys)
    out = causal_attention(q, k, v, keys - queries, window, 8**-0.5)
    torch.testing.assert_close(out, book_attention(q, k, v, keys - queries, window), rtol=1e-5, atol=1e-6)
    assert out.is_contiguous()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (9, 3)])
def test_causal_attention_equals_the_book_for_any_grouping_of_heads(heads, kv_heads):
    for queries in (1, 3, 7):
        q, k, v = random_qkv(queries, 7, heads, kv_heads)
        out = causal_attention(q, k, v, 7 - queries, None, 8**-0.5)
        torch.testing.assert_close(out, book_attention(q, k, v, 7 - queries, None), rtol=1e-5, atol=1e-6)


def test_causal_attention_takes_views_of_a_fused_projection():
    fused = torch.randn(5, 10, 8, generator=torch.Generator().manual_seed(0))
    q, k, v = fused[:, :6], fused[:, 6:8], fused[:, 8:]
    expected = book_attention(q, k, v, 0, None)
    torch.testing.assert_close(causal_attention(q, k, v, 0, None, 8**-0.5), expected, rtol=1e-5, atol=1e-6)


def test_the_scale_is_that_which_is_given():
    q, k, v = random_qkv(3, 3)
    doubled = causal_attention(2 * q, k, v, 0, None, 8**-0.5)
    torch.testing.assert_close(causal_attention(q, k, v, 0, None, 2 * 8**-0.5), doubled, rtol=1e-5, atol=1e-6)


def test_tokens_that_the_whole_step_no_longer_sees_are_not_read():
    q, k, v = random_qkv(4, 12)
    seen = causal_attention(q, k, v, 8, 3, 8**-0.5)
    v[:6] = torch.nan
    k[:6] = torch.nan
    assert torch.equal(causal_attention(q, k, v, 8, 3, 8**-0.5), seen)
