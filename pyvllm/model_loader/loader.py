"""Carries a plan out: an architecture takes each of its parameters here, and gets it filled, in its planned place."""

from collections.abc import Callable, Iterable, Mapping
from math import prod

import torch

from pyvllm.config.model import WeightSpec
from pyvllm.errors import Cancelled, LoaderDefect
from pyvllm.layers.kernels import Kernels
from pyvllm.layers.parameter import Read, StoredParts, in_place
from pyvllm.memory.base import Memory
from pyvllm.model_loader.checkpoint import Checkpoint
from pyvllm.model_loader.filling import Filler
from pyvllm.model_loader.host_regions import HostRegions
from pyvllm.model_loader.staged_reads import StagedReads
from pyvllm.offloader.base import Place
from pyvllm.offloader.guard import Live
from pyvllm.offloader.noop import ResidentLayers
from pyvllm.offloader.plan import Plan
from pyvllm.offloader.prefetch import BufferKey, LayerStream, buffer_name
from pyvllm.offloader.staging import MATRIX, VECTOR

#: Hears bytes done, bytes planned and the weight's name; false cancels the load.
Progress = Callable[[int, int, str], bool]


class Weights:
    """What an architecture is handed to build itself from.

    All memory of the plan is asked for at once, so a load that cannot be carried out fails before a byte is read;
    where pinning takes long, a region may still be refused while earlier ones are filled.
    """

    def __init__(
        self,
        plan: Plan,
        checkpoint: Checkpoint,
        memory: Memory,
        progress: Progress | None = None,
        num_readers: int = 1,
        kernels: Kernels | None = None,
    ) -> None:
        """Reserve the plan's memory.

        num_readers: threads that read at most. kernels: what the layers compute with, instead of torch. Raises
        DoesNotFit when the memory is refused.
        """
        self.kernels = kernels
        self._plan = plan
        self._filler = Filler(checkpoint, memory, num_readers)
        self._progress = progress or (lambda done, planned, name: True)
        self._placement = {name: item for item in plan.placements for name in (item.spec.name, *item.spec.aliases)}
        self._memory = memory
        self._taken: dict[str, torch.Tensor] = {}
        self._bytes_done = 0
        resident = {spec.name: spec.nbytes for spec in plan.at(Place.DEVICE)}
        buffers = {buffer.name: buffer.nbytes for buffer in plan.buffers}
        self._device: dict[str, torch.Tensor] = memory.allocate("device", resident | buffers)
        self._host = HostRegions(memory)
        try:
            away = [*plan.at(Place.HOST), *plan.at(Place.STREAMED)]
            self._host.reserve({spec.name: spec.nbytes for spec in away})
            self._staged = self._staged_reads()
            self._report("")
        except BaseException:
            self.close()
            raise

    def take(self, name: str) -> torch.Tensor:
        """Give the weight of that name, filled from the checkpoint, as a tensor of its planned shape and dtype.

        One that is kept as it is stored comes as flat uint8, of which `stored_parts` tells the layout.
        A streamed weight comes as the buffer that holds it while its layer is open. A tied name gives the same tensor.
        Raises LoaderDefect for a name that is not in the plan, Cancelled when the progress callback says so.
        """
        if name not in self._placement:
            raise LoaderDefect(
                f"defect of the loader of {self._plan.architecture}: it asks for {name!r}, which is not planned"
            )
        item = self._placement[name]
        spec = item.spec
        if spec.name not in self._taken:
            is_on_device = item.place is Place.DEVICE
            flat = self._device[spec.name] if is_on_device else self._host[spec.name]
            self._filler.fill(spec, _shaped(flat, spec), is_on_device=is_on_device)
            self._taken[spec.name] = _shaped(self._seen_by_device(spec, item.place, flat), spec)
            self._bytes_done += spec.nbytes
            if len(self._taken) == len(self._plan.placements):
                self._filler.close()
            self._report(spec.name)
        return self._taken[spec.name]

    def stored_parts(self, name: str) -> StoredParts | None:
        """Say how a weight that is kept as it is stored is laid out; None for one of numbers."""
        spec = self._placement[name].spec
        if not spec.is_stored:
            return None
        parts: list[tuple[str, int, int]] = []
        for source in spec.sources:
            kind, rows, nbytes = parts.pop() if parts and parts[-1][0] == source.stored_type else ("", 0, 0)
            parts.append((source.stored_type or kind, rows + source.num_rows, nbytes + source.stored_bytes))
        return StoredParts(spec.shape[-1], tuple(parts))

    def close(self) -> None:
        """End the threads of a load that failed, and let go of its memory."""
        self._filler.close()
        self._host.close()
        self._taken.clear()
        self._device.clear()

    @property
    def read(self) -> Read:
        """What layers read a weight with when they compute."""
        return in_place if self._staged is None else self._staged

    @property
    def taken(self) -> list[str]:
        """Names of the weights that were taken, in that order."""
        return list(self._taken)

    def layer_scope(self) -> LayerStream | ResidentLayers:
        """Give what the model opens its layers with; a stream's first buffers are being filled when this returns."""
        schedule = self._plan.schedule
        if schedule is None:
            return ResidentLayers()
        copies: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for spec in self._plan.at(Place.STREAMED):
            position = schedule.layers.index(spec.layer)
            buffer = self._buffer_of(spec, position % schedule.steps)
            copies.setdefault(position, []).append((buffer, self._host[spec.name]))
        stream = LayerStream(schedule, self._memory, copies)
        stream.start()
        return stream

    def live_buffers(self) -> list[Live]:
        """Say where the static buffers are."""
        return [live(self._device[buffer.name]) for buffer in self._plan.buffers]

    def live_sources(self) -> list[Live]:
        """Say where the host copies of streamed weights are."""
        return [live(self._host[spec.name]) for spec in self._plan.at(Place.STREAMED)]

    def _seen_by_device(self, spec: WeightSpec, place: Place, flat: torch.Tensor) -> torch.Tensor:
        if place is Place.DEVICE:
            return flat
        if place is Place.HOST:
            view: torch.Tensor = self._memory.device_view(flat)
            if self._staged is not None:
                self._staged.add(view)
            return view
        schedule = self._plan.schedule
        if schedule is None or spec.layer is None:
            raise LoaderDefect(f"weight {spec.name!r} is streamed but stands in no layer of a schedule")
        return self._buffer_of(spec, schedule.layers.index(spec.layer) % schedule.steps)

    def _staged_reads(self) -> StagedReads | None:
        buffers = [buffer for buffer in self._plan.buffers if buffer.key.name_in_layer in (MATRIX, VECTOR)]
        if not buffers:
            return None
        return StagedReads(self._memory, {buffer.key.name_in_layer: self._device[buffer.name] for buffer in buffers})

    def _buffer_of(self, spec: WeightSpec, slot: int) -> torch.Tensor:
        return self._device[buffer_name(slot, BufferKey.of(spec))]

    def _report(self, name: str) -> None:
        if not self._progress(self._bytes_done, self._plan.weight_bytes, name):
            raise Cancelled(
                f"the load was cancelled after {self._bytes_done} of {self._plan.weight_bytes} bytes; all is given back"
            )


def _shaped(flat: torch.Tensor, spec: WeightSpec) -> torch.Tensor:
    if spec.is_stored:
        return flat
    if not prod(spec.shape):
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=flat.device)
    return flat.view(getattr(torch, spec.dtype)).view(spec.shape)


def live(tensor: torch.Tensor) -> Live:
    """Say where a tensor's bytes are."""
    return Live(tensor.data_ptr(), tensor.nbytes)


def live_parameters(parameters: Iterable[tuple[str, torch.Tensor]]) -> Mapping[str, Live]:
    """Say where a model's parameters are, by name; a parameter that has several names is listed under each."""
    return {name: live(parameter) for name, parameter in parameters}
