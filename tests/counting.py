"""Counts what is done, for claims about cost that hold on a machine of any speed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class Lines:
    """Lines of Python that were run; a comprehension's line counts once for each item."""

    def __init__(self) -> None:
        self.count = 0

    def trace(self, frame, event, argument):
        """Count an event; for `sys.settrace`."""
        self.count += event == "line"
        return self.trace


@contextmanager
def counted_lines() -> Iterator[Lines]:
    """Count the lines of what is called inside, on this thread."""
    lines, before = Lines(), sys.gettrace()
    sys.settrace(lines.trace)
    try:
        yield lines
    finally:
        sys.settrace(before)
