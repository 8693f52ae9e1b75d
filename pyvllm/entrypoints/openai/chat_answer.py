"""From the text of answers to OpenAI's chat objects, whole or in chunks. No HTTP and no engine here."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from pyvllm.entrypoints.openai.protocol import usage_object
from pyvllm.entrypoints.openai.reasoning_parsers import ReasoningParser
from pyvllm.entrypoints.openai.tool_parsers import ToolCall

Json = dict[str, object]


class ReadsCalls(Protocol):
    """Takes calls out of an answer's content."""

    def push(self, text: str) -> Iterable[str | ToolCall]:
        """Take more text and give what is certain."""

    def finish(self) -> Iterable[str | ToolCall]:
        """Give what was held back."""


class ForcedCalls:
    """The answer to a forced tool choice: nothing but the arguments of a named function, or a list of calls."""

    def __init__(self, function: str | None) -> None:
        """function: the named one; None for a list."""
        self._function = function
        self._text = ""

    def push(self, text: str) -> Iterator[str | ToolCall]:
        """Take more text; it says nothing before it is whole."""
        self._text += text
        yield from ()

    def finish(self) -> Iterator[str | ToolCall]:
        """Give the calls; an answer that was cut off is given as text."""
        try:
            found = json.loads(self._text)
        except ValueError:
            yield self._text
            return
        if self._function is not None:
            yield ToolCall(self._function, self._text)
            return
        for call in found:
            yield ToolCall(call["name"], json.dumps(call["parameters"], ensure_ascii=False))


class ChoiceStream:
    """One answer as it comes: thought, content and calls."""

    def __init__(
        self, reasoning: ReasoningParser | None, calls: ReadsCalls | None, *, is_parallel: bool = True
    ) -> None:
        """is_parallel: whether more than one call is wanted; only the first counts otherwise."""
        self._reasoning = reasoning
        self._reads_calls = calls
        self._max_calls = None if is_parallel else 1
        self._thought: list[str] = []
        self._content: list[str] = []
        self.calls: list[Json] = []

    def push(self, text: str) -> Iterator[Json]:
        """Take more text and give the deltas that follow from it."""
        if self._reasoning is None:
            yield from self._say(text)
            return
        split = self._reasoning.push(text)
        yield from self._think(split.reasoning)
        yield from self._say(split.content)

    def finish(self) -> Iterator[Json]:
        """Give the deltas of what was held back."""
        if self._reasoning is not None:
            split = self._reasoning.finish()
            yield from self._think(split.reasoning)
            yield from self._say(split.content)
        if self._reads_calls is not None:
            yield from self._deltas(self._reads_calls.finish())

    def message(self) -> Json:
        """Give the whole message; call it after `finish`."""
        message: Json = {"role": "assistant", "content": "".join(self._content) or (None if self.calls else "")}
        if self._thought:
            message["reasoning"] = "".join(self._thought)
        if self.calls:
            kept = ("id", "type", "function")
            message["tool_calls"] = [{key: call[key] for key in kept} for call in self.calls]
        return message

    def _think(self, text: str) -> Iterator[Json]:
        if text:
            self._thought.append(text)
            yield {"reasoning": text}

    def _say(self, text: str) -> Iterator[Json]:
        if text:
            yield from self._deltas([text] if self._reads_calls is None else self._reads_calls.push(text))

    def _deltas(self, items: Iterable[str | ToolCall]) -> Iterator[Json]:
        for item in items:
            if isinstance(item, str):
                self._content.append(item)
                yield {"content": item}
            elif self._max_calls is None or len(self.calls) < self._max_calls:
                call: Json = {
                    "index": len(self.calls),
                    "id": f"call_{uuid4().hex[:24]}",
                    "type": "function",
                    "function": {"name": item.name, "arguments": item.arguments},
                }
                self.calls.append(call)
                yield {"tool_calls": [call]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every object of one response has."""

    identifier: str
    created: int
    """Seconds since 1970."""
    model: str

    def object(self, kind: str, choices: Sequence[Json]) -> Json:
        """Build a chat object."""
        head = {"id": self.identifier, "object": kind, "created": self.created, "model": self.model}
        return {**head, "choices": list(choices)}

    def chunk(self, index: int, delta: Json, finish_reason: str | None = None) -> Json:
        """Build a `chat.completion.chunk` with a part of one answer."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return self.object("chat.completion.chunk", [choice])

    def usage_chunk(self, num_prompt_tokens: int, num_completion_tokens: int) -> Json:
        """Build the last chunk of a stream that was asked for its usage."""
        usage = usage_object(num_prompt_tokens, num_completion_tokens)
        return {**self.object("chat.completion.chunk", []), "usage": usage}


def chat_choice(index: int, message: Json, finish_reason: str) -> Json:
    """Build one entry of `choices` of a `chat.completion`."""
    return {"index": index, "message": message, "logprobs": None, "finish_reason": finish_reason}
