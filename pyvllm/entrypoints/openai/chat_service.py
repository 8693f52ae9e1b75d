"""Chat over one engine: for the C library, for `LLM.chat` and for the server, from any thread but an event loop's.

A request is checked, its messages are rendered and tokenised, and each of its answers becomes a request of the engine.
Nothing here imports torch.
"""

import queue
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from pyvllm.entrypoints.openai.chat_answer import (
    ChoiceStream,
    Head,
    Json,
    ListedCalls,
    NamedCall,
    ReadsCalls,
    chat_choice,
)
from pyvllm.entrypoints.openai.chat_options import ChatOptions
from pyvllm.entrypoints.openai.chat_request import ChatLimits, ChatRequest, PromptOptions, parse_chat
from pyvllm.entrypoints.openai.fields import ApiError, answer_params, bad_request, named_in
from pyvllm.entrypoints.openai.logprobs import LogprobsOf
from pyvllm.entrypoints.openai.protocol import usage_object
from pyvllm.entrypoints.openai.reasoning_parsers import reasoning_format
from pyvllm.entrypoints.openai.tool_parsers import tool_format, tool_schemas
from pyvllm.errors import InvalidArgument, VllmError
from pyvllm.sampling_params import SamplingParams
from pyvllm.tokenizer.chat_template_files import ChatTemplates, load_chat_templates, single_template
from pyvllm.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pyvllm.engine.engine_core import EngineRequest
    from pyvllm.engine.llm_engine import LLMEngine

#: Hears, on the engine's thread, which answer has new text, the text, whether it is the last, and how many tokens.
Hear = Callable[[int, str, bool, int], None]

_VARIABLES = "chat_template_kwargs"


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A request that the engine can take."""

    request: ChatRequest
    prompt: str
    prompt_token_ids: Sequence[int]
    params: SamplingParams


class ChatService:
    """Answers chat requests from one engine."""

    def __init__(self, engine: "LLMEngine", options: ChatOptions | None = None) -> None:
        """Read the model's templates. A template that is damaged is refused when a conversation needs it."""
        self._engine = engine
        options = options or ChatOptions()
        self._tools = tool_format(options.tool_parser)
        self._reasoning = reasoning_format(options.reasoning_parser)
        self._limits = ChatLimits(
            max_model_len=engine.max_model_len,
            scheduling_policy=engine.prepared.cache.scheduling_policy,
            has_tool_parser=self._tools is not None,
        )
        self._templates: ChatTemplates | VllmError
        try:
            self._templates = _templates(engine, options.chat_template)
        except VllmError as error:
            if options.chat_template is not None:
                raise
            self._templates = error

    def render(self, messages: Sequence[Json], tools: Sequence[Json] = (), options: PromptOptions | None = None) -> str:
        """Give the prompt of a conversation. Raises InvalidArgument or FormatError."""
        if isinstance(self._templates, VllmError):
            raise self._templates
        options = options or PromptOptions()
        template = self._templates.choose(bool(tools))
        try:
            template.check_variables(options.variables)
        except InvalidArgument as error:
            raise InvalidArgument(f"{_VARIABLES}: {error}") from error
        return template.render(
            messages,
            self._engine.max_model_len,
            tools,
            add_generation_prompt=options.add_generation_prompt,
            continue_final_message=options.continue_final_message,
            variables=options.variables,
        )

    def parse(self, body: bytes) -> ChatRequest:
        """Check a request. Raises ApiError."""
        return parse_chat(body, self._limits)

    def prepare(self, request: ChatRequest) -> PreparedChat:
        """Render and tokenise. Raises ApiError."""
        try:
            self._engine.check_kind(needs_hidden=False)
            prompt = self.render(request.messages, request.tools, request.prompt)
            # The template writes the special tokens that a prompt begins with.
            ids = self._engine.tokenizer.encode(prompt, add_special_tokens=False)
        except VllmError as error:
            raise bad_request(str(error), named_in(error, "messages")) from error
        room = self._engine.max_model_len - len(ids)
        if room < 1:
            text = f"the conversation has {len(ids)} tokens and max_model_len is {self._engine.max_model_len}"
            raise bad_request(f"{text}: there is no room for an answer", "messages")
        try:
            params = request.params if request.max_tokens else replace(request.params, max_tokens=room)
        except InvalidArgument as error:
            raise bad_request(str(error), "min_tokens") from error
        return PreparedChat(request, prompt, ids, params)

    def submit(self, prepared: PreparedChat, hear: Hear, name: str) -> "ChatAnswer":
        """Queue every answer of a request. Raises ApiError; none stays queued then."""
        request = prepared.request
        choices = [self._choice(prepared) for _ in range(request.n)]
        answer = ChatAnswer(prepared, choices, name, self._engine.tokenizer)
        try:
            for index in range(request.n):
                item = self._engine.submit(
                    prepared.prompt_token_ids,
                    answer_params(prepared.params, index),
                    partial(hear, index),
                    priority=request.priority,
                )
                answer.take(item)
        except InvalidArgument as error:
            self.cancel(answer)
            raise bad_request(str(error), named_in(error, "messages", request.structured_param)) from error
        return answer

    def cancel(self, answer: "ChatAnswer") -> None:
        """Stop what still runs of a request."""
        for item in answer.items:
            self._engine.cancel(item)

    def complete(self, body: bytes, name: str) -> Json:
        """Answer a request and wait for it. name: of the model, if the request has none. Raises ApiError."""
        with self._engine.call():
            request = self.parse(body)
            if request.stream:
                raise bad_request("'stream' is true, but this call gives one object: use the streaming call", "stream")
            answer = self.submit(self.prepare(request), lambda *_: None, request.model or name)
            for item in answer.items:
                item.wait()
            return answer.body()

    def stream(self, body: bytes, name: str) -> Generator[tuple[Json, bool], None, None]:
        """Answer a request in chunks, each with whether it is the last.

        name: of the model, if the request has none. Raises ApiError; closing the iterator stops the request.
        """
        news: queue.SimpleQueue[tuple[int, str, bool, int]] = queue.SimpleQueue()
        with self._engine.call():
            request = self.parse(body)
            answer = self.submit(self.prepare(request), lambda *heard: news.put(heard), request.model or name)
            try:
                for chunk in answer.opening():
                    yield chunk, False
                while not answer.is_complete:
                    chunks = [*answer.hear(*news.get()), *(answer.closing() if answer.is_complete else ())]
                    for number, chunk in enumerate(chunks, 1):
                        yield chunk, answer.is_complete and number == len(chunks)
            finally:
                self.cancel(answer)

    def _choice(self, prepared: PreparedChat) -> ChoiceStream:
        request = prepared.request
        reasoning = None
        if self._reasoning is not None and not request.is_structured:
            reasoning = self._reasoning.parser(prepared.prompt)
        calls: ReadsCalls | None = None
        if request.function is not None:
            calls = NamedCall(request.function)
        elif request.tool_choice == "required":
            calls = ListedCalls()
        elif request.tool_choice == "auto" and self._tools is not None:
            calls = self._tools.parser(tool_schemas(request.tools))
        return ChoiceStream(reasoning, calls, is_parallel=request.parallel_tool_calls)


