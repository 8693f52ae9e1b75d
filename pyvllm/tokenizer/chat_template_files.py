"""Finds a model's chat template: in a directory's files or in a GGUF file's metadata."""

import os
from collections.abc import Mapping

from pyvllm.errors import FormatError, InvalidArgument
from pyvllm.tokenizer.chat_template import ChatTemplate
from pyvllm.tokenizer.files import MAX_TEMPLATE_BYTES, read_file, read_json_object
from pyvllm.tokenizer.special_tokens import tokenizer_config

_GGUF_KEY = "tokenizer.chat_template"
_JINJA_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"
#: Names that a model gives its templates, by what they are for. Source: `chat_template` of huggingface/transformers.
_DEFAULT, _WITH_TOOLS = "default", "tool_use"


class ChatTemplates:
    """A model's templates: one for all conversations, or several by name."""

    def __init__(self, sources: Mapping[str, str], tokens: Mapping[str, str], origin: str) -> None:
        """Compile every template. origin: file or key, for errors. Raises FormatError."""
        self._origin = origin
        self.tokens = tokens
        self._by_name = {name: ChatTemplate(text, tokens, origin) for name, text in sources.items()}

    def choose(self, has_tools: bool) -> ChatTemplate:
        """Give the template for a conversation with or without tools. Raises InvalidArgument if there is none."""
        names = (_WITH_TOOLS, _DEFAULT) if has_tools else (_DEFAULT,)
        for name in names:
            if name in self._by_name:
                return self._by_name[name]
        if not self._by_name:
            raise InvalidArgument(f"the model has no chat template: there is none in {self._origin}; use a completion")
        raise InvalidArgument(
            f"{self._origin}: none of the model's chat templates ({', '.join(sorted(self._by_name))}) is called "
            f"{_DEFAULT!r}"
        )


def load_chat_templates(
    directory: str | None, gguf_metadata: Mapping[str, object] | None, tokenizer_config_path: str | None = None
) -> ChatTemplates:
    """Read the templates of a model.

    directory: of a Hugging Face model; None for a GGUF file, whose metadata is given then. tokenizer_config_path: a
    `tokenizer_config.json` whose template and tokens come before the model's own. Raises FormatError for a template or
    a file that breaks a rule, ModelLoadError for an override that is missing. A model without one loads as empty.
    """
    tokens: dict[str, str] = {}
    sources: dict[str, str] = {}
    origin = f"{_CONFIG_FILE} or {_JINJA_FILE}" if gguf_metadata is None else f"the GGUF key {_GGUF_KEY}"
    if gguf_metadata is not None:
        tokens, sources = _gguf_tokens(gguf_metadata), _gguf_sources(gguf_metadata)
    elif directory is not None:
        tokens, sources = _directory(directory, tokenizer_config_path is None)
    if tokenizer_config_path is not None:
        own_tokens, own_sources = _config(tokenizer_config_path)
        tokens |= own_tokens
        if own_sources:
            sources, origin = own_sources, os.path.basename(tokenizer_config_path)
    return ChatTemplates(sources, tokens, origin)


def single_template(source: str, tokens_of: ChatTemplates, origin: str) -> ChatTemplates:
    """Give what an operator's own template becomes, with the model's tokens. Raises FormatError."""
    return ChatTemplates({_DEFAULT: source}, tokens_of.tokens, origin)


def _directory(directory: str, reads_config: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Read a directory: `chat_template.jinja` comes before `tokenizer_config.json`, as in transformers."""
    path = os.path.join(directory, _CONFIG_FILE)
    tokens, sources = _config(path) if reads_config and os.path.exists(path) else ({}, {})
    jinja = os.path.join(directory, _JINJA_FILE)
    if os.path.exists(jinja):
        try:
            sources = {_DEFAULT: read_file(jinja, MAX_TEMPLATE_BYTES).decode("utf-8")}
        except UnicodeDecodeError as error:
            raise FormatError(f"{_JINJA_FILE}: is not valid UTF-8: {error}") from error
    return tokens, sources


def _config(path: str) -> tuple[dict[str, str], dict[str, str]]:
    name = os.path.basename(path)
    document = read_json_object(path)
    config = tokenizer_config(document, name)
    named = {"bos_token": config.bos_token, "eos_token": config.eos_token}
    tokens = {key: token for key, token in named.items() if token is not None}
    return tokens, _config_sources(document.get("chat_template"), name)


def _config_sources(value: object, name: str) -> dict[str, str]:
    """Read `chat_template`: a text, or a list of objects with a name and a template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    sources: dict[str, str] = {}
    for item in value if isinstance(value, list) else [None]:
        pair = (item.get("name"), item.get("template")) if isinstance(item, dict) else (None, None)
        if not isinstance(pair[0], str) or not isinstance(pair[1], str) or pair[0] in sources:
            raise FormatError(
                f"{name}: chat_template must be a string, or a list of objects with a 'name' of their own and a "
                "'template'"
            )
        sources[pair[0]] = pair[1]
    return sources


def _gguf_sources(metadata: Mapping[str, object]) -> dict[str, str]:
    sources: dict[str, str] = {}
    for key, value in metadata.items():
        head, dot, name = key.partition(_GGUF_KEY)
        if head or not dot or (name and not name.startswith(".")):
            continue
        if not isinstance(value, str):
            raise FormatError(f"{key} must be a string, found {type(value).__name__}")
        sources[name[1:] or _DEFAULT] = value
    return sources


def _gguf_tokens(metadata: Mapping[str, object]) -> dict[str, str]:
    """Find the tokens that a template writes, in the file's list or, of a model that is loaded, by id."""
    listed = metadata.get("tokenizer.ggml.tokens")
    by_id = dict(enumerate(listed)) if isinstance(listed, list | tuple) else listed
    tokens: dict[str, str] = {}
    for name in ("bos", "eos"):
        index = metadata.get(f"tokenizer.ggml.{name}_token_id")
        token = by_id.get(index) if isinstance(by_id, Mapping) and isinstance(index, int) else None
        if isinstance(token, str):
            tokens[f"{name}_token"] = token
    return tokens
