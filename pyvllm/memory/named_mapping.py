"""Named mappings of host memory, and the thread that makes their pages huge."""

import ctypes
import mmap
import os
import threading
from functools import partial

from pyvllm.memory.worker import Worker

#: Bytes of a huge page; weights are read a third to twice as fast through them as through pages of 4 KiB.
HUGE_PAGE_BYTES = 2 * 2**20
#: Of Linux 6.1 (include/uapi/asm-generic/mman-common.h); Python's mmap has no name for it.
_MADV_COLLAPSE = 25
#: Huge pages that are made in one call: a closing memory waits for no more than that.
_PIECE_PAGES = 16


class NamedMapping:
    """A named anonymous mapping; it is unmapped when the last tensor over it is gone."""

    def __init__(self, name: str, nbytes: int) -> None:
        """Map so many bytes, whole pages. name: what the process map shows. Raises OSError when the system refuses."""
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, nbytes + HUGE_PAGE_BYTES)
            self._map = mmap.mmap(descriptor, nbytes)
            address = _address_of(self._map)
            if nbytes >= HUGE_PAGE_BYTES and (offset := address % HUGE_PAGE_BYTES):
                # A huge page needs an address and an offset that are equal within it. The address that was just given
                # back is given again, unless another thread is quicker, and then there are no huge pages.
                self._map.close()
                self._map = mmap.mmap(descriptor, nbytes, offset=offset)
        finally:
            os.close(descriptor)
        self._pin = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._pin)
        self._nbytes = nbytes

    def huge_pages(self) -> range:
        """Where the whole huge pages of the mapping begin, in bytes from its start."""
        first = -self.address % HUGE_PAGE_BYTES
        return range(first, self._nbytes - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES)

    def make_huge(self, first: int, count: int) -> None:
        """Have so many huge pages made of small ones where the system can: an old or full one cannot.

        first: where they begin, as `huge_pages` gives it. What has been written into them stays.
        """
        for start in range(first, first + count * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES):
            self._map[start]  # what is not there at all is not collapsed
        # Through ctypes, which leaves the GIL meanwhile.
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(self.address + first),
            ctypes.c_size_t(count * HUGE_PAGE_BYTES),
            ctypes.c_int(_MADV_COLLAPSE),
        )


def _address_of(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


class PageMaker:
    """The thread that makes huge pages, beside the reading of the weights and what computes.

    Where memory is in pieces the system first moves others' pages together, which can take longer than the reading. It
    has the priority of the others: with a lower one it would get no core beside threads that compute, and they would go
    on through small pages.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._worker = Worker("vllm-pages")
        self._is_closing = threading.Event()

    def take(self, mapping: NamedMapping) -> None:
        """Queue a mapping that may have huge pages."""
        self._worker.take(partial(self._make, mapping))

    def settle(self) -> None:
        """Wait until all is done that was queued."""
        self._worker.finish()

    def close(self) -> None:
        """Leave off."""
        self._is_closing.set()
        self.settle()

    def _make(self, mapping: NamedMapping) -> None:
        starts = mapping.huge_pages()
        for at in range(0, len(starts), _PIECE_PAGES):
            if self._is_closing.is_set():
                return
            mapping.make_huge(starts[at], min(_PIECE_PAGES, len(starts) - at))
