"""Weights that stay in host memory and are read in place, up to a budget."""

from collections.abc import Sequence

from pyvllm.config.model import WeightSpec
from pyvllm.offloader.base import Offloader, Place


class UVAOffloader(Offloader):
    """Keeps targeted weights on the host while the bytes so far are below the budget.

    The budget is tested before a weight and never against its size, so the last one may overshoot it; a weight that is
    not targeted costs nothing. Source: vLLM 0.33 `offloader/uva.py`.
    """

    def __init__(self, max_bytes: int, params: Sequence[str] = ()) -> None:
        """Start with nothing offloaded. max_bytes: the budget in bytes."""
        super().__init__(params)
        self.max_bytes = max_bytes
        self.offloaded_bytes = 0

    def consider(self, spec: WeightSpec) -> Place:
        """Take the weight to the host while there is budget left."""
        if self.offloaded_bytes >= self.max_bytes or not self.is_targeted(spec):
            return Place.DEVICE
        self.offloaded_bytes += spec.nbytes
        return Place.HOST

    def why_not(self, spec: WeightSpec) -> str:
        """Name the setting that kept the weight on the device."""
        if not self.is_targeted(spec):
            return f"no entry of cpu_offload_params selects it ({', '.join(self.params)})"
        return f"the budget of {self.max_bytes} bytes was reached before it"
