"""How the next token is chosen: the fields of `vllm_sampling_params`, under vLLM's names."""

from dataclasses import dataclass, field
from math import isfinite

from pyvllm.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling. A field that this version cannot serve is refused by name and value."""

    temperature: float = 1.0
    """Divides the logits; 0 or less is greedy."""
    top_p: float = 1.0
    """Keep the most probable tokens whose probabilities reach this sum; in (0, 1], 1 keeps all."""
    top_k: int = 0
    """Keep this many tokens; 0 or -1 keeps all."""
    min_p: float = 0.0
    """Drop tokens less probable than this fraction of the most probable one; in [0, 1]."""
    max_tokens: int = 16
    """New tokens at most; at least 1."""
    seed: int | None = None
    """Makes sampling repeatable; None draws a new seed."""
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""
    stop: tuple[str, ...] = field(default=())
    """Strings that end the text; they are not part of it."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
                raise InvalidArgument(f"{name} must be a finite number, got {value!r}")
        for name in ("top_k", "max_tokens", "min_tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidArgument(f"{name} must be an integer, got {value!r}")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        _require(self.top_k >= -1, "top_k", self.top_k, "0 or -1 (all tokens), or at least 1")
        _require(self.max_tokens >= 1, "max_tokens", self.max_tokens, "at least 1")
        _require(self.seed is None or 0 <= self.seed < 2**64, "seed", self.seed, "in [0, 2^64)")
        _require(all(isinstance(text, str) and text for text in stop), "stop", list(stop), "non-empty strings")
        for name, default in (("presence_penalty", 0), ("frequency_penalty", 0), ("repetition_penalty", 1)):
            _require(
                getattr(self, name) == default, name, getattr(self, name), f"{default}: penalties are not supported yet"
            )
        _require(self.min_tokens == 0, "min_tokens", self.min_tokens, "0: a minimum is not supported yet")


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise InvalidArgument(f"{name} must be {rule}; got {value!r}")
