"""Layers whose weights wait in host memory and are copied into a few device buffers ahead of use."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from pyvllm.config.model import WeightSpec
from pyvllm.config.offload import PrefetchOffloadConfig
from pyvllm.memory.base import Memory, Tensor
from pyvllm.offloader.base import Offloader, Place


class PrefetchOffloader(Offloader):
    """Streams the last `offload_num_in_group` layers of every `offload_group_size`."""

    def __init__(self, config: PrefetchOffloadConfig) -> None:
        """Take the group pattern and the selectors."""
        super().__init__(config.offload_params)
        self._group_size = config.offload_group_size
        self._num_in_group = config.offload_num_in_group

    def is_selected(self, layer: int) -> bool:
        """Whether a layer belongs to the streamed part of its group."""
        return layer % self._group_size >= self._group_size - self._num_in_group

    def consider(self, spec: WeightSpec) -> Place:
        """Stream the weight if its layer is selected and the selectors admit it."""
        if spec.layer is not None and self.is_selected(spec.layer) and self.is_targeted(spec):
            return Place.STREAMED
        return Place.DEVICE

    def why_not(self, spec: WeightSpec) -> str:
        """Name the setting that kept the weight on the device."""
        if spec.layer is None:
            return "it is outside the decoder layers, and prefetch streams only layers"
        if not self.is_selected(spec.layer):
            return f"its layer is not among the last {self._num_in_group} of each group of {self._group_size}"
        return f"no entry of offload_params selects it ({', '.join(self.params)})"


@dataclass(frozen=True, slots=True)
class BufferKey:
    """What two weights must have in common to use the same buffer. Weights are dense, so shape says stride."""

    name_in_layer: str
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, spec: WeightSpec) -> "BufferKey":
        """Give the key of a streamed weight."""
        return cls(spec.name_in_layer, spec.shape, spec.dtype)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which streamed layer uses which slot, and what is refilled when.

    Positions count only the layers that really stream: position j uses slot j % steps.
    """

    layers: tuple[int, ...]
    """Indices of the streamed decoder layers, ascending."""
    steps: int
    """`offload_prefetch_step`: how many slots there are."""

    def initial(self) -> range:
        """Positions to load before the first step."""
        return range(min(self.steps, len(self.layers)))

    def following(self, position: int) -> int:
        """Position whose weights go into the slot that `position` has just left.

        The next user of that slot in this step, else its first user in the next step (vLLM#54975).
        """
        ahead = position + self.steps
        return ahead if ahead < len(self.layers) else position % self.steps


def buffer_name(slot: int, key: BufferKey) -> str:
    """Name of a static buffer in the memory's tables."""
    return f"buffer {slot}: {key.name_in_layer} {key.dtype} {list(key.shape)}"


class LayerStream:
    """Runs a schedule: opens a layer only when its weights are in their buffers, and refills a slot once it is left."""

    def __init__(
        self, schedule: Schedule, memory: Memory, copies: Mapping[int, Sequence[tuple[Tensor, Tensor]]]
    ) -> None:
        """Take what to copy for each position.

        copies: for each position, (buffer, host weight) pairs of flat uint8 tensors.
        """
        self._schedule = schedule
        self._memory = memory
        self._copies = copies
        self._position = {layer: position for position, layer in enumerate(schedule.layers)}
        self._holds: dict[int, int] = {}
        self._tickets: dict[int, object] = {}
        self.copied_bytes = 0
        """Bytes copied into buffers since the start."""
        self.num_waits = 0
        """Streamed layers that compute came to since the start."""
        self.wait_s = 0.0
        """Seconds that those waits took on the thread that computes."""

    def start(self) -> None:
        """Fill the slots for the first step."""
        for position in self._schedule.initial():
            self._fill(position)

    def is_streamed(self, index: int) -> bool:
        """Whether a decoder layer has weights in buffers."""
        return index in self._position

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """Hold a decoder layer open: its streamed weights are valid inside.

        If the slot does not hold the layer (a step ended early with an exception), it is filled again first, so no
        state needs mending after a failure.
        """
        position = self._position.get(index)
        if position is None:
            yield
            return
        slot = position % self._schedule.steps
        if self._holds.get(slot) != position:
            self._fill(position)
        start = perf_counter()
        self._memory.wait_copy(self._tickets[slot])
        self.num_waits, self.wait_s = self.num_waits + 1, self.wait_s + perf_counter() - start
        yield
        self._fill(self._schedule.following(position))

    def _fill(self, position: int) -> None:
        slot = position % self._schedule.steps
        pairs = self._copies[position]
        self._tickets[slot] = self._memory.start_copy(pairs)
        self._holds[slot] = position
        self.copied_bytes += sum(source.nbytes for _, source in pairs)
