"""How the next token is chosen: the fields of `vllm_sampling_params`, under vLLM's names."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite

from pyvllm.errors import InvalidArgument

#: Tokens that one request may favour, and tokens that may end its answer.
MAX_LOGIT_BIAS = 1024
MAX_STOP_TOKEN_IDS = 1024

#: Most likely tokens that a request may have listed, as vLLM's `max_logprobs` has it.
MAX_LOGPROBS = 20

_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """What an answer must look like; exactly one field is given."""

    json: str | None = None
    """A JSON schema, as text."""
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    """The answer is one of these strings."""
    grammar: str | None = None
    """A context-free grammar in GBNF (llama.cpp) or Lark notation."""
    json_object: bool = False
    """Any JSON object."""

    def __post_init__(self) -> None:
        given = [name for name in _STRUCTURED if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise InvalidArgument(f"exactly one structured output may be given, got {', '.join(given) or 'none'}")
        value = getattr(self, given[0])
        if given[0] == "choice":
            choices = tuple(value) if isinstance(value, list | tuple) else ()
            if not choices or not all(isinstance(text, str) and text for text in choices):
                raise InvalidArgument(f"structured output 'choice' must be a list of non-empty strings, got {value!r}")
            object.__setattr__(self, "choice", choices)
        elif given[0] != "json_object" and (not isinstance(value, str) or not value):
            raise InvalidArgument(f"structured output {given[0]!r} must be a non-empty string, got {value!r}")

    @property
    def given(self) -> tuple[str, str]:
        """The field that is given, and its value as text (a choice as a JSON array)."""
        name = next(name for name in _STRUCTURED if getattr(self, name) not in (None, False))
        value = getattr(self, name)
        return name, json.dumps(list(value)) if name == "choice" else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling. Raises InvalidArgument, naming field and value, for what is out of range."""

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
    """Subtracted from the logits of tokens that the answer has; in [-2, 2]."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time that the answer has the token; in [-2, 2]."""
    repetition_penalty: float = 1.0
    """Divides the positive logits, multiplies the negative ones, of tokens of prompt and answer; above 0, 1 is off."""
    min_tokens: int = 0
    """Tokens before an end-of-sequence token or a stop string may end the answer."""
    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""
    stop: tuple[str, ...] = field(default=())
    """Strings that end the text; they are not part of it."""
    stop_token_ids: tuple[int, ...] = field(default=())
    """Tokens that end the text, as the end-of-sequence token does, whatever `ignore_eos` says."""
    include_stop_str_in_output: bool = False
    """Whether what ended the text, a stop string or a token, stays part of it."""
    structured_outputs: StructuredOutputsParams | None = None
    """What the answer must look like."""
    logit_bias: Mapping[int, float] | None = None
    """Added to the logits of tokens, by id; from -100 to 100."""
    allowed_token_ids: tuple[int, ...] | None = None
    """The only tokens that may come; None allows all."""
    logprobs: int | None = None
    """Give the log probability of each new token and of this many of the most likely ones; None gives none."""

    @property
    def has_penalties(self) -> bool:
        """Whether what was said already is penalised."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raise InvalidArgument, naming the field, for a token id that a model does not have."""
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            for token_id in getattr(self, name) or ():
                if token_id >= vocab_size:
                    raise InvalidArgument(f"{name} has token id {token_id}, outside the vocabulary of {vocab_size}")

    def __post_init__(self) -> None:
        self._take_tokens()
        stop = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        object.__setattr__(self, "stop", stop)
        for name in ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
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
        if self.logprobs is not None:
            is_count = isinstance(self.logprobs, int) and not isinstance(self.logprobs, bool)
            rule = f"an integer from 0 to {MAX_LOGPROBS}"
            _require(is_count and 0 <= self.logprobs <= MAX_LOGPROBS, "logprobs", self.logprobs, rule)
        _require(all(isinstance(text, str) and text for text in stop), "stop", list(stop), "non-empty strings")
        for name in ("presence_penalty", "frequency_penalty"):
            _require(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "in [-2, 2]")
        _require(self.repetition_penalty > 0, "repetition_penalty", self.repetition_penalty, "above 0")
        _require(
            0 <= self.min_tokens <= self.max_tokens,
            "min_tokens",
            self.min_tokens,
            f"from 0 to max_tokens ({self.max_tokens})",
        )
        structured = self.structured_outputs
        if structured is not None and not isinstance(structured, StructuredOutputsParams):
            raise InvalidArgument(f"structured_outputs must be StructuredOutputsParams, got {structured!r}")
        if structured is not None and self.allowed_token_ids is not None:
            raise InvalidArgument("allowed_token_ids and structured_outputs both say what may come: give one of them")

    def _take_tokens(self) -> None:
        """Check and keep what is said about single tokens."""
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        rule = f"at most {MAX_STOP_TOKEN_IDS} token ids"
        _require(len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS, "stop_token_ids", len(self.stop_token_ids), rule)
        value = self.include_stop_str_in_output
        _require(isinstance(value, bool), "include_stop_str_in_output", value, "true or false")
        if self.allowed_token_ids is not None:
            allowed = _token_ids("allowed_token_ids", self.allowed_token_ids)
            _require(bool(allowed), "allowed_token_ids", [], "at least one token id")
            object.__setattr__(self, "allowed_token_ids", allowed)
        if self.logit_bias is not None:
            object.__setattr__(self, "logit_bias", _logit_bias(self.logit_bias))


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    listed = sorted(set(value)) if isinstance(value, list | tuple) and all(_is_token(item) for item in value) else None
    if listed is None:
        raise InvalidArgument(f"{name} must be a list of token ids, got {value!r:.80}")
    return tuple(listed)


def _logit_bias(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping) or len(value) > MAX_LOGIT_BIAS:
        raise InvalidArgument(f"logit_bias must map at most {MAX_LOGIT_BIAS} token ids to numbers, got {value!r:.80}")
    for token_id, bias in value.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not _is_token(token_id) or not is_number or not -100 <= bias <= 100:
            rule = "token ids to numbers in [-100, 100]"
            raise InvalidArgument(f"logit_bias must map {rule}, got {token_id!r:.80}: {bias!r:.80}")
    return {token_id: float(bias) for token_id, bias in value.items()}


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # an integer beyond any float
        return False


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise InvalidArgument(f"{name} must be {rule}; got {value!r}")
