"""`tokenizer_config.json` and `generation_config.json`: which tokens are special, begin a prompt, end an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyvllm.errors import FormatError

MAX_TOKEN_ID = 2**31 - 1
_NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_FLAGS = ("special", "lstrip", "rstrip", "single_word", "normalized")
_LISTS = ("additional_special_tokens", "extra_special_tokens")


@dataclass(frozen=True, slots=True)
class DeclaredToken:
    """One entry of `added_tokens_decoder`: a token that stays whole in a text."""

    content: str
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """What `tokenizer_config.json` says, under its own names; None where it says nothing."""

    bos_token: str | None = None
    eos_token: str | None = None
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    special_tokens: tuple[str, ...] = ()
    added_tokens: Mapping[int, DeclaredToken] = field(default_factory=dict)


def tokenizer_config(document: Mapping[str, object], name: str) -> TokenizerConfig:
    """Read the fields that act from a `tokenizer_config.json`; `name` is for messages.

    Raises FormatError, naming field and value, for a value of another type.
    Source: PreTrainedTokenizerBase of huggingface/transformers.
    """
    named = {key: _token(document.get(key), key, name) for key in _NAMED}
    listed = [content for key in _LISTS for content in _token_list(document.get(key), key, name)]
    return TokenizerConfig(
        bos_token=named["bos_token"],
        eos_token=named["eos_token"],
        add_bos_token=_flag(document.get("add_bos_token"), "add_bos_token", name),
        add_eos_token=_flag(document.get("add_eos_token"), "add_eos_token", name),
        special_tokens=tuple(dict.fromkeys(content for content in [*named.values(), *listed] if content)),
        added_tokens=_added_tokens(document.get("added_tokens_decoder"), name),
    )


def eos_token_ids(document: Mapping[str, object], name: str) -> frozenset[int]:
    """Return `eos_token_id` of a `generation_config.json` (or `config.json`): none, one or a list of ids."""
    value = document.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token_id in ids:
        if isinstance(token_id, bool) or not isinstance(token_id, int) or not 0 <= token_id <= MAX_TOKEN_ID:
            raise FormatError(f"{name}: eos_token_id must be token ids from 0 to {MAX_TOKEN_ID}, found {value!r}")
    return frozenset(ids)


def _token(value: object, key: str, name: str) -> str | None:
    content = value.get("content") if isinstance(value, dict) else value
    if content is None and not isinstance(value, dict):
        return None
    if not isinstance(content, str):
        raise FormatError(f"{name}: {key} must be a string or an object with a string 'content', found {value!r}")
    try:
        content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise FormatError(f"{name}: {key} must be valid Unicode, found {content!r}") from error
    return content


def _token_list(value: object, key: str, name: str) -> list[str]:
    items = [] if value is None else list(value.values()) if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise FormatError(f"{name}: {key} must be a list of tokens, found {value!r}")
    return [content for item in items if (content := _token(item, key, name)) is not None]


def _flag(value: object, key: str, name: str) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise FormatError(f"{name}: {key} must be true or false, found {value!r}")
    return value


def _added_tokens(value: object, name: str) -> dict[int, DeclaredToken]:
    entries = {} if value is None else value
    if not isinstance(entries, dict):
        raise FormatError(f"{name}: added_tokens_decoder must be an object, found {type(value).__name__}")
    tokens: dict[int, DeclaredToken] = {}
    for key, entry in entries.items():
        token_id = int(key) if key.isascii() and key.isdecimal() and len(key) <= 10 else -1
        if not 0 <= token_id <= MAX_TOKEN_ID or not isinstance(entry, dict):
            raise FormatError(f"{name}: added_tokens_decoder must map token ids to objects, found {key!r}: {entry!r}")
        tokens[token_id] = _declared(entry, f"added_tokens_decoder[{key}]", name)
    return tokens


def _declared(entry: Mapping[str, object], key: str, name: str) -> DeclaredToken:
    content = _token(entry, key, name)
    flags = {flag: _flag(entry.get(flag), f"{key}.{flag}", name) for flag in _FLAGS}
    given = {flag: value for flag, value in flags.items() if value is not None}
    return DeclaredToken(content or "", **{"special": False, **given})
