"""The live things of the C library by handle."""

from itertools import count
from typing import Generic, TypeVar

from pyvllm.errors import InvalidArgument

T = TypeVar("T")


class Handles(Generic[T]):
    """Live things by handle: a number that no pointer of the process has, and that is never used again."""

    def __init__(self, first: int, what: str, maker: str) -> None:
        """first: a number above 32 bits, so that a handle cut to an int is none, and below Linux's addresses."""
        self._live: dict[int, T] = {}
        self._numbers = count(first, 0x20)
        self._what, self._maker = what, maker

    def add(self, thing: T) -> int:
        """Give a thing its handle."""
        handle = next(self._numbers)
        self._live[handle] = thing
        return handle

    def get(self, handle: int) -> T:
        """Return the thing of a handle, or raise InvalidArgument."""
        thing = self._live.get(handle)
        if thing is None:
            what = self._what
            raise InvalidArgument(
                f"{what} {handle:#x} is not a live {what}: it was freed, or it never came from {self._maker}"
            )
        return thing

    def remove(self, handle: int) -> None:
        """Forget a handle; another thread may have done so."""
        self._live.pop(handle, None)
