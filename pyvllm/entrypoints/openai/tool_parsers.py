"""Tool parsers: the calls that a model writes into its answer, given while it still writes them.

All formats here stand between `<tool_call>` and `</tool_call>`. Hermes writes one JSON object with `name` and
`arguments`; Qwen3-Coder writes `<function=name>` with `<parameter=name>` elements; Qwen3 models write either, so that
`qwen3` reads both. Source of the formats: the chat templates of NousResearch/Hermes-2-Pro, Qwen3 and Qwen3-Coder.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyvllm.entrypoints.openai.call_arguments import END, ArgumentsReader, JsonArguments, XmlArguments, refuse_constant
from pyvllm.entrypoints.openai.tags import held_back
from pyvllm.errors import InvalidArgument

START = "<tool_call>"
#: Characters in which a call's head must end for its arguments to be given as they come.
MAX_HEAD = 1024
#: A JSON text of at least one character, with its quotes.
JSON_NAME = r'("(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})+")'
_JSON_HEAD = re.compile(rf'\s*\{{\s*"name"\s*:\s*{JSON_NAME}\s*,\s*"arguments"\s*:\s*(?=\{{)')
_XML_HEAD = re.compile(r"\s*<function=([^<>\n]+)>\s*(?=<parameter=[^<>\n]{1,256}>|</function>)")
_XML_ALONE = re.compile(r"\s*<function=([^<>\n]+)>\s*")


@dataclass(frozen=True, slots=True)
class CallDelta:
    """A piece of a tool call: its name, which begins it, or more text of its arguments."""

    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call whose head was read."""

    name: str
    arguments: str = ""
    """All of them, where nothing reads them."""
    reader: ArgumentsReader | None = None
    size: int = 0
    """Characters of the head; the reader's text follows."""


#: Parameters of every tool by name, as JSON schemas.
Schemas = Mapping[str, Mapping[str, object]]

#: Finds the head of a call in what stands in a block so far, or in all of it if the third argument is true.
Open = Callable[[str, Schemas, bool], OpenCall | None]


class ToolParser:
    """Takes the calls out of one answer that comes in parts; together they are the same however it was cut.

    A block whose head is that of a call is a call, and arguments that go wrong after it stay as the model wrote them; a
    block without stays in the content. White space beside a call belongs to neither.
    """

    def __init__(self, open_call: Open, schemas: Schemas) -> None:
        """Begin an answer."""
        self._open = open_call
        self._schemas = schemas
        self._held = ""
        self._scanned = 0
        self._is_head_over = False
        self._reader: ArgumentsReader | None = None
        self._space = ""
        self._follows_call = False
        self._step: Callable[[bool], Iterator[str | CallDelta]] = self._in_content

    def push(self, text: str) -> Iterator[str | CallDelta]:
        """Take more text and give what is certain: content, and pieces of calls."""
        self._held += text
        yield from self._run(is_whole=False)

    def finish(self) -> Iterator[str | CallDelta]:
        """Give what was held back. A call that was not closed counts."""
        yield from self._run(is_whole=True)
        if self._space:
            yield self._space

    def _run(self, *, is_whole: bool) -> Iterator[str | CallDelta]:
        step = None
        while step != self._step:
            step = self._step
            yield from step(is_whole)

    def _in_content(self, is_whole: bool) -> Iterator[str | CallDelta]:
        start = self._held.find(START)
        kept = 0 if is_whole else held_back(self._held, START)
        yield from self._content(self._take(start if start >= 0 else len(self._held) - kept))
        if start >= 0:
            self._scanned, self._is_head_over = len(START), False
            self._step = self._in_head

    def _in_head(self, is_whole: bool) -> Iterator[str | CallDelta]:
        end = self._held.find(END, self._scanned)
        self._scanned = max(len(START), len(self._held) - len(END) + 1)
        is_block = is_whole or end >= 0
        if not is_block and self._is_head_over:
            return
        self._is_head_over = len(self._held) >= len(START) + MAX_HEAD
        call = self._open(self._held[len(START) : end if end >= 0 else None], self._schemas, is_block)
        if call is not None:
            self._space, self._follows_call = "", True
            yield CallDelta(name=call.name)
            if call.arguments:
                yield CallDelta(arguments=call.arguments)
            self._take(len(START) + call.size)
            self._reader = call.reader
            self._step = self._in_tail if call.reader is None else self._in_arguments
        elif is_block:
            yield from self._content(self._take(end + len(END) if end >= 0 else len(self._held)))
            self._step = self._in_content

    def _in_arguments(self, is_whole: bool) -> Iterator[str | CallDelta]:
        if self._reader is None or self._reader.is_over:
            self._step = self._in_tail
            return
        arguments, used = self._reader.read(self._held, is_whole)
        self._take(used)
        if arguments:
            yield CallDelta(arguments=arguments)
        if self._reader.is_over:
            self._step = self._in_tail

    def _in_tail(self, is_whole: bool) -> Iterator[str | CallDelta]:
        end = self._held.find(END)
        if end >= 0 or is_whole:
            self._take(end + len(END) if end >= 0 else len(self._held))
            self._step = self._in_content
        else:
            self._take(len(self._held) - held_back(self._held, END))
        yield from ()

    def _take(self, size: int) -> str:
        taken, self._held = self._held[:size], self._held[size:]
        return taken

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


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """How a family of models writes its calls."""

    open_call: Open

    def parser(self, schemas: Schemas) -> ToolParser:
        """Make the parser of one answer."""
        return ToolParser(self.open_call, schemas)


def _open_json(body: str, _schemas: Schemas, is_block: bool) -> OpenCall | None:
    head = _JSON_HEAD.match(body[:MAX_HEAD])
    if head is not None:
        return OpenCall(json.loads(head[1]), reader=JsonArguments(), size=head.end())
    return _read_json(body) if is_block else None


def _read_json(body: str) -> OpenCall | None:
    """Read a call that is not in the usual order, or has no arguments, from its whole block."""
    try:
        call = json.loads(body, parse_constant=refuse_constant)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        return None
    arguments = call.get("arguments", {})
    if isinstance(arguments, str):
        return OpenCall(call["name"], arguments)
    return OpenCall(call["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def _open_xml(body: str, schemas: Schemas, is_block: bool) -> OpenCall | None:
    head = _XML_HEAD.match(body[:MAX_HEAD])
    if head is None and is_block and len(body) <= MAX_HEAD:
        head = _XML_ALONE.fullmatch(body)
    name = head[1].strip() if head is not None else ""
    if head is None or not name:
        return None
    return OpenCall(name, reader=XmlArguments(schemas.get(name, {}).get("properties")), size=head.end())


def _open_either(body: str, schemas: Schemas, is_block: bool) -> OpenCall | None:
    return _open_xml(body, schemas, is_block) or _open_json(body, schemas, is_block)


TOOL_PARSERS: Mapping[str, ToolFormat] = {
    "hermes": ToolFormat(_open_json),
    "qwen3": ToolFormat(_open_either),
    "qwen3_coder": ToolFormat(_open_xml),
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
