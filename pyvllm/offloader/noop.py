"""No offload: every weight on the device."""

from contextlib import AbstractContextManager, nullcontext

from pyvllm.config.model import WeightSpec
from pyvllm.offloader.base import Offloader, Place


class NoopOffloader(Offloader):
    """Keeps everything on the device, so that nobody has to test for the absence of an offloader."""

    def consider(self, spec: WeightSpec) -> Place:
        """Leave the weight on the device."""
        return Place.DEVICE

    def why_not(self, spec: WeightSpec) -> str:
        """Say that nobody asked for offload."""
        return "offload is off"


class ResidentLayers:
    """The layer scope of a model whose weights are all in place: nothing to wait for."""

    def __init__(self) -> None:
        """Keep one reusable context for every layer."""
        self._open = nullcontext()

    def is_streamed(self, index: int) -> bool:
        """No layer is."""
        return False

    def layer(self, index: int) -> AbstractContextManager[None]:
        """Hold a decoder layer open."""
        return self._open
