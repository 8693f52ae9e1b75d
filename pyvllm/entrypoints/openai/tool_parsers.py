"""Tool parsers: the calls that a model writes into its answer.

All formats here stand between `<tool_call>` and `</tool_call>`. Hermes writes one JSON object with `name` and
`arguments`; Qwen3-Coder writes `<function=name>` with `<parameter=name>` elements; Qwen3 models write either, so that
`qwen3` reads both. Source of the formats: the chat templates of NousResearch/Hermes-2-Pro, Qwen3 and Qwen3-Coder.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from pyvllm.entrypoints.openai.tags import held_back
from pyvllm.errors import InvalidArgument

START, END = "<tool_call>", "</tool_call>"
_BLOCK = re.compile(rf"({START}.*?(?:{END}|\Z))", re.DOTALL)
_FUNCTION = re.compile(r"<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^<>\n]+)>(.*?)(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    name: str
    arguments: str
    """A JSON object, as text."""


#: Parameters of every tool by name, as JSON schemas.
Schemas = Mapping[str, Mapping[str, object]]

#: Reads what stands in a block; None if it is no call.
ReadCall = Callable[[str, Schemas], ToolCall | None]


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes its calls."""

    read: ReadCall

    def parser(self, schemas: Schemas) -> "ToolParser":
        """Make the parser of one answer."""
        return ToolParser(self.read, schemas)

    def extract(self, text: str, schemas: Schemas) -> tuple[str, list[ToolCall]]:
        """Give the content and the calls of a whole answer.

        A block that is no call stays in the content. White space beside a call belongs to neither.
        """
        pieces = _BLOCK.split(text)
        parts: list[str | ToolCall] = [""]
        for index, piece in enumerate(pieces):
            call = self.read(_inside(piece), schemas) if index % 2 else None
            last = parts[-1]
            if call is not None:
                parts += [call, ""]
            elif isinstance(last, str):
                parts[-1] = last + piece
        texts = [part for part in parts if isinstance(part, str)]
        texts[1:] = [part.lstrip() for part in texts[1:]]
        texts[:-1] = [part.rstrip() for part in texts[:-1]]
        return "".join(texts), [part for part in parts if isinstance(part, ToolCall)]


class ToolParser:
    """Takes the calls out of one answer that comes in parts; together they are what `ToolFormat.extract` gives."""

    def __init__(self, read: ReadCall, schemas: Schemas) -> None:
        """Begin an answer."""
        self._read = read
        self._schemas = schemas
        self._held = ""
        self._scanned = 0
        self._is_in_block = False
        self._space = ""
        self._follows_call = False

    def push(self, text: str) -> Iterator[str | ToolCall]:
        """Take more text and give what is certain: content, and whole calls."""
        self._held += text
        while True:
            if not self._is_in_block:
                start = self._held.find(START)
                cut = start if start >= 0 else len(self._held) - held_back(self._held, START)
                before, self._held = self._held[:cut], self._held[cut:]
                yield from self._content(before)
                if start < 0:
                    return
                self._is_in_block, self._scanned = True, len(START)
            end = self._held.find(END, self._scanned)
            if end < 0:
                self._scanned = max(len(START), len(self._held) - len(END) + 1)
                return
            end += len(END)
            block, self._held = self._held[:end], self._held[end:]
            self._is_in_block = False
            yield from self._block(block)

    def finish(self) -> Iterator[str | ToolCall]:
        """Give what was held back; a call that was not closed counts if it is whole."""
        held, self._held = self._held, ""
        yield from self._block(held) if self._is_in_block else self._content(held)
        if self._space:
            yield self._space

    def _block(self, block: str) -> Iterator[str | ToolCall]:
        call = self._read(_inside(block), self._schemas)
        if call is None:
            yield from self._content(block)
            return
        self._space, self._follows_call = "", True
        yield call

    def _content(self, text: str) -> Iterator[str]:
        """Give content, but hold white space back that a call may follow."""
        if self._follows_call:
            text = text.lstrip()
            self._follows_call = not text
        text = self._space + text
        shown = text.rstrip()
        self._space = text[len(shown) :]
        if shown:
            yield shown


def _inside(block: str) -> str:
    return block.removeprefix(START).removesuffix(END)


def _read_json(body: str, _schemas: Schemas) -> ToolCall | None:
    try:
        call = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        return ToolCall(call["name"], arguments)
    return ToolCall(call["name"], _json(arguments)) if isinstance(arguments, dict) else None


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _read_xml(body: str, schemas: Schemas) -> ToolCall | None:
    body = body.strip()
    function = _FUNCTION.match(body)
    if function is None:
        return None
    name, rest = function[1].strip(), body[function.end() :].removesuffix("</function>").rstrip()
    properties = schemas.get(name, {}).get("properties")
    arguments: dict[str, object] = {}
    position = 0
    while position < len(rest):
        parameter = _PARAMETER.match(rest, _end_of_space(rest, position))
        if parameter is None:
            return None
        position = parameter.end()
        key = parameter[1].strip()
        value = parameter[2].removeprefix("\n").removesuffix("\n")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        arguments[key] = _typed(value, schema)
    return ToolCall(name, _json(arguments))


def _end_of_space(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return position if space is None else space.end()


def _typed(text: str, schema: object) -> object:
    """Read a parameter by its type; what is no value of it, or has no known type, stays a text."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = set(kind) if isinstance(kind, list | tuple) else {kind}
    if kinds <= {"string", None}:
        return text
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return text


def _read_either(body: str, schemas: Schemas) -> ToolCall | None:
    return _read_xml(body, schemas) if body.lstrip().startswith("<function=") else _read_json(body, schemas)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


TOOL_PARSERS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat(_read_json),
    "qwen3": ToolFormat(_read_either),
    "qwen3_coder": ToolFormat(_read_xml),
}


def tool_format(name: str | None) -> ToolFormat | None:
    """Find a parser by name; None for no name. Raises InvalidArgument for one that is not known."""
    if not name:
        return None
    if name not in TOOL_PARSERS:
        raise InvalidArgument(f"tool_parser {name!r} is not known; known are {', '.join(sorted(TOOL_PARSERS))}")
    return TOOL_PARSERS[name]


def tool_schemas(tools: Sequence[Mapping[str, object]]) -> Schemas:
    """Give the parameters of every tool of a checked request, by the tool's name."""
    found: dict[str, Mapping[str, object]] = {}
    for tool in tools:
        function = tool["function"]
        if isinstance(function, Mapping):
            parameters = function.get("parameters")
            found[str(function["name"])] = parameters if isinstance(parameters, Mapping) else {}
    return found
