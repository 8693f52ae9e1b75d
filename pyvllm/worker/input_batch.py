"""The tensors of one step: the tokens of all its requests, one after the other, and where their cache lies."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pyvllm.core.scheduler import Scheduled


@dataclass(frozen=True, slots=True)
class Span:
    """One request's tokens in a step."""

    start: int
    """First row of the step."""
    end: int
    first_position: int
    """Position of the first row's token in its sequence; what is before it is in the cache."""
    block_ids: Sequence[int]
    """Cache blocks of the sequence up to the last row; its token p is in block p // block size."""


@dataclass(frozen=True, slots=True)
class InputBatch:
    """What a model computes in one step."""

    token_ids: torch.Tensor
    """[T] int64."""
    positions: torch.Tensor
    """[T] int64."""
    spans: tuple[Span, ...]
    last_rows: tuple[int, ...]
    """Rows after which a next token is chosen, in the order of the step's requests that have reached their end."""


def make_batch(step: Sequence[Scheduled], block_size: int, device: str) -> InputBatch:
    """Lay a step out. Reads the requests' token ids and block tables; changes nothing."""
    token_ids: list[int] = []
    positions: list[int] = []
    spans, last_rows = [], []
    for item in step:
        request, first = item.request, item.request.num_computed_tokens
        end = first + item.num_scheduled_tokens
        start = len(token_ids)
        token_ids += request.token_ids(first, end)
        positions += range(first, end)
        spans.append(Span(start, len(token_ids), first, request.block_ids[: -(-end // block_size)]))
        if item.is_last_chunk:
            last_rows.append(len(token_ids) - 1)
    return InputBatch(
        torch.tensor(token_ids, dtype=torch.int64, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device),
        tuple(spans),
        tuple(last_rows),
    )
