"""The line that shows on a terminal while weights are read; nowhere else is anything shown."""

import os
import time
from collections.abc import Callable
from contextlib import suppress

from pyvllm import logger

#: Hears bytes done, bytes planned and a weight's name; false stops the load.
Progress = Callable[[int, int, str], bool]

_STDERR = 2
#: Seconds between two redraws: a terminal need not be written to more often than it is read.
_INTERVAL_S = 0.1


class ProgressLine:
    """Draws one line again and again, then passes the news on to the caller's own progress function."""

    def __init__(self, caller: Progress | None) -> None:
        """Look once whether stderr is a terminal that this process may draw on."""
        self._caller = caller
        self._draws = logger.writes_to_stderr() and os.isatty(_STDERR)
        self._start = time.monotonic()
        self._drawn = 0.0

    def __call__(self, done: int, planned: int, name: str) -> bool:
        """Show the state and ask the caller whether to go on."""
        now = time.monotonic()
        if self._draws and (done == planned or now - self._drawn > _INTERVAL_S):
            self._drawn = now
            self._write(f"\r\033[Kloading {done:,} of {planned:,} bytes, {now - self._start:.1f} s  {name}")
            if done == planned:
                self._write("\n")
        return self._caller is None or bool(self._caller(done, planned, name))

    def _write(self, text: str) -> None:
        with suppress(OSError):
            os.write(_STDERR, text.encode())
