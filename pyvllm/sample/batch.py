"""Choose the next token of every request of a step at once where that is possible."""

from collections.abc import Sequence
from math import isfinite

import torch

from pyvllm.errors import GenerationError
from pyvllm.sample.sampler import Sampler


def sample_batch(logits: torch.Tensor, samplers: Sequence[Sampler]) -> list[int | GenerationError]:
    """Choose a token for each row, or give the error of that row alone.

    logits: [N, V], any float dtype; samplers: one for each row. Plainly greedy rows are chosen in one operation.
    """
    best, ids = logits.max(dim=-1)
    chosen: list[int | GenerationError] = []
    for row, (sampler, highest, token_id) in enumerate(zip(samplers, best.tolist(), ids.tolist(), strict=True)):
        # A row with NaN has a NaN maximum: the sampler says what is wrong with it.
        if sampler.is_greedy and isfinite(highest):
            chosen.append(token_id)
            continue
        try:
            chosen.append(sampler.sample(logits[row]))
        except GenerationError as error:
            chosen.append(error)
    return chosen
