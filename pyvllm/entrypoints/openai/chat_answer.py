"""From the text of answers to OpenAI's chat objects, whole or in chunks. No HTTP and no engine here."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from pyvllm.entrypoints.openai.call_arguments import JsonArguments
from pyvllm.entrypoints.openai.protocol import usage_object
from pyvllm.entrypoints.openai.reasoning_parsers import ReasoningParser
from pyvllm.entrypoints.openai.tool_parsers import JSON_NAME, CallDelta

Json = dict[str, object]

#: What stands before the parameters of a call in a list of forced ones; the grammar sets the order of the keys.
_HEAD = re.compile(rf'[\s\[\]}},]*\{{\s*"name"\s*:\s*{JSON_NAME}\s*,\s*"parameters"\s*:\s*(?=\S)')


class ReadsCalls(Protocol):
    """Takes calls out of an answer's content."""

    def push(self, text: str) -> Iterable[str | CallDelta]:
        """Take more text and give what is certain."""

    def finish(self) -> Iterable[str | CallDelta]:
        """Give what was held back."""


class NamedCall:
    """The answer to a forced choice of one function: nothing but its arguments, cut off or not, as in vLLM."""

    def __init__(self, function: str) -> None:
        """function: its name."""
        self._function: str | None = function

    def push(self, text: str) -> Iterator[str | CallDelta]:
        """Take more text and give it as arguments."""
        if self._function is not None:
            yield CallDelta(name=self._function)
            self._function = None
        yield CallDelta(arguments=text)

    def finish(self) -> Iterator[str | CallDelta]:
        """Give nothing: nothing is held back."""
        yield from ()


class ListedCalls:
    """The answer to a forced choice of any function: a list of calls. One that ends before a call begins is a text."""

    def __init__(self) -> None:
        """Begin an answer."""
        self._held = ""
        self._is_begun = False
        self._reader: JsonArguments | None = None

    def push(self, text: str) -> Iterator[str | CallDelta]:
        """Take more text and give the pieces of calls that are certain."""
        self._held += text
        yield from self._read(is_whole=False)

    def finish(self) -> Iterator[str | CallDelta]:
        """Give what was held back."""
        yield from self._read(is_whole=True)
        if not self._is_begun and self._held:
            yield self._held

    def _read(self, *, is_whole: bool) -> Iterator[str | CallDelta]:
        while True:
            if self._reader is None:
                head = _HEAD.match(self._held)
                if head is None:
                    return
                self._held = self._held[head.end() :]
                self._is_begun, self._reader = True, JsonArguments()
                yield CallDelta(name=json.loads(head[1]))
            arguments, used = self._reader.read(self._held, is_whole)
            self._held = self._held[used:]
            if arguments:
                yield CallDelta(arguments=arguments)
            if not self._reader.is_over:
                return
            self._reader = None


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
        self._names: list[str] = []
        self._ids: list[str] = []
        self._arguments: list[list[str]] = []
        self._is_wanted = False

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return bool(self._names)

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
        message: Json = {"role": "assistant", "content": "".join(self._content) or (None if self.has_calls else "")}
        if self._thought:
            message["reasoning"] = "".join(self._thought)
        if self.has_calls:
            message["tool_calls"] = [self._call(index) for index in range(len(self._names))]
        return message

    def _think(self, text: str) -> Iterator[Json]:
        if text:
            self._thought.append(text)
            yield {"reasoning": text}

    def _say(self, text: str) -> Iterator[Json]:
        if text:
            yield from self._deltas([text] if self._reads_calls is None else self._reads_calls.push(text))

    def _deltas(self, items: Iterable[str | CallDelta]) -> Iterator[Json]:
        for item in items:
            if isinstance(item, str):
                self._content.append(item)
                yield {"content": item}
            elif item.name is not None:
                self._is_wanted = self._max_calls is None or len(self._names) < self._max_calls
                if self._is_wanted:
                    yield self._begin_call(item.name)
            elif self._is_wanted:
                self._arguments[-1].append(item.arguments)
                yield {"tool_calls": [{"index": len(self._names) - 1, "function": {"arguments": item.arguments}}]}

    def _begin_call(self, name: str) -> Json:
        self._names.append(name)
        self._ids.append(f"call_{uuid4().hex[:24]}")
        self._arguments.append([])
        return {"tool_calls": [{"index": len(self._names) - 1, **self._call(-1)}]}

    def _call(self, index: int) -> Json:
        function = {"name": self._names[index], "arguments": "".join(self._arguments[index])}
        return {"id": self._ids[index], "type": "function", "function": function}


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

    def chunk(self, index: int, delta: Json, finish_reason: str | None = None, logprobs: Json | None = None) -> Json:
        """Build a `chat.completion.chunk` with a part of one answer."""
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return self.object("chat.completion.chunk", [choice])

    def usage_chunk(self, num_prompt_tokens: int, num_completion_tokens: int) -> Json:
        """Build the last chunk of a stream that was asked for its usage."""
        usage = usage_object(num_prompt_tokens, num_completion_tokens)
        return {**self.object("chat.completion.chunk", []), "usage": usage}


def chat_choice(index: int, message: Json, finish_reason: str, logprobs: Json | None = None) -> Json:
    """Build one entry of `choices` of a `chat.completion`."""
    return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}
