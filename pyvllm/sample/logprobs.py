"""Log probabilities of a chosen token and of those that were more or less likely, for requests that ask for them."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model held a token of an answer, and its most likely alternatives."""

    token_id: int
    logprob: float
    """Natural logarithm of its probability; -inf for a token that the model held impossible."""
    rank: int
    """1 for the most likely token."""
    top: tuple[tuple[int, float], ...]
    """The most likely tokens with their logarithms, the most likely first."""


def token_logprobs(logits: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Compute log probabilities from the model's own logits, before anything changes them.

    logits: [V], any float dtype, not changed. num_top: how many of the most likely tokens are wanted.
    Source: vLLM's `logprobs_mode` "raw_logprobs", its default.
    """
    values = logits.detach().to(torch.float32).log_softmax(dim=-1)
    chosen = values[token_id]
    best = values.topk(min(num_top, values.numel()))
    return TokenLogprobs(
        token_id,
        float(chosen),
        int((values > chosen).sum()) + 1,
        tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)),
    )
