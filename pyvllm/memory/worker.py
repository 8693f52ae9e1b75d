"""A thread that does one piece of work after another."""

import queue
import threading
from collections.abc import Callable


class Worker:
    """A queue of calls and the thread that makes them; it is started with the first."""

    def __init__(self, name: str) -> None:
        """Start nothing yet. name: of the thread."""
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, call: Callable[[], None]) -> None:
        """Queue a call, which must not raise."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._calls.put(call)

    def finish(self) -> None:
        """End the thread after what is queued. A later call starts another."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # what it holds, memory among it, is not to be kept until the next