class ChatAnswer:
    """The answers to one request, as they come."""

    def __init__(
        self, prepared: PreparedChat, choices: Sequence[ChoiceStream], name: str, tokenizer: Tokenizer
    ) -> None:
        self.items: list[EngineRequest] = []
        self._logprobs: list[LogprobsOf] = []
        self._tokenizer = tokenizer
        self._request = prepared.request
        self._num_prompt_tokens = len(prepared.prompt_token_ids)
        self._choices = choices
        self._left = len(choices)
        self._head = Head(identifier=f"chatcmpl-{uuid4().hex}", created=int(time.time()), model=name)

    def take(self, item: "EngineRequest") -> None:
        """Add a submitted item."""
        self._logprobs.append(LogprobsOf(item, self._tokenizer))
        self.items.append(item)

    @property
    def is_stream(self) -> bool:
        """Whether the answer goes out in chunks."""
        return self._request.stream

    @property
    def is_complete(self) -> bool:
        """Whether the last text of every answer was heard."""
        return not self._left

    def opening(self) -> Iterator[Json]:
        """Give the chunks that a stream begins with."""
        for index in range(len(self._choices)):
            yield self._head.chunk(index, {"role": "assistant", "content": ""})

    def hear(self, index: int, text: str, finished: bool, num_tokens: int) -> Iterator[Json]:
        """Take an answer's new text and give the chunks that follow from it. Raises ApiError if it has failed.

        The first of them has the log probabilities of the tokens that have come since the last one.
        """
        choice, item, logprobs = self._choices[index], self.items[index], self._logprobs[index]
        logprobs.know(num_tokens)
        for delta in choice.push(text):
            yield self._head.chunk(index, delta, logprobs=logprobs.for_chat())
        if not finished:
            return
        self._left -= 1
        raise_if_failed(item)
        for delta in choice.finish():
            yield self._head.chunk(index, delta, logprobs=logprobs.for_chat())
        yield self._head.chunk(index, {}, self._finish_reason(choice, item), logprobs.for_chat())

    def closing(self) -> Iterator[Json]:
        """Give the chunk that a stream ends with if its usage was asked for."""
        if self._request.include_usage:
            yield self._head.usage_chunk(self._num_prompt_tokens, self.num_completion_tokens)

    def body(self) -> Json:
        """Give the `chat.completion` object; every item must be done. Raises ApiError if one has failed."""
        choices = []
        for index, (choice, item, logprobs) in enumerate(zip(self._choices, self.items, self._logprobs, strict=True)):
            raise_if_failed(item)
            for _ in (*choice.push(item.output.text), *choice.finish()):
                pass
            logprobs.know_all()
            reason = self._finish_reason(choice, item)
            choices.append(chat_choice(index, choice.message(), reason, logprobs.for_chat()))
        usage = usage_object(self._num_prompt_tokens, self.num_completion_tokens)
        return {**self._head.object("chat.completion", choices), "usage": usage}

    @property
    def num_completion_tokens(self) -> int:
        """Tokens of all answers so far."""
        return sum(len(item.request.output_token_ids) for item in self.items)

    def _finish_reason(self, choice: ChoiceStream, item: "EngineRequest") -> str:
        reason = item.finish_reason or "abort"
        # As in vLLM, the answer to a named function stops; it was not the model that chose to call.
        if reason == "stop" and choice.has_calls and self._request.tool_choice != "named":
            return "tool_calls"
        return reason


def raise_if_failed(item: "EngineRequest") -> None:
    """Raise the ApiError of an answer that could not be computed."""
    if item.error is not None:
        raise ApiError(500, "InternalServerError", str(item.error))


def _templates(engine: "LLMEngine", own: str | None) -> ChatTemplates:
    prepared = engine.prepared
    metadata = prepared.source.gguf_metadata
    directory = prepared.source.path if metadata is None else None
    found = load_chat_templates(directory, metadata, prepared.config.tokenizer_config_path)
    return found if own is None else single_template(own, found, "--chat-template")
