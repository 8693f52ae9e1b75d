"""Requests between the event loop and the engine.

The engine computes on its own thread and answers many requests in one step; bodies are read, templates rendered and
prompts tokenised on others, so the event loop never waits for any of them. A request whose client has gone stops after
the step that runs.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from pyvllm import logger
from pyvllm.engine.async_llm import AsyncLLM, Inbox
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.entrypoints.openai.answering import Admit, Answering, Listen, open_chat, open_completion
from pyvllm.entrypoints.openai.chat_answer import Json
from pyvllm.entrypoints.openai.chat_options import ChatOptions
from pyvllm.entrypoints.openai.chat_service import ChatService, Hear
from pyvllm.entrypoints.openai.embedding import open_embedding
from pyvllm.entrypoints.openai.fields import ApiError
from pyvllm.entrypoints.openai.metrics import Metrics

#: HTTP requests that run or wait; each may hold a body of 16 MiB.
MAX_WAITING = 256

#: Names of unknown request fields that are worth a line each; a client could invent more without end.
MAX_NAMES_LOGGED = 32


#: Reads and submits a request, on a thread that may take its time. Raises ApiError.
Open = Callable[[Admit, Listen], Answering]


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer in parts. Whoever takes it closes it, heard or not."""

    events: AsyncIterator[Json]
    close: Callable[[], None]


class Service:
    """Answers requests from one engine."""

    def __init__(self, engine: LLMEngine, names: Sequence[str], chat: ChatOptions | None = None) -> None:
        """engine: closed by `close`. names: what the model is called, the first one in answers."""
        self.names = tuple(names)
        self.max_model_len = engine.max_model_len
        self._engine = engine
        self._llm = AsyncLLM(engine)
        self._chat = ChatService(engine, chat)
        self.metrics = Metrics(engine, names[0])
        self._created = int(time.time())
        self._waiting: set[asyncio.Event] = set()
        self._names_logged: set[str] = set()

    def models(self) -> Json:
        """Return the body of `/v1/models`."""
        entry = {"object": "model", "created": self._created, "owned_by": "pyvllm", "max_model_len": self.max_model_len}
        return {"object": "list", "data": [{"id": name, **entry} for name in self.names]}

    async def offload_report(self, *, with_names: bool) -> Json:
        """Return the body of `/offload`: the offload report of `docs/plan.md`, recounted now.

        with_names: also list every weight, under `placements`; it is left out otherwise.
        """
        report = await asyncio.to_thread(self._engine.offload_report)
        return report if with_names else {key: value for key, value in report.items() if key != "placements"}

    async def complete(self, body: bytes, gone: asyncio.Event) -> Json | Stream:
        """Answer a request to `/v1/completions`.

        gone: set when nobody waits for the answer any more. Raises ApiError for whatever is not an answer.
        """
        return await self._answer(partial(open_completion, self._engine, body), gone)

    async def chat(self, body: bytes, gone: asyncio.Event) -> Json | Stream:
        """Answer a request to `/v1/chat/completions`. Arguments and errors are those of `complete`."""
        return await self._answer(partial(open_chat, self._chat, body), gone)

    async def embed(self, body: bytes, gone: asyncio.Event) -> Json | Stream:
        """Answer a request to `/v1/embeddings`. Arguments and errors are those of `complete`."""
        return await self._answer(partial(open_embedding, self._engine, body), gone)

    def abort(self) -> None:
        """Stop every request, running or waiting; from the event loop only."""
        for gone in self._waiting:
            gone.set()

    def close(self) -> None:
        """Drop what is still waiting and free the engine."""
        self._llm.close()
        self._engine.close()

    async def _answer(self, open_request: Open, gone: asyncio.Event) -> Json | Stream:
        if len(self._waiting) >= MAX_WAITING:
            raise ApiError(503, "ServiceUnavailableError", f"{MAX_WAITING} requests are waiting; try again later")
        self._waiting.add(gone)
        inbox = Inbox()
        stopper = asyncio.create_task(_stop_when(gone, inbox))

        def listen(wants_text: bool) -> Hear:
            inbox.wants_text = wants_text
            return self.metrics.follow(inbox.hear)

        def close(answer: Answering | None = None) -> None:
            stopper.cancel()
            self._waiting.discard(gone)
            if answer is not None:
                self._cancel(answer)

        try:
            answer = await self._llm.on_thread(partial(open_request, self._admit, listen), self._cancel)
        except BaseException:
            close()
            raise
        if answer.is_stream:
            return Stream(self._events(answer, inbox), partial(close, answer))
        try:
            async for _ in inbox.news(len(answer.items)):
                pass
            return self._body(answer)
        finally:
            close(answer)

    async def _events(self, answer: Answering, inbox: Inbox) -> AsyncIterator[Json]:
        """Give the parts of a stream; what goes wrong in its midst is its last part."""
        try:
            for part in answer.opening():
                yield part
            async for news in inbox.news(len(answer.items)):
                for part in answer.hear(news.index, news.text, news.finished, news.num_tokens):
                    yield part
            _raise_if_stopped(answer)
            self.metrics.count(answer.items)
            for part in answer.closing():
                yield part
        except ApiError as error:
            yield error.body()

    def _body(self, answer: Answering) -> Json:
        _raise_if_stopped(answer)
        self.metrics.count(answer.items)
        return answer.body()

    def _cancel(self, answer: Answering) -> None:
        for item in answer.items:
            self._engine.cancel(item)

    def _admit(self, model: str | None, unknown: Sequence[str]) -> str:
        if model is not None and model not in self.names:
            text = f"the model {model!r:.200} does not exist; served: {', '.join(self.names)}"
            raise ApiError(404, "NotFoundError", text, "model")
        for name in unknown:
            if name not in self._names_logged and len(self._names_logged) < MAX_NAMES_LOGGED:
                self._names_logged.add(name)
                logger.warning(f"server: unknown request field {name!r:.80} is ignored")
        return model or self.names[0]


async def _stop_when(gone: asyncio.Event, inbox: Inbox) -> None:
    await gone.wait()
    inbox.stop()


def _raise_if_stopped(answer: Answering) -> None:
    # Not is_done: the last text is heard a moment before that is set.
    if any(item.finish_reason is None and item.error is None for item in answer.items):
        raise ApiError(503, "ServiceUnavailableError", "the request was stopped: the server is shutting down")
