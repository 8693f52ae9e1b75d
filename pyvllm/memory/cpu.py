"""The CPU device: one memory, kept as two named arenas so that a plan for a real device can be carried out anywhere.

What is "on the device" lives in regions that the process map names `vllm:device`, limited to the weight budget; host
weights live in `vllm:host`. Regions are memfd mappings because that is the one kind of anonymous memory that every
Linux names in /proc/self/maps. A tier below memory (weights read from the file as needed) would be a third pool here.
"""

import ctypes
import mmap
import resource
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pyvllm.errors import DoesNotFit
from pyvllm.memory.base import Memory, Pool, Region, Room, Tensor, TensorAt, pack, region_bytes
from pyvllm.memory.named_mapping import NamedMapping, PageMaker
from pyvllm.memory.worker import Worker


class _Ticket:
    """One batch of copies on the copying thread."""

    def __init__(self, copies: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.copies = copies
        self.done = threading.Event()

    def run(self) -> None:
        """Copy, and say so."""
        for destination, source in self.copies:
            # memmove through ctypes leaves the GIL and stays on this one thread, unlike a tensor copy, which would
            # take compute threads away from the layer that runs meanwhile.
            ctypes.memmove(destination.data_ptr(), source.data_ptr(), source.nbytes)
        self.copies = ()
        self.done.set()


class CpuMemory(Memory):
    """The host's memory under two names, one thread that copies between them and one that makes huge pages."""

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
        self._copier = Worker("vllm-reader")
        self._page_maker = PageMaker()

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
                mapping = NamedMapping(f"vllm:{pool}", nbytes)
            except OSError as error:
                room = host_room()
                raise DoesNotFit(
                    f"the system refused {nbytes} bytes of {pool} memory ({error.strerror}); {room.nbytes} bytes are "
                    f"free by {room.source}"
                ) from error
            regions.append(Region(pool, mapping.address, nbytes))
            if mapping.huge_pages():
                self._page_maker.take(mapping)
            for name, offset in offsets.items():
                tensors[name] = self._tensor_at(mapping.address + offset, sizes[name], mapping)
        self._regions += regions
        self._device_bytes += wanted if pool == "device" else 0
        return tensors

    def device_view(self, host: Tensor) -> Tensor:
        """The CPU reads host memory as it is."""
        return host

    def start_copy(self, copies: Sequence[tuple[Tensor, Tensor]]) -> object:
        """Queue the copies for the copying thread.

        Whatever was computed before this call has ended when it returns on a CPU, so the destination is free already.
        """
        ticket = _Ticket(copies)
        self._copier.take(ticket.run)
        return ticket

    def wait_copy(self, ticket: object) -> None:
        """Block until the copying thread has done the ticket."""
        if isinstance(ticket, _Ticket):
            ticket.done.wait()

    def regions(self) -> Sequence[Region]:
        """List the mapped regions of both pools."""
        return tuple(self._regions)

    def settle(self) -> None:
        """Wait until the huge pages of what was allocated are made, which goes on after a load: for measurements."""
        self._page_maker.settle()

    def close(self) -> None:
        """End the threads: the copying one after what is queued."""
        self._page_maker.close()
        self._copier.finish()
        self._regions.clear()


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
