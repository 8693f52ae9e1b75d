"""What the C library has: engines with their chat, and requests with the thread that delivers their text.

No arguments of C here: callbacks come in as Python functions.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyvllm.entrypoints.openai.chat_options import ChatOptions
from pyvllm.errors import InvalidArgument
from pyvllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyvllm.engine.llm_engine import LLMEngine
    from pyvllm.entrypoints.openai.chat_service import ChatService
    from pyvllm.sample.adjust import LogitsProcessor

#: Hears new text and whether it is the last; false stops.
OnText = Callable[[str, bool], bool]


class LoadedEngine:
    """An engine as the C library has it: with its chat, made when it is first needed, and its submitted requests."""

    def __init__(self, engine: "LLMEngine", chat: ChatOptions, name: str) -> None:
        """name: what its model is called in chat objects."""
        self.engine = engine
        self.name = name
        self._options = chat
        self._chat: ChatService | None = None
        self._lock = threading.Lock()
        self.requests: set[SubmittedRequest] = set()

    @property
    def chat(self) -> "ChatService":
        """The chat over this engine."""
        from pyvllm.entrypoints.openai.chat_service import ChatService

        with self._lock:
            if self._chat is None:
                self._chat = ChatService(self.engine, self._options)
            return self._chat

    def close(self) -> None:
        """Wait for running calls, end submitted requests, and wait until their callbacks have heard of it.

        Raises InvalidArgument from inside a callback.
        """
        requests = list(self.requests)
        if any(request.is_current_thread for request in requests):
            raise InvalidArgument("the engine cannot be freed from inside the callback of one of its requests")
        self.engine.close()
        for request in requests:
            request.join()


class SubmittedRequest:
    """A request that goes on by itself. Its text is delivered on a thread of its own."""

    def __init__(
        self,
        owner: LoadedEngine,
        prompt: str,
        params: SamplingParams,
        on_text: OnText,
        logits_processors: "Sequence[LogitsProcessor]" = (),
    ) -> None:
        """Submit. on_text: hears last with finished true, unless it has stopped the request. Raises InvalidArgument."""
        self._owner = owner
        self._on_text = on_text
        self._news: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
        engine = owner.engine
        with engine.call():
            self._item = engine.submit(
                prompt,
                params,
                lambda text, finished, _: self._news.put((text, finished)),
                logits_processors=logits_processors,
            )
        self.error_text: object | None = None
        """The C string of its error, kept for as long as the handle lives."""
        self._is_done = threading.Event()
        self._thread = threading.Thread(target=self._deliver, name="vllm-request", daemon=True)
        owner.requests.add(self)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the last call of the callback has returned."""
        return self._is_done.is_set()

    @property
    def is_current_thread(self) -> bool:
        """Whether this runs inside the request's callback."""
        return threading.current_thread() is self._thread

    @property
    def error(self) -> str:
        """What went wrong, once it is done; empty otherwise."""
        return str(self._item.error) if self.is_done and self._item.error is not None else ""

    def cancel(self) -> None:
        """Ask for its end."""
        self._owner.engine.cancel(self._item)

    def join(self) -> None:
        """Wait until the callback has heard the last. Raises InvalidArgument inside the callback."""
        if self.is_current_thread:
            raise InvalidArgument("a request cannot be waited for, or freed, from inside its own callback")
        self._thread.join()

    def wait(self) -> None:
        """Wait for the end. Raises the error that the request ended with."""
        self.join()
        if self._item.error is not None:
            raise self._item.error

    def close(self) -> None:
        """Stop it if it still runs, and wait for its callback."""
        if self.is_current_thread:
            self.join()
        self.cancel()
        self.join()

    def _deliver(self) -> None:
        finished = False
        try:
            while not finished:
                text, finished = self._news.get()
                if not self._on_text(text, finished) and not finished:
                    self.cancel()
                    self._item.wait()
                    return
        finally:
            self._is_done.set()
            self._owner.requests.discard(self)
