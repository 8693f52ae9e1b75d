"""What `LLM.generate`, `LLM.chat` and `LLM.embed` return, under the attribute names of vLLM's `outputs.py`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """How likely the model held a token."""

    logprob: float
    """Natural logarithm of its probability, before temperature and everything else that sampling does."""
    rank: int
    """1 for the most likely token."""
    decoded_token: str
    """Its text; a part of a character is U+FFFD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionOutput:
    """One answer to one prompt."""

    index: int
    """Which of the prompt's answers this is; there is one, so 0."""
    text: str
    token_ids: tuple[int, ...]
    """The new tokens, without the prompt's."""
    finish_reason: str
    """`stop` (end of sequence or a stop string), `length` (max_tokens or the model's length) or `abort`."""
    logprobs: tuple[Mapping[int, Logprob], ...] | None = None
    """For each new token, by id: itself and the most likely ones, when `SamplingParams.logprobs` asked for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """One prompt and its answers."""

    request_id: str
    prompt: str | None
    """The prompt as text, or None where token ids were given."""
    prompt_token_ids: tuple[int, ...]
    outputs: Sequence[CompletionOutput]
    finished: bool = True
    """Whether the answers are complete; always true, since `generate` returns when they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    embedding: list[float]
    """As many numbers as the model's hidden size, of length 1 together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequestOutput:
    """One prompt and its vector."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    outputs: EmbeddingOutput
    finished: bool = True
