"""Counts what a call does, for claims about cost that hold on a machine of any speed."""

import sys


def lines_run(call):
    """Lines of Python that a call goes through on this thread; a comprehension's line counts once for each item."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
