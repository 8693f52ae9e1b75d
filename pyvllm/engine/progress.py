"""What is shown while weights are read: a bar on a terminal, a log line now and then elsewhere."""

import os
import time
from collections.abc import Callable
from contextlib import suppress

from pyvllm import logger
from pyvllm.engine.exit_guard import renew_exit_guard

#: Hears bytes done, bytes planned and a weight's name; false stops the load.
Progress = Callable[[int, int, str], bool]

_STDERR = 2
_BAR_CELLS = 24
#: Seconds between two redraws: a terminal need not be written to more often than it is read.
_REDRAW_S = 0.1
#: Seconds between two log lines. A load that ends before the first needs none: its end is logged anyway.
LOG_S = 10.0


class ProgressLine:
    """Draws one line again and again, or logs one at times, and passes the news on to the caller's own function."""

    def __init__(self, caller: Progress | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Look once whether stderr is a terminal that this process may draw on. clock: seconds that only grow."""
        self._caller = caller
        self._clock = clock
        self._draws = logger.writes_to_stderr() and os.isatty(_STDERR)
        self._start = clock()
        self._shown = self._start

    def __call__(self, done: int, planned: int, name: str) -> bool:
        """Show the state and ask the caller whether to go on."""
        renew_exit_guard()
        now = self._clock()
        if self._draws and (done == planned or now - self._shown > _REDRAW_S):
            self._shown = now
            end = "\n" if done == planned else ""
            self._write(f"\r\033[K{bar(done, planned)} {self._state(done, planned, now)}  {name}{end}")
        elif not self._draws and now - self._shown >= LOG_S and done < planned:
            self._shown = now
            logger.info(f"{self._state(done, planned, now)}: {name}")
        goes_on = self._caller is None or bool(self._caller(done, planned, name))
        if self._draws and not goes_on and done < planned:
            self._write("\n")
        return goes_on

    def _state(self, done: int, planned: int, now: float) -> str:
        percent = 100 * done // planned if planned else 100
        return f"loading {done:,} of {planned:,} bytes ({percent} %), {now - self._start:.1f} s"

    def _write(self, text: str) -> None:
        with suppress(OSError):
            os.write(_STDERR, text.encode())


def bar(done: int, planned: int) -> str:
    """Draw the share that is done, in ASCII: a log that was meant for a terminal stays readable."""
    cells = _BAR_CELLS * done // planned if planned else _BAR_CELLS
    return f"[{'#' * cells}{'.' * (_BAR_CELLS - cells)}]"
