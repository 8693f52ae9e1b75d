"""The `tokenizer.ggml.*` keys of a GGUF file, each checked for type and range before anything uses it.

Key names and token types: the GGUF specification, docs/gguf.md of ggml-org/ggml, and llama.h's `llama_token_type`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pyvllm.errors import FormatError, ModelLoadError

PREFIX = "tokenizer.ggml."
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
MODELS = ("gpt2", "llama")
MAX_TOKENS = 2**22

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocab:
    """A vocabulary as a GGUF file holds it. `tokens[i]` is the token with id i."""

    model: str
    pre: str | None
    tokens: Sequence[str]
    token_types: list[int]
    scores: Sequence[float] | None
    merges: Sequence[str] | None
    bos_token_id: int | None
    eos_token_id: int | None
    unknown_token_id: int | None
    other_eos_token_ids: tuple[int, ...]
    """`eot_token_id` and `eom_token_id`: they end an answer too."""
    add_bos_token: bool | None
    add_eos_token: bool | None
    add_space_prefix: bool

    def of_types(self, *types: int) -> list[tuple[int, str]]:
        """Return (id, token) of every token of one of these types."""
        return [(i, self.tokens[i]) for i, kind in enumerate(self.token_types) if kind in types]


def read_vocab(metadata: Mapping[str, object]) -> GgufVocab:
    """Read and check a GGUF file's vocabulary.

    Raises ModelLoadError for a tokenizer that is absent or not supported, FormatError for a value of another type or
    range.
    """
    keys = _Keys(metadata)
    model = keys.one("model", str)
    if model is None:
        raise ModelLoadError(f"the GGUF file has no tokenizer: the key {PREFIX}model is missing")
    if model not in MODELS:
        raise ModelLoadError(f"{PREFIX}model {model!r} is not supported; supported: {', '.join(MODELS)}")
    tokens = _tokens(keys.many("tokens", str))
    size = len(tokens)
    types = keys.many("token_type", int, size)
    types = [NORMAL] * size if types is None else _checked_types(types)
    unknown, bos, eos = _default_ids(model, types)
    others = [keys.token_id(name, size) for name in ("eot_token_id", "eom_token_id")]
    return GgufVocab(
        model=model,
        pre=keys.one("pre", str),
        tokens=tokens,
        token_types=types,
        scores=_checked_scores(keys.many("scores", float, size)),
        merges=keys.many("merges", str),
        bos_token_id=keys.token_id("bos_token_id", size, bos),
        eos_token_id=keys.token_id("eos_token_id", size, eos),
        unknown_token_id=keys.token_id("unknown_token_id", size, unknown),
        other_eos_token_ids=tuple(token_id for token_id in others if token_id is not None),
        add_bos_token=keys.one("add_bos_token", bool),
        add_eos_token=keys.one("add_eos_token", bool),
        add_space_prefix=keys.one("add_space_prefix", bool) is not False,
    )


def _default_ids(model: str, types: Sequence[int]) -> list[int | None]:
    """Return SentencePiece's own ids of the unknown, bos and eos token, which hold where a key is absent."""
    return [i if model == "llama" and tuple(types[i : i + 1]) in ((UNKNOWN,), (CONTROL,)) else None for i in range(3)]


class _Keys:
    """Typed access to `tokenizer.ggml.*`; None for a key that is absent."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata

    def one(self, name: str, kind: type[T]) -> T | None:
        """Give a single value. Raises FormatError for one that is not exactly of that type."""
        value = self._metadata.get(PREFIX + name)
        if value is not None and not _is(value, kind):
            raise FormatError(f"{PREFIX}{name} must be {_TYPE_NAMES[kind]}, found {type(value).__name__} {value!r:.80}")
        return value  # type: ignore[return-value]

    def many(self, name: str, kind: type[T], size: int | None = None) -> Sequence[T] | None:
        """Give an array, as it is.

        size: how many elements it must have, when that is known. Raises FormatError for another length, for what is no
        array, and for an element that is not exactly of that type.
        """
        values = self._metadata.get(PREFIX + name)
        if values is None:
            return None
        if not isinstance(values, list | tuple):
            raise FormatError(f"{PREFIX}{name} must be an array, found {type(values).__name__} {values!r:.80}")
        for i, value in enumerate(values):
            if not _is(value, kind):
                found = f"{type(value).__name__} {value!r:.80} at index {i}"
                raise FormatError(f"{PREFIX}{name} must be an array of {_TYPE_NAMES[kind]} elements, found {found}")
        if size is not None and len(values) != size:
            raise FormatError(f"{PREFIX}{name} has {len(values)} elements for {size} tokens")
        return values

    def token_id(self, name: str, size: int, default: int | None = None) -> int | None:
        """Give a token id, or the default. Raises FormatError for one that is not from 0 to size - 1."""
        value = self.one(name, int)
        if value is None:
            return default
        if not 0 <= value < size:
            raise FormatError(f"{PREFIX}{name} is {value}, but the vocabulary has {size} tokens")
        return value


_TYPE_NAMES: dict[type, str] = {str: "string", int: "integer", float: "float", bool: "bool"}


def _is(value: object, kind: type) -> bool:
    return type(value) is kind


def _tokens(values: Sequence[str] | None) -> list[str]:
    if not values:
        raise FormatError(f"{PREFIX}tokens is missing or empty")
    if len(values) > MAX_TOKENS:
        raise FormatError(f"{PREFIX}tokens has {len(values)} elements; at most {MAX_TOKENS} are supported")
    # llama.cpp's name for an empty token: ids must stay one to one.
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(values)]
    if len(set(tokens)) != len(tokens):
        first: dict[str, int] = {}
        i, token = next((i, token) for i, token in enumerate(tokens) if first.setdefault(token, i) != i)
        raise FormatError(f"{PREFIX}tokens: {token!r} stands twice, at index {first[token]} and {i}")
    return tokens


def _checked_types(types: Sequence[int]) -> list[int]:
    for i, kind in enumerate(types):
        if not 0 <= kind <= BYTE:
            raise FormatError(f"{PREFIX}token_type must be from 0 to {BYTE}, found {kind} at index {i}")
    return list(types)


def _checked_scores(scores: Sequence[float] | None) -> Sequence[float] | None:
    for i, score in enumerate(scores or ()):
        if not math.isfinite(score):
            raise FormatError(f"{PREFIX}scores must be finite, found {score} at index {i}")
    return scores
