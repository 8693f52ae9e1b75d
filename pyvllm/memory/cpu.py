"""The CPU device: one memory, kept as two named arenas so that a plan for a real device can be carried out anywhere.

What is "on the device" lives in regions that the process map names `vllm:device`, limited to the weight budget; host
weights live in `vllm:host`. Regions are memfd mappings because that is the one kind of anonymous memory that every
Linux names in /proc/self/maps. A tier below memory (weights read from the file as needed) would be a third pool here.
"""

import ctypes
import mmap
import os
import queue
import resource
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyvllm.errors import DoesNotFit
from pyvllm.memory.base import Memory, Pool, Region, Room, Tensor, TensorAt, pack, region_bytes

#: Bytes of a huge page; weights are read a third to twice as fast through them as through pages of 4 KiB.
HUGE_PAGE_BYTES = 2 * 2**20
#: Of Linux 6.1 (include/uapi/asm-generic/mman-common.h); Python's mmap has no name for it.
_MADV_COLLAPSE = 25
#: Huge pages that are made in one call: a closing memory waits for no more than that.
_PIECE_PAGES = 16


class _Mapping:
    """A named anonymous mapping; it is unmapped when the last tensor over it is gone."""

    def __init__(self, name: str, nbytes: int) -> None:
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


class _Ticket:
    """One batch of copies on the memory's thread."""

    def __init__(self, copies: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.copies = copies
        self.done = threading.Event()

    def run(self, is_closing: threading.Event) -> None:
        """Copy, whether or not the memory is being closed: somebody waits."""
        for destination, source in self.copies:
            # memmove through ctypes leaves the GIL and stays on this one thread, unlike a tensor copy, which would
            # take compute threads away from the layer that runs meanwhile.
            ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)
        self.copies = ()
        self.done.set()


class _Collapse:
    """The making of a region's huge pages on the memory's thread."""

    def __init__(self, mapping: _Mapping) -> None:
        self._mapping = mapping

    def run(self, is_closing: threading.Event) -> None:
        """Go through the region piece by piece, until the memory is closed."""
        starts = self._mapping.huge_pages()
        for at in range(0, len(starts), _PIECE_PAGES):
            if is_closing.is_set():
                return
            self._mapping.make_huge(starts[at], min(_PIECE_PAGES, len(starts) - at))


class CpuMemory(Memory):
    """The host's memory under two names, and one thread that copies between them.

    The same thread makes the huge pages of what was allocated, while the weights are read into it: where memory is in
    pieces the system first moves others' pages together, which takes longer than the reading.
    """

    device_name = "cpu"
    torch_device = "cpu"
    is_one_pool = True

    def __init__(self, tensor_at: TensorAt, device_limit: int | None = None) -> None:
        """Start with nothing allocated.

        device_limit: tensor bytes that the device pool may hold; None is no limit but the host's.
        """
        self._tensor_at = tensor_at
        self._device_limit = device_limit
        self._device_bytes = 0
        self._regions: list[Region] = []
        self._work: queue.SimpleQueue[_Ticket | _Collapse | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._is_closing = threading.Event()

    def device_room(self) -> Room:
        """Bytes of host memory: the device has no other."""
        return host_room()

    def host_room(self) -> Room:
        """Bytes under the smallest of the host's limits."""
        return host_room()

    def allocate(self, pool: Pool, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Map regions of `pool` and cut them into tensors."""
        wanted = sum(sizes.values())
        if pool == "device" and self._device_limit is not None and self._device_bytes + wanted > self._device_limit:
            raise DoesNotFit(
                f"device memory is full: {wanted} bytes more were asked for, {self._device_bytes} are taken and "
                f"weight_budget_bytes allows {self._device_limit}"
            )
        tensors: dict[str, Tensor] = {}
        regions = []
        for offsets in pack(sizes):
            nbytes = -(-max(region_bytes(offsets, sizes), 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            try:
                mapping = _Mapping(f"vllm:{pool}", nbytes)
            except OSError as error:
                room = host_room()
                raise DoesNotFit(
                    f"the system refused {nbytes} bytes of {pool} memory ({error.strerror}); {room.nbytes} bytes are "
                    f"free by {room.source}"
                ) from error
            regions.append(Region(pool, mapping.address, nbytes))
            if mapping.huge_pages():
                self._give_work(_Collapse(mapping))
            for name, offset in offsets.items():
                tensors[name] = self._tensor_at(mapping.address + offset, sizes[name], mapping)
        self._regions += regions
        self._device_bytes += wanted if pool == "device" else 0
        return tensors

    def device_view(self, host: Tensor) -> Tensor:
        """The CPU reads host memory as it is."""
        return host

    def start_copy(self, copies: Sequence[tuple[Tensor, Tensor]]) -> object:
        """Queue the copies for the memory's thread.

        Whatever was computed before this call has ended when it returns on a CPU, so the destination is free already.
        """
        ticket = _Ticket(copies)
        self._give_work(ticket)
        return ticket

    def wait_copy(self, ticket: object) -> None:
        """Block until the memory's thread has done the ticket, and what was queued before it."""
        if isinstance(ticket, _Ticket):
            ticket.done.wait()

    def regions(self) -> Sequence[Region]:
        """List the mapped regions of both pools."""
        return tuple(self._regions)

    def close(self) -> None:
        """End the memory's thread after the copies that are queued."""
        self._is_closing.set()
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None
        self._regions.clear()

    def _give_work(self, work: _Ticket | _Collapse) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="vllm-memory", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work.run(self._is_closing)


def release_free_memory() -> None:
    """Give the system back what the C allocator keeps of freed memory; a load frees much and keeps running for long.

    Source: malloc_trim(3). Other C libraries than glibc have no such call and keep little.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def host_room() -> Room:
    """Find the limit that leaves this process the fewest bytes: memory, the cgroup, or the address space.

    Source: proc(5) (MemAvailable, VmSize), cgroups(7) for the two layouts, getrlimit(2).
    """
    rooms = [Room(_meminfo("MemAvailable"), "MemAvailable"), *_cgroup_rooms()]
    for limit, name, used in (
        (resource.RLIMIT_AS, "RLIMIT_AS", "VmSize"),
        (resource.RLIMIT_DATA, "RLIMIT_DATA", "VmData"),
    ):
        soft = resource.getrlimit(limit)[0]
        if soft != resource.RLIM_INFINITY:
            rooms.append(Room(max(soft - _status(used), 0), name))
    return min(rooms, key=lambda room: room.nbytes)


def _table(path: str) -> dict[str, int]:
    """Read lines `Name: 123 kB` as bytes."""
    table = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if words and words[0].isdigit():
            table[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return table


def _meminfo(name: str) -> int:
    return _table("/proc/meminfo").get(name, 0)


def _status(name: str) -> int:
    return _table("/proc/self/status").get(name, 0)


def _cgroup_rooms(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> list[Room]:
    """Room under the memory limits of every cgroup that this process is in, versions 1 and 2."""
    rooms = []
    with suppress(OSError, ValueError):
        for line in membership.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                rooms += _limits(root, path, "memory.max", "memory.current")
            elif "memory" in controllers.split(","):
                rooms += _limits(root / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")
    return rooms


def _limits(root: Path, path: str, limit_file: str, usage_file: str) -> list[Room]:
    rooms = []
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        if root not in (folder, *folder.parents):
            break
        with suppress(OSError, ValueError):
            limit, usage = (int((folder / name).read_text()) for name in (limit_file, usage_file))
            rooms.append(Room(max(limit - usage, 0), "the cgroup's memory limit"))
    return rooms
