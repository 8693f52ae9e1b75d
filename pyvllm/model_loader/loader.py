"""Carries a plan out: an architecture takes each of its parameters here, and gets it filled, in its planned place."""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np
import torch

from pyvllm.config.model import WeightSpec
from pyvllm.errors import Cancelled, LoaderDefect
from pyvllm.memory.base import Memory
from pyvllm.model_loader.checkpoint import Checkpoint
from pyvllm.model_loader.reader import read_tensor
from pyvllm.offloader.base import Place
from pyvllm.offloader.guard import Live
from pyvllm.offloader.noop import ResidentLayers
from pyvllm.offloader.plan import Plan
from pyvllm.offloader.prefetch import BufferKey, LayerStream, buffer_name

#: Hears bytes done, bytes planned and the weight's name; false cancels the load.
Progress = Callable[[int, int, str], bool]


class Weights:
    """What an architecture is handed to build itself from.

    All memory of the plan is reserved at once, so a load that cannot be carried out fails before a byte is read.
    """

    def __init__(self, plan: Plan, checkpoint: Checkpoint, memory: Memory, progress: Progress | None = None) -> None:
        """Reserve the plan's memory. Raises DoesNotFit when the memory refuses."""
        self._plan = plan
        self._checkpoint = checkpoint
        self._progress = progress or (lambda done, planned, name: True)
        self._placement = {name: item for item in plan.placements for name in (item.spec.name, *item.spec.aliases)}
        self._memory = memory
        resident = {spec.name: spec.nbytes for spec in plan.at(Place.DEVICE)}
        self._device = memory.allocate("device", resident | {buffer.name: buffer.nbytes for buffer in plan.buffers})
        away = [*plan.at(Place.HOST), *plan.at(Place.STREAMED)]
        self._host = memory.allocate("host", {spec.name: spec.nbytes for spec in away})
        self._taken: dict[str, torch.Tensor] = {}
        self._bytes_done = 0
        self._report("")

    def take(self, name: str) -> torch.Tensor:
        """Give the weight of that name, filled from the checkpoint, as a tensor of its planned shape and dtype.

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
            flat = (self._device if item.place is Place.DEVICE else self._host)[spec.name]
            self._fill(spec, _shaped(flat, spec))
            self._taken[spec.name] = _shaped(self._seen_by_device(spec, item.place, flat), spec)
            self._bytes_done += spec.nbytes
            self._report(spec.name)
        return self._taken[spec.name]

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

    def _fill(self, spec: WeightSpec, out: torch.Tensor) -> None:
        rows = out.view(-1, spec.shape[-1]) if len(spec.shape) > 1 else out
        for source in spec.sources:
            part = rows[source.first_row : source.first_row + source.num_rows]
            read_tensor(self._checkpoint, self._checkpoint.tensors[source.tensor], part.view(source.shape))

    def _seen_by_device(self, spec: WeightSpec, place: Place, flat: torch.Tensor) -> torch.Tensor:
        if place is Place.DEVICE:
            return flat
        if place is Place.HOST:
            return self._memory.device_view(flat)
        schedule = self._plan.schedule
        if schedule is None or spec.layer is None:
            raise LoaderDefect(f"weight {spec.name!r} is streamed but stands in no layer of a schedule")
        return self._buffer_of(spec, schedule.layers.index(spec.layer) % schedule.steps)

    def _buffer_of(self, spec: WeightSpec, slot: int) -> torch.Tensor:
        return self._device[buffer_name(slot, BufferKey.of(spec))]

    def _report(self, name: str) -> None:
        if not self._progress(self._bytes_done, self._plan.weight_bytes, name):
            raise Cancelled(
                f"the load was cancelled after {self._bytes_done} of {self._plan.weight_bytes} bytes; all is given back"
            )


def _shaped(flat: torch.Tensor, spec: WeightSpec) -> torch.Tensor:
    if not prod(spec.shape):
        return torch.empty(spec.shape, dtype=getattr(torch, spec.dtype))
    return flat.view(getattr(torch, spec.dtype)).view(spec.shape)


def live(tensor: torch.Tensor) -> Live:
    """Say where a tensor's bytes are."""
    return Live(tensor.data_ptr(), tensor.nbytes)


def live_parameters(model: torch.nn.Module) -> Mapping[str, Live]:
    """Say where a model's parameters are, by name; a parameter that has several names is listed under each."""
    return {name: live(parameter) for name, parameter in model.named_parameters(remove_duplicate=False)}


class _Span:
    """An address range that numpy reads through the array interface; whoever holds the array holds the owner."""

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        self.__array_interface__ = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "version": 3}


def cpu_tensor_at(address: int, nbytes: int, owner: object) -> torch.Tensor:
    """Make a flat uint8 tensor over host memory that keeps `owner` alive."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.asarray(_Span(address, nbytes, owner)))
