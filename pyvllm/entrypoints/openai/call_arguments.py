"""The arguments of a tool call, read while the model still writes them.

A reader takes the text that follows a call's head, in parts, and gives what is certain of the arguments. Put together,
the parts are the same however the text was cut.
"""

import json
import re
from collections.abc import Mapping
from typing import NoReturn, Protocol

from pyvllm.entrypoints.openai.tags import held_back

END = "</tool_call>"
_PARAMETER, _CLOSED = "<parameter=", "</parameter>"
_CLOSING = (_CLOSED, _PARAMETER, "</function>", END)
_VALUE_END = re.compile("|".join(_CLOSING))
_NEXT = re.compile(rf"{_PARAMETER}([^<>\n]{{1,256}})>|{END}")
_PARTIAL_PARAMETER = re.compile(rf"{_PARAMETER}[^<>\n]{{0,256}}")


class ArgumentsReader(Protocol):
    """Reads the arguments of one call."""

    is_over: bool
    """Whether nothing more of the text belongs to the arguments."""

    def read(self, text: str, is_whole: bool) -> tuple[str, int]:
        """Give the arguments that are certain, and how many characters of `text` are done with.

        text: what the calls before have left, and more. is_whole: whether nothing will follow; the arguments are over.
        """


class JsonArguments:
    """Arguments that stand there as JSON: kept as the model writes them, up to the end of the value.

    An end tag within a string is part of it. It ends the arguments outside, and in a string that JSON does not allow,
    so that damaged arguments cannot swallow what follows the call.
    """

    def __init__(self) -> None:
        """Begin at the first character of the value."""
        self.is_over = False
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._is_damaged = False

    def read(self, text: str, is_whole: bool) -> tuple[str, int]:
        """Give the arguments that are certain, as ArgumentsReader has it."""
        for position, character in enumerate(text):
            if character == "<" and (self._is_damaged or not self._is_in_string):
                if text.startswith(END, position):
                    self.is_over = True
                    return text[:position], position
                if END.startswith(text[position : position + len(END)]):
                    self.is_over = is_whole
                    return text[:position], position
            if character in ",}]" and not self._depth and not self._is_in_string:
                self.is_over = True
                return text[:position], position
            if self._ends_with(character):
                self.is_over = True
                return text[: position + 1], position + 1
        self.is_over = is_whole
        return text, len(text)

    def _ends_with(self, character: str) -> bool:
        """Take one character; true if it is the last of the value."""
        if self._is_in_string:
            self._is_damaged |= character < " "
            if self._is_escaped or character == "\\":
                self._is_escaped = not self._is_escaped
            elif character == '"':
                self._is_in_string = False
                return not self._depth
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            return not self._depth
        return False


class XmlArguments:
    """Arguments as `<parameter=name>` elements: written as a JSON object, each value by the type of its schema.

    A value ends at its end tag, at the next parameter, or with the call; a text is given as it comes. One newline after
    the tag and one before the end tag belong to neither. Of two parameters of one name the first counts; what stands
    between parameters says nothing.
    """

    def __init__(self, properties: object) -> None:
        """Begin after the function's tag. properties: of the function's JSON schema."""
        self.is_over = False
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._names: set[str] = set()
        self._value: _Value | None = None

    def read(self, text: str, is_whole: bool) -> tuple[str, int]:
        """Give the arguments that are certain, as ArgumentsReader has it."""
        found, position, goes_on = "", 0, True
        while goes_on:
            step = self._next_parameter if self._value is None else self._next_text
            piece, position, goes_on = step(text, position, is_whole)
            found += piece
        return found, position

    def _next_parameter(self, text: str, position: int, is_whole: bool) -> tuple[str, int, bool]:
        tag = _NEXT.search(text, position)
        if tag is None and not is_whole:
            start = text.rfind("<", position)
            rest = text[start:] if start >= 0 else ""
            is_tag = bool(rest) and (
                END.startswith(rest) or _PARAMETER.startswith(rest) or _PARTIAL_PARAMETER.fullmatch(rest) is not None
            )
            return "", start if is_tag else len(text), False
        if tag is None or tag[1] is None:
            self.is_over = True
            return "}" if self._names else "{}", len(text) if tag is None else tag.start(), False
        name = tag[1].strip()
        self._value = _Value(self._properties.get(name), is_counted=name not in self._names)
        if name in self._names:
            return "", tag.end(), True
        head = f"{', ' if self._names else '{'}{_json(name)}: "
        self._names.add(name)
        return head, tag.end(), True

    def _next_text(self, text: str, position: int, is_whole: bool) -> tuple[str, int, bool]:
        value = self._value or _Value(None)
        tag = _VALUE_END.search(text, position)
        held = 0 if tag else max(held_back(text[position:], closing) for closing in _CLOSING)
        end = tag.start() if tag else len(text) - held
        found = value.push(text[position:end])
        if tag is None and not is_whole:
            return found, end, False
        self._value = None
        return found + value.finish(), tag.end() if tag and tag[0] == _CLOSED else end, True


class _Value:
    """One parameter's value: from its text to JSON."""

    def __init__(self, schema: object, *, is_counted: bool = True) -> None:
        """is_counted: whether the value is given at all."""
        kind = schema.get("type") if isinstance(schema, Mapping) else None
        kinds = set(kind) if isinstance(kind, list | tuple) else {kind}
        self._is_text = kinds <= {"string", None}
        self._is_counted = is_counted
        self._parts: list[str] = []
        self._quote = '"'
        self._is_begun = False
        self._newline = ""

    def push(self, text: str) -> str:
        """Take more text and give the JSON that is certain."""
        if not text:
            return ""
        text = self._newline + (text if self._is_begun else text.removeprefix("\n"))
        self._is_begun = True
        shown = text.removesuffix("\n")
        self._newline = text[len(shown) :]
        return self._shown(shown)

    def finish(self) -> str:
        """Give the rest."""
        if not self._is_counted:
            return ""
        if self._is_text:
            return f'{self._quote}"'
        text = "".join(self._parts)
        try:
            return _json(json.loads(text, parse_constant=refuse_constant))
        except (ValueError, RecursionError):
            # What is no value of its type stays a text.
            return _json(text)

    def _shown(self, text: str) -> str:
        if not self._is_text:
            self._parts.append(text)
        if not self._is_text or not self._is_counted:
            return ""
        quote, self._quote = self._quote, ""
        return quote + _json(text)[1:-1]


def refuse_constant(text: str) -> NoReturn:
    """Refuse NaN and infinities, which Python reads and JSON has not. Raises ValueError."""
    raise ValueError(f"{text} is not a JSON number")


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
