"""What the three kinds of request have in common once they are submitted, and how completions answer."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from pyvllm.entrypoints.openai.chat_answer import Json
from pyvllm.entrypoints.openai.chat_service import ChatService, Hear, raise_if_failed
from pyvllm.entrypoints.openai.fields import bad_request, named_in
from pyvllm.entrypoints.openai.logprobs import LogprobsOf
from pyvllm.entrypoints.openai.protocol import (
    Choice,
    CompletionRequest,
    completion_body,
    completion_choice,
    parse_completion,
    usage_object,
)
from pyvllm.errors import InvalidArgument
from pyvllm.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pyvllm.engine.engine_core import EngineRequest
    from pyvllm.engine.llm_engine import LLMEngine

#: Checks a request's model and unknown fields, and gives the name that its answer bears. Raises ApiError.
Admit = Callable[[str | None, Sequence[str]], str]

#: Gives the listener of a request's answers; the argument says whether it hears of all text or of ends only.
Listen = Callable[[bool], Hear]


class Answering(Protocol):
    """A submitted request: its engine requests, and what becomes of their text."""

    items: list["EngineRequest"]

    @property
    def is_stream(self) -> bool:
        """Whether the answer goes out in parts."""

    def opening(self) -> Iterator[Json]:
        """Give the parts that a stream begins with."""

    def hear(self, index: int, text: str, finished: bool, num_tokens: int) -> Iterator[Json]:
        """Take new text of the index-th item and give the parts that follow. Raises ApiError if it has failed.

        num_tokens: of the item so far.
        """

    def closing(self) -> Iterator[Json]:
        """Give the parts that a stream ends with."""

    def body(self) -> Json:
        """Give the whole answer, once every item is done. Raises ApiError if one has failed."""


def open_chat(chat: ChatService, body: bytes, admit: Admit, listen: Listen) -> Answering:
    """Read and submit a request to `/v1/chat/completions`. Raises ApiError."""
    request = chat.parse(body)
    name = admit(request.model, request.unknown)
    return chat.submit(chat.prepare(request), listen(request.stream), name)


def open_completion(engine: "LLMEngine", body: bytes, admit: Admit, listen: Listen) -> Answering:
    """Read and submit a request to `/v1/completions`. Raises ApiError; none stays queued then."""
    request = parse_completion(body, engine.max_model_len, engine.prepared.cache.scheduling_policy)
    answer = CompletionAnswer(request, admit(request.model, request.unknown), engine.tokenizer)
    hear = listen(request.stream)
    try:
        for prompt in request.prompts:
            for number in range(request.n):
                params = request.answer_params(number)
                told = partial(hear, len(answer.items))
                answer.take(engine.submit(prompt, params, told, priority=request.priority))
    except InvalidArgument as error:
        for item in answer.items:
            engine.cancel(item)
        raise bad_request(str(error), named_in(error, "prompt", request.structured_param)) from error
    return answer


class CompletionAnswer:
    """The answers to one completion request."""

    def __init__(self, request: CompletionRequest, name: str, tokenizer: Tokenizer) -> None:
        """name: what the model is called in the answer."""
        self.items: list[EngineRequest] = []
        self._logprobs: list[LogprobsOf] = []
        self._tokenizer = tokenizer
        self._request = request
        self._name = name
        self._identifier = f"cmpl-{uuid4().hex}"
        self._created = int(time.time())

    @property
    def is_stream(self) -> bool:
        """Whether the answer goes out in parts."""
        return self._request.stream

    def take(self, item: "EngineRequest") -> None:
        """Add a submitted item."""
        self._logprobs.append(LogprobsOf(item, self._tokenizer))
        self.items.append(item)

    def opening(self) -> Iterator[Json]:
        """Give nothing: a completion's stream begins with its text."""
        yield from ()

    def hear(self, index: int, text: str, finished: bool, num_tokens: int) -> Iterator[Json]:
        """Take new text of an answer and give its part."""
        item, logprobs = self.items[index], self._logprobs[index]
        if finished:
            raise_if_failed(item)
        logprobs.know(num_tokens)
        reason = (item.finish_reason or "abort") if finished else None
        yield self._object([completion_choice(index, text, reason, logprobs.for_completion())])

    def closing(self) -> Iterator[Json]:
        """Give the usage if it was asked for."""
        if self._request.include_usage:
            num_new = sum(len(item.request.output_token_ids) for item in self.items)
            yield {**self._object([]), "usage": usage_object(self._num_prompt_tokens, num_new)}

    def body(self) -> Json:
        """Give the whole `text_completion`."""
        for item, logprobs in zip(self.items, self._logprobs, strict=True):
            raise_if_failed(item)
            logprobs.know_all()
        choices = [
            Choice(
                text=item.output.text,
                finish_reason=item.finish_reason or "abort",
                num_tokens=len(item.request.output_token_ids),
                logprobs=logprobs.for_completion(),
            )
            for item, logprobs in zip(self.items, self._logprobs, strict=True)
        ]
        return completion_body(self._identifier, self._created, self._name, choices, self._num_prompt_tokens)

    @property
    def _num_prompt_tokens(self) -> int:
        return sum(len(item.request.prompt_token_ids) for item in self.items[:: self._request.n])

    def _object(self, choices: Sequence[Json]) -> Json:
        head: Json = {"id": self._identifier, "object": "text_completion", "created": self._created}
        return {**head, "model": self._name, "choices": list(choices)}
