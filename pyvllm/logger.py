"""Where pyvllm's lines go: stderr, or the sink that the host set.

Not Python's logging: importing it would cost more than the whole refusal of a bad configuration.
"""

import sys
from collections.abc import Callable

DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40

Sink = Callable[[int, str], None]


def _to_stderr(level: int, text: str) -> None:
    if level > DEBUG and sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


def _always() -> bool:
    return True


def _never() -> bool:
    return False


_sink: Sink = _to_stderr
_sink_is_stderr: Callable[[], bool] = _always


def set_sink(sink: Sink | None, is_stderr: Callable[[], bool] = _never) -> None:
    """Send every later line to `sink(level, text)`; None brings back stderr.

    is_stderr: says whether the sink writes to stderr at the moment, so that a progress line may be drawn there.
    """
    global _sink, _sink_is_stderr
    _sink = sink or _to_stderr
    _sink_is_stderr = is_stderr if sink else _always


def writes_to_stderr() -> bool:
    """Whether lines end on stderr now."""
    return _sink_is_stderr()


def debug(text: str) -> None:
    """Report a detail that only a debugging reader wants; stderr drops it."""
    _sink(DEBUG, f"[vllm.cpp] {text}")


def info(text: str) -> None:
    """Report what was done."""
    _sink(INFO, f"[vllm.cpp] {text}")


def warning(text: str) -> None:
    """Report something that works but that the caller should know."""
    _sink(WARNING, f"[vllm.cpp] {text}")
