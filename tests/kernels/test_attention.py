"""Paged attention against a loop in float64, and bit for bit against itself in other batches, chunks and threads."""

import pytest
import torch

from pyvllm.config.model import ModelConfig
from pyvllm.worker.input_batch import InputBatch, Span
from pyvllm.worker.kv_cache import KernelAttention, KVCache
from tests.checkpoint_weights import book_attention

DTYPES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
BLOCK = 16


class Sequences:
    """Sequences of random heads, each with blocks in an order of its own, over a cache that starts as NaN."""

    def __init__(self, kernels, lengths, *, heads=4, kv_heads=2, head_dim=16, dtype=torch.float32):
        generator = torch.Generator().manual_seed(sum(lengths))
        self.kernels, self.dtype = kernels, dtype
        sizes = (heads, kv_heads, kv_heads)
        self.qkv = [[torch.randn(n, size, head_dim, generator=generator).to(dtype) for size in sizes] for n in lengths]
        counts = [-(-n // BLOCK) for n in lengths]
        order = torch.randperm(sum(counts), generator=generator).tolist()
        self.blocks = [[order.pop() for _ in range(count)] for count in counts]
        config = ModelConfig(
            architecture="",
            hidden_size=1,
            num_hidden_layers=2,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            intermediate_size=1,
            vocab_size=1,
            max_position_embeddings=1,
        )
        self.cache = KVCache(config, sum(counts), BLOCK, dtype, "cpu")
        self.cache.keys.fill_(torch.nan)
        self.cache.values.fill_(torch.nan)

    def attend(self, pieces, window=None):
        """Attend in one step from (sequence, first, last) pieces; one result for each."""
        spans, start = [], 0
        for number, first, last in pieces:
            spans.append(Span(start, start + last - first, first, self.blocks[number][: -(-last // BLOCK)]))
            start += last - first
        empty = torch.empty(start, dtype=torch.int64)
        context = KernelAttention(self.kernels, self.cache, InputBatch(empty, empty, tuple(spans), ()))
        rows = [torch.cat([self.qkv[n][i][first:last] for n, first, last in pieces]) for i in range(3)]
        return context.attend(1, *rows, window).split([last - first for _, first, last in pieces])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 2, 16), (9, 3, 64), (3, 1, 10), (2, 2, 128), (8, 1, 80)]
)
@pytest.mark.parametrize("window", [None, 1, 20, 100])
def test_attention_is_the_one_of_float64(kernels, dtype, heads, kv_heads, head_dim, window):
    lengths = (1, 17, 150)
    sequences = Sequences(kernels, lengths, heads=heads, kv_heads=kv_heads, head_dim=head_dim, dtype=dtype)
    for number, out in enumerate(sequences.attend([(n, 0, length) for n, length in enumerate(lengths)], window)):
        q, k, v = (x.double() for x in sequences.qkv[number])
        exact = book_attention(q, k, v, 0, window)
        torch.testing.assert_close(out.double(), exact, rtol=DTYPES[dtype], atol=DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("window", [None, 30])
def test_chunks_and_other_requests_change_no_bit(kernels, one_thread, dtype, window):
    lengths = (90, 41)
    whole = Sequences(one_thread, lengths, dtype=dtype).attend([(0, 0, 90)], window)[0]
    sequences = Sequences(kernels, lengths, dtype=dtype)
    parts = []
    for first, last in ((0, 7), (7, 8), (8, 64), (64, 89), (89, 90)):
        parts.append(sequences.attend([(1, 0, 41), (0, first, last)], window)[1])
    assert torch.equal(torch.cat(parts), whole)


def test_what_a_request_before_left_in_a_block_is_never_seen(kernels):
    sequences = Sequences(kernels, (33,), dtype=torch.bfloat16)
    clean = sequences.attend([(0, 0, 33)])[0]
    sequences.cache.keys.fill_(torch.inf)
    sequences.cache.values.fill_(torch.inf)
    assert torch.equal(sequences.attend([(0, 0, 33)])[0], clean)
