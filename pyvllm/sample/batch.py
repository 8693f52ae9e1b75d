"""Choose the next token of every request of a step at once where that is possible."""

from collections.abc import Sequence
from math import isfinite

import torch

from pyvllm.errors import GenerationError
from pyvllm.sample.adjust import LogitsAdjuster
from pyvllm.sample.sampler import Sampler


class RequestSampler:
    """How one request chooses: what changes its logits, if anything, and how a token is drawn from them."""

    def __init__(self, sampler: Sampler, adjuster: LogitsAdjuster | None, output_token_ids: list[int]) -> None:
        """Take the parts. output_token_ids: the answer so far, a list that its owner extends."""
        self._sampler = sampler
        self._adjuster = adjuster
        self._output_token_ids = output_token_ids

    @property
    def is_argmax(self) -> bool:
        """Whether the token with the highest logit is chosen, whatever the answer so far."""
        return self._adjuster is None and self._sampler.is_greedy

    @property
    def is_complete(self) -> bool:
        """Whether a structured output has ended with the last chosen token."""
        return self._adjuster is not None and self._adjuster.is_complete

    def choose(self, logits: torch.Tensor) -> int:
        """Choose from logits [V]. Raises GenerationError."""
        if self._adjuster is None:
            return self._sampler.sample(logits)
        token_id = self._sampler.sample(self._adjuster.adjust(logits, self._output_token_ids))
        self._adjuster.accept(token_id)
        return token_id


def choose_tokens(
    logits: torch.Tensor, highest: tuple[list[float], list[int]], samplers: Sequence[RequestSampler]
) -> list[int | GenerationError]:
    """Choose a token for each row, or give the error of that row alone.

    logits: [N, V], any float dtype; highest: the highest logit of each row, and its token; samplers: one for each row.
    """
    chosen: list[int | GenerationError] = []
    for row, (sampler, best, token_id) in enumerate(zip(samplers, *highest, strict=True)):
        # A row with NaN has a NaN maximum: the sampler says what is wrong with it.
        if sampler.is_argmax and isfinite(best):
            chosen.append(token_id)
            continue
        try:
            chosen.append(sampler.choose(logits[row]))
        except GenerationError as error:
            chosen.append(error)
    return chosen
