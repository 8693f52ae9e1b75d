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
    slots: torch.Tensor
    """[S] int64: for every token of the sequence up to the last row, its slot in the cache."""


@dataclass(frozen=True, slots=True)
class InputBatch:
    """What a model computes in one step."""

    token_ids: torch.Tensor
    """[T] int64."""
    positions: torch.Tensor
    """[T] int64."""
    slot_mapping: torch.Tensor
    """[T] int64: slot = block id * block size + offset, where a token's key and value go."""
    spans: tuple[Span, ...]
    last_rows: tuple[int, ...]
    """Rows after which a next token is chosen, in the order of the step's requests that have reached their end."""


def make_batch(step: Sequence[Scheduled], block_size: int, device: str) -> InputBatch:
    """Lay a step out. Reads the requests' token ids and block tables; changes nothing."""
    token_ids: list[int] = []
    positions: list[int] = []
    spans, last_rows, slot_mapping = [], [], []
    offsets = torch.arange(block_size)
    for item in step:
        request, first = item.request, item.request.num_computed_tokens
        end = first + item.num_scheduled_tokens
        start = len(token_ids)
        token_ids += request.token_ids(first, end)
        positions += range(first, end)
        blocks = torch.tensor(request.block_ids[: -(-end // block_size)], dtype=torch.int64)
        slots = (blocks[:, None] * block_size + offsets).view(-1)[:end]
        slot_mapping.append(slots[first:])
        spans.append(Span(start, len(token_ids), first, slots.to(device)))
        if item.is_last_chunk:
            last_rows.append(len(token_ids) - 1)
    return InputBatch(
        torch.tensor(token_ids, dtype=torch.int64, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device),
        torch.cat(slot_mapping).to(device),
        tuple(spans),
        tuple(last_rows),
    )
