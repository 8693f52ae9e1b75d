"""Choose the next token from the logits of one position."""

import os

import torch

from pyvllm.errors import GenerationError
from pyvllm.sampling_params import SamplingParams

# Below this a float32 quotient of two logits can overflow into NaN; the choice is greedy long before.
_MIN_TEMPERATURE = 1e-30


class Sampler:
    """One request's sampling: its parameters and its own random numbers.

    Two samplers with the same parameters and seed draw the same tokens from the same logits, whatever else runs.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._generator = torch.Generator(device="cpu")
        seed = int.from_bytes(os.urandom(8), "little") if params.seed is None else params.seed
        # torch's CPU generator (mt19937) uses the low 32 bits of a seed; mixed, every bit of ours counts.
        self._generator.manual_seed(_mixed(seed) & 0xFFFF_FFFF)

    @property
    def is_greedy(self) -> bool:
        """Whether the next token is the one with the highest logit."""
        return self._params.temperature <= 0

    def sample(self, logits: torch.Tensor) -> int:
        """Return the id of the next token.

        logits: [V], any float dtype, any device; not changed. A token with logit -inf is never drawn.
        Raises GenerationError when a logit is NaN or +inf, or when all are -inf.
        """
        scores = _checked(logits.detach().to(torch.float32))
        if self.is_greedy:
            return int(scores.argmax())
        probabilities = kept_logits(scores, self._params).softmax(dim=-1)
        # The exponential race: argmax of p / Exp(1) has the distribution p, without a cumulative sum and its rounding.
        noise = torch.empty(probabilities.shape).exponential_(generator=self._generator)
        return int((probabilities / noise.to(probabilities.device)).argmax())


def kept_logits(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """Return the logits divided by the temperature, with -inf where a token may not be drawn.

    logits: [V] float32, not changed. Order: temperature, min_p, top_k, top_p, each acting on what the one before left.
    Source: vLLM's sampler (`vllm/v1/sample/sampler.py`, steps b to d of `Sampler.sample`).
    """
    logits = (logits - logits.max()) / max(params.temperature, _MIN_TEMPERATURE)
    if params.min_p > 0:
        logits = _min_p(logits, params.min_p)
    if 0 < params.top_k < logits.numel():
        logits = _top_k(logits, params.top_k)
    if params.top_p < 1:
        logits = _top_p(logits, params.top_p)
    return logits


def _mixed(seed: int) -> int:
    """Return 64 bits, each of which depends on every bit of the seed.

    Source: the output function of SplitMix64, Steele, Lea and Flood 2014, figure 16 (Stafford's variant 13).
    """
    seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EB % 2**64
    return seed ^ (seed >> 31)


def _checked(logits: torch.Tensor) -> torch.Tensor:
    if logits.dim() != 1 or not logits.numel():
        raise GenerationError(f"the sampler needs the logits of one position, got shape {list(logits.shape)}")
    if bool(torch.isnan(logits).any()):
        raise GenerationError("the model's logits hold NaN: a weight is damaged, or dtype overflows; try dtype float32")
    highest = float(logits.max())
    if highest in (float("inf"), float("-inf")):
        raise GenerationError(f"the model's highest logit is {highest}: the dtype overflows; try dtype float32")
    return logits


def _min_p(logits: torch.Tensor, min_p: float) -> torch.Tensor:
    """Drop what is less probable than `min_p` times the most probable token. Source: vLLM's MinPLogitsProcessor."""
    probabilities = logits.softmax(dim=-1)
    return logits.masked_fill(probabilities < min_p * probabilities.max(), float("-inf"))


def _top_k(logits: torch.Tensor, k: int) -> torch.Tensor:
    """Drop what is below the k-th highest logit; its equals stay.

    Source: `apply_top_k_only` of vLLM's topk_topp_sampler.
    """
    return logits.masked_fill(logits < logits.topk(k).values[-1], float("-inf"))


def _top_p(logits: torch.Tensor, p: float) -> torch.Tensor:
    """Drop the least probable tokens whose probabilities sum to at most 1 - p; the most probable one always stays.

    Source: `apply_top_k_top_p_pytorch` of vLLM's topk_topp_sampler.
    """
    ascending, order = logits.sort()
    dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - torch.tensor(p, dtype=torch.float32)
    dropped[-1] = False
    return logits.masked_fill(torch.empty_like(dropped).scatter_(0, order, dropped), float("-inf"))
