"""Weights on a CUDA device and in the host memory beside it.

Host weights lie in exact-size pinned regions that are mapped into the device. Copies ahead of use run on one stream of
their own and wait for two things only: a copy for compute to have left its buffers, compute for its copy.
Torch is met in functions that are handed in.
"""

import ctypes
import mmap
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyvllm.errors import DoesNotFit, GenerationError, ModelLoadError
from pyvllm.memory.base import Memory, Pool, Region, Room, Staging, Tensor, TensorAt, pack, region_bytes
from pyvllm.memory.cpu import host_room
from pyvllm.memory.cuda import Allocation, CudaError, Cudart
from pyvllm.memory.pinning import Environment, HostAccess, read_environment

#: Gives the stream that torch computes on, as CUDA's handle.
ComputeStream = Callable[[], int]


@dataclass(frozen=True, slots=True)
class TorchSide:
    """All that a CUDA memory needs of torch."""

    tensor_at: TensorAt
    """Makes device tensors, of device addresses."""
    compute_stream: ComputeStream
    host_tensor_at: TensorAt
    """Makes tensors that the CPU reads and writes, of host addresses."""
    device: str = "cuda:0"
    """Where torch computes."""


class PageableMapping:
    """Ordinary host memory, for a machine on which memory cannot or need not be pinned."""

    def __init__(self, nbytes: int) -> None:
        self._map = mmap.mmap(-1, nbytes)
        self._pin = ctypes.c_char.from_buffer(self._map)
        self.address = ctypes.addressof(self._pin)
        self.nbytes = nbytes


@dataclass(frozen=True, slots=True)
class _Held:
    """A region and who keeps it, for as long as a tensor does."""

    region: Region
    owner: weakref.ref[Allocation | PageableMapping]


@dataclass(frozen=True, slots=True)
class _Slot:
    """The two events of a set of buffers that are filled together."""

    free: Any
    """Recorded by compute when it has left the buffers."""
    ready: Any
    """Recorded by the copy stream when the buffers are filled."""


