"""Keeps a host's exit handler ahead of what torch registers. No torch here: it is set before torch is loaded."""

from collections.abc import Callable

_renew: Callable[[], None] | None = None


def set_exit_guard(renew: Callable[[], None]) -> None:
    """Have `renew` called after everything that may have used a function of torch for the first time.

    The C library registers its handler anew there (csrc/leave.c). A Python program needs none: Python's own atexit
    handlers run before anything of torch is destroyed.
    """
    global _renew
    _renew = renew


def renew_exit_guard() -> None:
    """Call what was set, if anything was."""
    if _renew is not None:
        _renew()
