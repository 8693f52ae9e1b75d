"""What a device must do for weights: give room for them, in two pools, and copy between the pools.

Nothing here computes. A tensor is made by `tensor_at`, which whoever builds a Memory hands in, so the decisions about
where bytes live can be tested without torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

#: A torch tensor; this layer only passes it on.
Tensor: TypeAlias = Any
#: The two places that a memory has. What is streamed lives in `host` and is copied into buffers on the `device`.
Pool: TypeAlias = Literal["device", "host"]
#: Makes a flat uint8 tensor over `nbytes` at an address and keeps `owner` alive as long as the tensor or a view lives.
TensorAt: TypeAlias = Callable[[int, int, object], Tensor]

#: Every weight starts at a multiple of this many bytes: what CUDA's own allocator gives and vector loads like.
ALIGNMENT = 256
#: A region holds at most this much, or one weight if that is larger: large single allocations fail on fragmented hosts.
REGION_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes are free and which limit says so."""

    nbytes: int
    source: str


@dataclass(frozen=True, slots=True)
class Region:
    """One stretch of memory that holds weights."""

    pool: Pool
    address: int
    nbytes: int
    device_address: int | None = None
    """Of host memory that the device reads: the address it reads it by. Mostly, but not always, the same."""

    def holds(self, address: int, nbytes: int) -> bool:
        """Whether a weight of `nbytes` at `address`, as the host or the device sees it, lies wholly inside."""
        starts = (self.address, self.address if self.device_address is None else self.device_address)
        return any(start <= address and address + nbytes <= start + self.nbytes for start in starts)


class Staging(ABC):
    """Host memory through which one reader thread writes device weights, a piece at a time."""

    tensor: Tensor
    """Flat uint8, written by the CPU."""

    @abstractmethod
    def send(self, destination: Tensor) -> None:
        """Copy the first bytes of `tensor` to a flat uint8 tensor on the device and wait until they are there."""

    @abstractmethod
    def close(self) -> None:
        """Give back what copying needed; the tensor's memory goes with the tensor."""


class Memory(ABC):
    """A device with its memory and the host memory beside it."""

    device_name: str
    """What to call the device in reports."""
    torch_device: str
    """Where torch computes: `cpu` or `cuda:0`."""
    is_one_pool: bool
    """Whether host and device are the same memory, so that offload cannot make the process smaller."""
    allocates_slowly = False
    """Whether host regions take long to allocate, so that filling one should overlap the next one's allocation."""

    @abstractmethod
    def device_room(self) -> Room:
        """Bytes that the device could still hold."""

    @abstractmethod
    def host_room(self) -> Room:
        """Bytes that the host could still hold, under the smallest limit that applies."""

    @abstractmethod
    def allocate(self, pool: Pool, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Give each name a flat uint8 tensor of its exact size, aligned to `ALIGNMENT`.

        Host tensors can be written by the CPU. Raises DoesNotFit when the pool's limit or the system refuses; nothing
        stays allocated then.
        """

    @abstractmethod
    def device_view(self, host: Tensor) -> Tensor:
        """Give the tensor through which the device reads a host tensor in place."""

    @abstractmethod
    def start_copy(self, copies: Sequence[tuple[Tensor, Tensor]]) -> object:
        """Begin copying each (destination, source) once what was computed so far no longer needs the destination."""

    @abstractmethod
    def wait_copy(self, ticket: object) -> None:
        """Hold what is computed from here on until the copies of `ticket` are done."""

    def expect_host(self, nbytes: int) -> None:  # noqa: B027 - most memories have nothing to prepare
        """Hear how many bytes of host weights this load will ask for, before the first is allocated.

        Raises DoesNotFit or ModelLoadError when the machine cannot give them.
        """

    def staging(self, nbytes: int) -> Staging | None:
        """Give one reader thread host memory to write device weights through; None where the CPU writes them itself."""
        return None

    def stage(self, destination: Tensor, view: Tensor) -> None:
        """Copy what a device view shows into a device tensor of its size, in order with what is computed."""
        destination.copy_(view)

    def measures(self) -> dict[str, int]:
        """Give what the device itself says of its memory, for the report; empty where it says nothing."""
        return {}

    @abstractmethod
    def regions(self) -> Sequence[Region]:
        """List the regions that are allocated now."""

    @abstractmethod
    def close(self) -> None:
        """Stop copying. Regions go when the last tensor over them goes."""


def pack(sizes: Mapping[str, int]) -> list[dict[str, int]]:
    """Lay weights out in regions: for each region, the offset of each name in it, in the order given.

    sizes: bytes of each weight. Offsets are multiples of `ALIGNMENT`; a region holds at most `REGION_BYTES`, or one
    weight.
    """
    regions: list[dict[str, int]] = []
    end = 0
    for name, nbytes in sizes.items():
        start = -(-end // ALIGNMENT) * ALIGNMENT
        if not regions or (regions[-1] and start + nbytes > REGION_BYTES):
            regions.append({})
            start = 0
        regions[-1][name] = start
        end = start + nbytes
    return regions


def region_bytes(offsets: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """Bytes that a region laid out by `pack` spans."""
    return max((offset + sizes[name] for name, offset in offsets.items()), default=0)


def overhead_bytes(regions: Iterable[Region], tensor_bytes: int) -> int:
    """Bytes of regions that are no weight's: padding between weights and up to a page at the end."""
    return sum(region.nbytes for region in regions) - tensor_bytes