class CudaMemory(Memory):
    """One CUDA device."""

    allocates_slowly = True

    def __init__(
        self, torch_side: TorchSide, device_limit: int | None = None, environment: Environment | None = None
    ) -> None:
        """Start with nothing allocated.

        device_limit: tensor bytes that the device pool may hold; None is no limit but the device's. environment: what
        decides about pinning, read from the process by default. Raises CudaError.
        """
        self._cudart = Cudart()
        self._torch = torch_side
        self._device_limit = device_limit
        self._access = HostAccess(self._cudart.attributes(), read_environment() if environment is None else environment)
        self.device_name = self._cudart.device_name()
        self.torch_device = torch_side.device
        self.is_one_pool = self._access.attributes.is_integrated
        self._free_at_start = self._cudart.free_bytes()
        self._why_pageable: str | None = None
        self._device_bytes = 0
        self._held: list[_Held] = []
        self._lock = threading.Lock()
        self._copy_stream: Any = None
        self._slots: dict[int, _Slot] = {}

    def device_room(self) -> Room:
        """Bytes that `cudaMemGetInfo` calls free; of one pool, the host's: the runtime counts caches as used."""
        return host_room() if self.is_one_pool else Room(self._cudart.free_bytes(), "cudaMemGetInfo")

    def host_room(self) -> Room:
        """Bytes under the smallest of the host's limits."""
        return host_room()

    def expect_host(self, nbytes: int) -> None:
        """Decide, for all host weights of the load at once, whether they are pinned."""
        room = host_room()
        if nbytes > room.nbytes:
            raise DoesNotFit(f"{nbytes} bytes of host weights were planned and {room.source} leaves {room.nbytes}")
        self._why_pageable = self._access.why_not_pinned(nbytes)

    def allocate(self, pool: Pool, sizes: Mapping[str, int]) -> dict[str, Tensor]:
        """Allocate regions of exactly the bytes of their weights, and cut them into tensors."""
        wanted = sum(sizes.values())
        if pool == "device" and self._device_limit is not None and self._device_bytes + wanted > self._device_limit:
            raise DoesNotFit(
                f"device memory is full: {wanted} bytes more were asked for, {self._device_bytes} are taken and "
                f"weight_budget_bytes allows {self._device_limit}"
            )
        make = self._device_region if pool == "device" else self._host_region
        tensor_at = self._torch.tensor_at if pool == "device" else self._torch.host_tensor_at
        tensors: dict[str, Tensor] = {}
        owner: object = None
        try:
            for offsets in pack(sizes):
                address, owner = make(max(region_bytes(offsets, sizes), 1))
                for name, offset in offsets.items():
                    tensors[name] = tensor_at(address + offset, sizes[name], owner)
        except BaseException:
            # Given back now, not when the last frame of the error's traceback goes.
            owner = None
            tensors.clear()
            raise
        self._device_bytes += wanted if pool == "device" else 0
        return tensors

    def _device_region(self, nbytes: int) -> tuple[int, object]:
        try:
            allocation = self._cudart.allocate("device", nbytes)
        except CudaError as error:
            raise self._refused("device", nbytes, error, self.device_room()) from error
        self._hold(Region("device", allocation.address, nbytes), allocation)
        return allocation.address, allocation

    def _host_region(self, nbytes: int) -> tuple[int, object]:
        owner: Allocation | PageableMapping
        if self._why_pageable is not None:
            owner = PageableMapping(nbytes)
            seen_at = owner.address if self._access.attributes.is_coherent else None
        else:
            owner = self._pinned(nbytes)
            can_map = self._access.attributes.can_map_host_memory
            seen_at = self._cudart.device_pointer(owner.address) if can_map else None
        # The system gives whole pages; what is beyond the last weight is counted as overhead.
        region = Region("host", owner.address, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, seen_at)
        self._hold(region, owner)
        return owner.address, owner

    def _hold(self, region: Region, owner: Allocation | PageableMapping) -> None:
        with self._lock:
            self._held = [held for held in self._held if held.owner() is not None]
            self._held.append(_Held(region, weakref.ref(owner)))

    def _pinned(self, nbytes: int) -> Allocation:
        try:
            return self._cudart.allocate("pinned", nbytes)
        except CudaError as error:
            raise self._refused("host", nbytes, error, host_room()) from error

    def _refused(self, pool: Pool, nbytes: int, error: CudaError, room: Room) -> DoesNotFit:
        taken = sum(region.nbytes for region in self.regions() if region.pool == pool)
        what = "device" if pool == "device" else "pinned host"
        return DoesNotFit(
            f"CUDA refused {nbytes} bytes of {what} memory ({error.text}) after {taken} bytes of this load, which are "
            f"given back; {room.nbytes} bytes are free by {room.source}"
        )

    def device_view(self, host: Tensor) -> Tensor:
        """Give the mapped view of a host tensor. Raises ModelLoadError where the device cannot read it in place."""
        address, nbytes = host.data_ptr(), host.nbytes
        if not nbytes:
            return self._torch.tensor_at(0, 0, None)
        region, owner = self._host_region_of(address)
        reason = self._access.why_not_in_place(nbytes)
        seen_at = region.device_address
        if reason is not None or seen_at is None:
            raise ModelLoadError(f"uva: host weights cannot be read in place: {reason or self._why_pageable}")
        return self._torch.tensor_at(seen_at + address - region.address, nbytes, owner)

    def _host_region_of(self, address: int) -> tuple[Region, object]:
        with self._lock:
            for held in self._held:
                region, owner = held.region, held.owner()
                if region.pool == "host" and region.address <= address < region.address + region.nbytes and owner:
                    return region, owner
        raise ModelLoadError(f"address {address:#x} is in no host region of this engine")

    def start_copy(self, copies: Sequence[tuple[Tensor, Tensor]]) -> object:
        """Queue the copies behind what was computed so far, on the copy stream.

        Raises GenerationError while a CUDA graph is being captured: a copy that was begun before the capture could not
        be waited for inside it.
        """
        cudart, compute = self._cudart, self._torch.compute_stream()
        if cudart.is_capturing(compute):
            raise GenerationError(
                "prefetch offload cannot be captured in a CUDA graph: its copies cross from one step to the next; "
                "compute without a graph, or use uva"
            )
        if self._copy_stream is None:
            self._copy_stream = cudart.create_stream()
        slot = self._slot_of(copies)
        cudart.call("cudaEventRecord", slot.free, compute)
        cudart.call("cudaStreamWaitEvent", self._copy_stream, slot.free, 0)
        for destination, source in copies:
            if source.nbytes:
                cudart.copy_to_device(destination.data_ptr(), source.data_ptr(), source.nbytes, self._copy_stream)
        cudart.call("cudaEventRecord", slot.ready, self._copy_stream)
        return slot

    def wait_copy(self, ticket: object) -> None:
        """Let the compute stream wait for the ticket's copies; the CPU goes on."""
        if isinstance(ticket, _Slot):
            self._cudart.call("cudaStreamWaitEvent", self._torch.compute_stream(), ticket.ready, 0)

    def _slot_of(self, copies: Sequence[tuple[Tensor, Tensor]]) -> _Slot:
        """Find the events of the buffers that these copies fill: they are told apart by the first one's address."""
        key = copies[0][0].data_ptr()
        if key not in self._slots:
            self._slots[key] = _Slot(self._cudart.create_event(), self._cudart.create_event())
        return self._slots[key]

    def staging(self, nbytes: int) -> Staging:
        """Give pinned memory with a stream of its own; pageable where nothing may be pinned."""
        may_pin = self._access.why_not_pinned(nbytes) is None
        owner = self._pinned(nbytes) if may_pin else PageableMapping(nbytes)
        return _StreamStaging(self._cudart, self._torch.host_tensor_at(owner.address, nbytes, owner))

    def stage(self, destination: Tensor, view: Tensor) -> None:
        """Copy on the compute stream, so that the copy waits for the buffer's last reader by being behind it."""
        if view.nbytes:
            stream = self._torch.compute_stream()
            self._cudart.copy(destination.data_ptr(), view.data_ptr(), view.nbytes, stream)

    def measures(self) -> dict[str, int]:
        """Give the device's free bytes before the load and now, which other processes change too."""
        return {"device_free_before_bytes": self._free_at_start, "device_free_bytes": self._cudart.free_bytes()}

    def regions(self) -> Sequence[Region]:
        """List the regions of both pools."""
        with self._lock:
            return tuple(held.region for held in self._held if held.owner() is not None)

    def close(self) -> None:
        """Wait for what runs on the device, and give streams and events back."""
        cudart = self._cudart
        cudart.call("cudaDeviceSynchronize")
        if self._copy_stream is not None:
            for slot in self._slots.values():
                cudart.call("cudaEventDestroy", slot.free)
                cudart.call("cudaEventDestroy", slot.ready)
            cudart.call("cudaStreamDestroy", self._copy_stream)
        self._copy_stream = None
        self._slots.clear()
        with self._lock:
            self._held.clear()


class _StreamStaging(Staging):
    """One reader thread's way to the device."""

    def __init__(self, cudart: Cudart, tensor: Tensor) -> None:
        self.tensor = tensor
        self._cudart = cudart
        self._stream = cudart.create_stream()

    def send(self, destination: Tensor) -> None:
        self._cudart.copy_to_device(destination.data_ptr(), self.tensor.data_ptr(), destination.nbytes, self._stream)
        self._cudart.call("cudaStreamSynchronize", self._stream)

    def close(self) -> None:
        self._cudart.call("cudaStreamDestroy", self._stream)
