"""A model's tokenizer: text to token ids and back, and the ids that end an answer.

Made from a Hugging Face directory or from a GGUF file's metadata, over the `tokenizers` library.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import tokenizers
from tokenizers import AddedToken

from pyvllm import logger
from pyvllm.errors import FormatError, GenerationError, InvalidArgument, ModelLoadError, VllmError
from pyvllm.tokenizer.decoding import Detokenizer, decode_rule
from pyvllm.tokenizer.files import MAX_TOKENIZER_BYTES, read_file, read_json_object
from pyvllm.tokenizer.gguf_backend import build_backend
from pyvllm.tokenizer.gguf_vocab import read_vocab
from pyvllm.tokenizer.special_tokens import DeclaredToken, TokenizerConfig, eos_token_ids, tokenizer_config

T = TypeVar("T")


class Tokenizer:
    """Encode prompts and decode answers. Any thread may use it; it does not change once it is made."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        eos_token_ids: frozenset[int],
        bos: tuple[int, bool] | None = None,
        eos: tuple[int, bool] | None = None,
    ) -> None:
        """bos, eos: the id and whether a prompt begins (ends) with it; None leaves it to the post-processor."""
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.eos_token_ids = eos_token_ids
        self._ends = _ends(backend, bos, eos)
        decoder = backend.decoder
        self._rule = decode_rule(None if decoder is None else decoder.__getstate__())
        self._special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self._pieces: dict[int, bytes | None] = {}
        self.vocab_size = backend.get_vocab_size(with_added_tokens=True)
        self.num_ids = max(backend.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Return the ids of `text`, with the special tokens that the model's prompts begin or end with.

        add_special_tokens: false for a text that has them already, as chat templates write them. A special token that
        stands in the text is one id. Raises InvalidArgument for text that is not valid Unicode,
        GenerationError where the tokenizer itself fails.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidArgument(f"the prompt is not valid Unicode text: {error}") from error
        call = partial(self._backend.encode, text, add_special_tokens=add_special_tokens)
        ids: list[int] = _guarded(call, GenerationError, "the tokenizer fails on this prompt").ids
        return self._ends.applied(ids) if add_special_tokens else ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; bytes that are no UTF-8 become U+FFFD, ids of no token are left out."""
        detokenizer = self.detokenizer(continuation=False, skip_special_tokens=skip_special_tokens)
        return "".join([*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()])

    def detokenizer(self, continuation: bool = True, skip_special_tokens: bool = True) -> Detokenizer:
        """Return a decoder for tokens that come one by one; see Detokenizer."""
        return Detokenizer(self, continuation, skip_special_tokens)

    def piece(self, token_id: int, first: bool = False, skip_special_tokens: bool = True) -> bytes | None:
        """Return the bytes that a token adds to a text; None for an id of no token, or a special one if skipped."""
        if skip_special_tokens and token_id in self._special_ids:
            return None
        if first:
            return self._piece(token_id, first=True)
        if token_id not in self._pieces:
            self._pieces[token_id] = self._piece(token_id, first=False)
        return self._pieces[token_id]

    @property
    def strip(self) -> tuple[str, int]:
        """A character and how many of it the decoder takes off the start of a text."""
        return self._rule.strip

    def _piece(self, token_id: int, first: bool) -> bytes | None:
        token = self._backend.id_to_token(token_id) if 0 <= token_id < self.num_ids else None
        return None if token is None else self._rule.piece(token, first)


def load_tokenizer(directory: str, tokenizer_config_path: str | None = None) -> Tokenizer:
    """Read the tokenizer of a Hugging Face directory.

    tokenizer_config_path: a `tokenizer_config.json` to use instead of the directory's own.
    Raises ModelLoadError for a missing file, FormatError for a bad one; the text names the file.
    Source: AutoTokenizer of huggingface/transformers; eos ids as vLLM takes them from generation_config.json.
    """
    backend = _read_backend(directory)
    config = _directory_config(directory, tokenizer_config_path)
    more_eos = _generation_eos(directory)
    return _guarded(partial(_tokenizer, backend, config, more_eos), FormatError, "tokenizer.json")


def tokenizer_from_gguf(metadata: Mapping[str, object], tokenizer_config_path: str | None = None) -> Tokenizer:
    """Build the tokenizer that a GGUF file's metadata describes.

    tokenizer_config_path: a `tokenizer_config.json` whose bos, eos and add_bos_token replace the file's.
    Raises ModelLoadError for an absent or unsupported tokenizer, FormatError for a value that breaks a rule; both name
    the key.
    """
    vocab = read_vocab(metadata)
    built = _guarded(partial(build_backend, vocab), FormatError, "tokenizer.ggml")
    named = TokenizerConfig() if tokenizer_config_path is None else _config_file(tokenizer_config_path)
    own_ids = {vocab.eos_token_id, *vocab.other_eos_token_ids} if named.eos_token is None else set()
    config = TokenizerConfig(
        bos_token=named.bos_token or _token_at(vocab.tokens, vocab.bos_token_id),
        eos_token=named.eos_token or _token_at(vocab.tokens, vocab.eos_token_id),
        add_bos_token=_first_given(named.add_bos_token, vocab.add_bos_token, built.add_bos),
        add_eos_token=_first_given(named.add_eos_token, vocab.add_eos_token, False),
        special_tokens=named.special_tokens,
        added_tokens=named.added_tokens,
    )
    more_eos = frozenset(i for i in own_ids if i is not None)
    return _guarded(partial(_tokenizer, built.tokenizer, config, more_eos), FormatError, "tokenizer.ggml")


def _first_given(*values: bool | None) -> bool | None:
    return next((value for value in values if value is not None), None)


def _token_at(tokens: object, token_id: int | None) -> str | None:
    return None if token_id is None else tokens[token_id]  # type: ignore[index]


def _read_backend(directory: str) -> tokenizers.Tokenizer:
    path = os.path.join(directory, "tokenizer.json")
    if not os.path.exists(path):
        found = "tokenizer.model" if os.path.exists(os.path.join(directory, "tokenizer.model")) else None
        advice = f"found {found}, which is not supported: convert it to tokenizer.json" if found else "it is needed"
        raise ModelLoadError(f"{directory}: no tokenizer.json; {advice}")
    data = read_file(path, MAX_TOKENIZER_BYTES)
    return _guarded(partial(tokenizers.Tokenizer.from_buffer, data), FormatError, "tokenizer.json")


def _guarded(call: Callable[[], T], kind: type[VllmError], what: str) -> T:
    """Make one error of whatever the `tokenizers` library raises, its panics included."""
    try:
        return call()
    except VllmError:
        raise
    except Exception as error:
        raise kind(f"{what}: {error}") from error
    except BaseException as error:
        # A panic in the library's Rust code derives from BaseException, and its class cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise kind(f"{what}: {error}") from error


def _config_file(path: str) -> TokenizerConfig:
    return tokenizer_config(read_json_object(path), os.path.basename(path))


def _directory_config(directory: str, override: str | None) -> TokenizerConfig:
    if override is not None:
        return _config_file(override)
    path = os.path.join(directory, "tokenizer_config.json")
    return _config_file(path) if os.path.exists(path) else TokenizerConfig()


def _generation_eos(directory: str) -> frozenset[int]:
    """Return the eos ids of generation_config.json, or of config.json where there is none, as vLLM does."""
    for name in ("generation_config.json", "config.json"):
        path = os.path.join(directory, name)
        if os.path.exists(path):
            return eos_token_ids(read_json_object(path), name)
    return frozenset()


def _declare(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    """Make the tokens that the configuration calls special, or adds, whole tokens of the backend."""
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    for token_id, token in sorted(config.added_tokens.items()):
        if token.content in known:
            continue
        expected = backend.token_to_id(token.content)
        if (backend.get_vocab_size() if expected is None else expected) != token_id:
            raise FormatError(f"tokenizer_config.json: {token.content!r} cannot have id {token_id} in this vocabulary")
        _add(backend, token)
        known.add(token.content)
    for content in config.special_tokens:
        if content not in known and backend.token_to_id(content) is not None:
            _add(backend, DeclaredToken(content))


def _add(backend: tokenizers.Tokenizer, token: DeclaredToken) -> None:
    added = AddedToken(
        token.content,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        single_word=token.single_word,
        normalized=token.normalized,
    )
    (backend.add_special_tokens if token.special else backend.add_tokens)([added])


def _tokenizer(backend: tokenizers.Tokenizer, config: TokenizerConfig, more_eos: frozenset[int]) -> Tokenizer:
    _declare(backend, config)
    bos = _token_id(backend, "bos_token", config.bos_token)
    eos = _token_id(backend, "eos_token", config.eos_token)
    return Tokenizer(
        backend,
        more_eos if eos is None else more_eos | {eos},
        bos=_placement("bos", bos, config.add_bos_token),
        eos=_placement("eos", eos, config.add_eos_token),
    )


def _token_id(backend: tokenizers.Tokenizer, field: str, content: str | None) -> int | None:
    token_id = None if content is None else backend.token_to_id(content)
    if content is not None and token_id is None:
        raise FormatError(f"tokenizer_config.json: {field} {content!r} is not in the vocabulary")
    return token_id


def _placement(name: str, token_id: int | None, add: bool | None) -> tuple[int, bool] | None:
    if add and token_id is None:
        logger.warning(f"add_{name}_token is true, but there is no {name}_token: none is added")
    return None if add is None or token_id is None else (token_id, add)


@dataclass(frozen=True, slots=True)
class _Ends:
    """What is changed at the two ends of what the backend's post-processor makes of a text."""

    prepend: tuple[int, ...] = ()
    append: tuple[int, ...] = ()
    drop_first: int = 0
    drop_last: int = 0

    def applied(self, ids: list[int]) -> list[int]:
        return [*self.prepend, *ids[self.drop_first : len(ids) - self.drop_last], *self.append]


def _ends(backend: tokenizers.Tokenizer, bos: tuple[int, bool] | None, eos: tuple[int, bool] | None) -> _Ends:
    plain = backend.encode("a", add_special_tokens=False).ids
    full = backend.encode("a", add_special_tokens=True).ids
    at = next((i for i in range(len(full)) if plain and full[i : i + len(plain)] == plain), len(full))
    before, after = full[:at], full[at + len(plain) :]
    prepend, drop_first = _change(before[:1], bos)
    append, drop_last = _change(after[-1:], eos)
    return _Ends(prepend, append, drop_first, drop_last)


def _change(outermost: list[int], placement: tuple[int, bool] | None) -> tuple[tuple[int, ...], int]:
    """Return the ids to add and the number to drop, so that `outermost` holds the wanted token or not."""
    if placement is None or (outermost == [placement[0]]) == placement[1]:
        return (), 0
    return ((placement[0],), 0) if placement[1] else ((), 1)
