"""The smallest `cpu_offload_gb` that makes a model fit, for texts that teach."""

from collections.abc import Sequence
from decimal import Decimal

from pyvllm.config.model import WeightSpec
from pyvllm.offloader.base import in_plan_order
from pyvllm.offloader.staging import staging_sizes
from pyvllm.offloader.uva import UVAOffloader

_GIB = 1024**3


def smallest_cpu_offload_gb(
    specs: Sequence[WeightSpec], params: Sequence[str], device_bytes: int, *, has_staging: bool = False
) -> str | None:
    """Find the smallest budget that leaves at most `device_bytes` of weights on the device.

    has_staging: whether the device also needs buffers through which host weights pass.
    The answer is the shortest decimal that moves exactly the weights needed and no more, ready to be written into
    `cpu_offload_gb`; None when even all targeted weights would not be enough.
    """
    left = sum(spec.nbytes for spec in specs)
    if left <= device_bytes:
        return "0"
    targets = UVAOffloader(0, params)
    moved, staged = 0, dict.fromkeys(staging_sizes(()), 0)
    for spec in in_plan_order(specs):
        if not targets.is_targeted(spec) or not spec.nbytes:
            continue
        if has_staging:
            staged = {name: max(size, staged[name]) for name, size in staging_sizes([spec]).items()}
        if left - moved - spec.nbytes + sum(staged.values()) <= device_bytes:
            return shortest_gb(moved, moved + spec.nbytes)
        moved += spec.nbytes
    return None


def shortest_gb(low: int, high: int) -> str:
    """Write the shortest decimal number of GiB whose bytes, truncated as the configuration does, lie in (low, high]."""
    for digits in range(30):
        scale = 10**digits
        first = -(-(low + 1) * scale // _GIB)
        # The float of the first step may fall a byte short, and then the next one may still be below `high`.
        for steps in (first, first + 1):
            text = format(Decimal(steps) / scale, "f")
            if low < int(float(text) * _GIB) <= high:
                return text
    return repr((low + 1) / _GIB)
