"""What computes on the CPU device, and whether quantised weights stay as they are stored. No torch."""

from collections.abc import Sequence

from pyvllm.config.engine import EngineConfig
from pyvllm.config.model import WeightSpec
from pyvllm.errors import InvalidArgument
from pyvllm.layers.kernel_library import usable_sets
from pyvllm.model_loader.checkpoint import Checkpoint
from pyvllm.model_loader.stored import expansion
from pyvllm.models.registry import ModelEntry

#: Threads from which AVX2 computes sooner with quantised weights as they are stored. A thread expands more than 6 of
#: their elements a nanosecond (benchmarks/NOTES.md), and as bfloat16 these would be 12 GB/s: fewer threads do not
#: outrun the memory that expanded weights are read from. With AVX-512 what stored weights gain at one request is more
#: than what they lose at many (docs/performance.md).
AVX2_THREADS = 4
WHY_EXPANDED = f"faster with AVX2 on fewer than {AVX2_THREADS} threads"

_NO_KERNELS = "the CPU kernels are not built or do not serve this processor (they need x86-64 with AVX2, FMA and F16C)"


def choose_instruction_set(config: EngineConfig, device: str) -> str | None:
    """Choose what the CPU kernels compute on; None where torch computes.

    device: `cpu` or `cuda`. Raises InvalidArgument for `cpu_kernels` that cannot be.
    """
    wanted = config.cpu_kernels
    if device != "cpu":
        if wanted != "auto":
            raise InvalidArgument(f"cpu_kernels {wanted!r} is for device cpu, and the device is {device}; leave it out")
        return None
    if wanted == "torch":
        return None
    usable = usable_sets()
    if wanted == "auto":
        return usable[0] if usable else None
    if wanted not in usable:
        found = f"this processor can use {' and '.join(usable)}" if usable else _NO_KERNELS
        raise InvalidArgument(f"cpu_kernels {wanted!r} cannot be used: {found}; use 'auto'")
    return wanted


def can_stay_stored(
    config: EngineConfig, entry: ModelEntry, checkpoint: Checkpoint, device: str, instruction_set: str | None
) -> bool:
    """Tell whether quantised weights can stay as they are stored, and may.

    Raises InvalidArgument if `gguf_weights` asks for `stored` in vain.
    """
    if config.gguf_weights == "expanded":
        return False
    why_not = ""
    if not checkpoint.is_quantised:
        why_not = "no tensor of the checkpoint is quantised"
    elif not entry.computes_stored:
        why_not = f"the model of {entry.architecture} computes with numbers"
    elif device != "cpu":
        why_not = f"device {device} computes with numbers"
    elif config.cpu_kernels == "torch":
        why_not = "cpu_kernels is 'torch', which computes with numbers"
    elif instruction_set is None:
        why_not = f"torch computes, with numbers: {_NO_KERNELS}"
    if why_not and config.gguf_weights == "stored":
        raise InvalidArgument(f"gguf_weights 'stored' cannot be done: {why_not}; use 'auto' or 'expanded'")
    return not why_not


def prefers_expanded(config: EngineConfig, instruction_set: str | None) -> bool:
    """Tell whether `gguf_weights` leaves the choice open, and expanded weights would be faster."""
    return config.gguf_weights == "auto" and instruction_set == "avx2" and config.num_threads < AVX2_THREADS


def expansion_note(specs: Sequence[WeightSpec], checkpoint: Checkpoint, dtype: str) -> str:
    """Say what quantised tensors grow to; "" where none does."""
    stored, expanded = expansion(specs, checkpoint.tensors)
    if not stored:
        return ""
    return (
        f"quantised tensors of {stored} bytes are expanded to {expanded} bytes of {dtype}: "
        f"{expanded / stored:.2f} times as many"
    )
