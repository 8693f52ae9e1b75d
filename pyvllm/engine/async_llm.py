"""An engine for asyncio: what it says is heard on the event loop, and nothing that takes long runs there."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from pyvllm.engine.engine_core import EngineRequest
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.sampling_params import SamplingParams

#: Threads that tokenise prompts and render templates; more than one, so that a slow one does not hold up the others.
NUM_THREADS = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class News:
    """New text of one of the answers that an inbox hears."""

    index: int
    text: str
    finished: bool
    num_tokens: int
    """Tokens of the answer so far."""


class Inbox:
    """Brings what engine requests say to the event loop that the inbox was made on."""

    def __init__(self, *, wants_text: bool = True) -> None:
        """wants_text: false to hear of ends only, which wakes the loop less often; set it before there is any."""
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[News | None] = asyncio.Queue()
        self.wants_text = wants_text

    def hear(self, index: int, text: str, finished: bool, num_tokens: int) -> None:
        """Listen to the index-th request; for the engine's thread."""
        if finished or self.wants_text:
            # The loop may be closed already when the engine drops its last requests.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._queue.put_nowait, News(index, text, finished, num_tokens))

    def stop(self) -> None:
        """End `news` early; on the event loop only."""
        self._queue.put_nowait(None)

    async def news(self, num_requests: int) -> AsyncIterator[News]:
        """Give what is heard, in order, until that many requests have ended or `stop` was called."""
        left = num_requests
        while left:
            news = await self._queue.get()
            if news is None:
                return
            left -= news.finished
            yield news


class AsyncLLM:
    """Submits to an engine from an event loop."""

    def __init__(self, engine: LLMEngine) -> None:
        """engine: stays the caller's to close."""
        self.engine = engine
        self._threads = ThreadPoolExecutor(max_workers=NUM_THREADS, thread_name_prefix="vllm-prepare")

    async def generate(
        self, prompt: str | Sequence[int], params: SamplingParams, *, priority: int = 0
    ) -> AsyncIterator[News]:
        """Answer a prompt, text by text. Closing the iterator, or cancelling its task, stops the request.

        Raises what `LLMEngine.submit` and the computation raise.
        """
        inbox = Inbox()
        listen = partial(inbox.hear, 0)
        call = partial(self.engine.submit, prompt, params, listen, priority=priority)
        item = await self.on_thread(call, self.engine.cancel)
        try:
            async for news in inbox.news(1):
                if item.error is not None:
                    raise item.error
                yield news
        finally:
            self.engine.cancel(item)

    async def embed(self, prompt: str | Sequence[int]) -> EngineRequest:
        """Compute a prompt's last hidden state, and give the finished request that holds it."""
        inbox = Inbox()
        call = partial(self.engine.submit, prompt, SamplingParams(), partial(inbox.hear, 0), needs_hidden=True)
        item = await self.on_thread(call, self.engine.cancel)
        try:
            async for _ in inbox.news(1):
                pass
        finally:
            self.engine.cancel(item)
        if item.error is not None:
            raise item.error
        return item

    async def on_thread(self, call: Callable[[], T], drop: Callable[[T], object]) -> T:
        """Make a call that may take long.

        drop: undoes its result when nobody waits for it any more.
        """
        future = asyncio.get_running_loop().run_in_executor(self._threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            future.add_done_callback(lambda done: None if done.cancelled() or done.exception() else drop(done.result()))
            raise

    def close(self) -> None:
        """Wait for the calls that run and drop those that do not yet. The engine stays open."""
        self._threads.shutdown(wait=True, cancel_futures=True)
