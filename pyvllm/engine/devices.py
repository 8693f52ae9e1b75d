"""The devices that a model can be loaded on, as far as torch comes into it."""

from collections.abc import Callable

import torch

from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.engine.preview import CacheSizes
from pyvllm.memory.base import Memory
from pyvllm.memory.cpu import CpuMemory
from pyvllm.memory.cuda_memory import CudaMemory, TorchSide
from pyvllm.model_loader.tensors import cpu_tensor_at, cuda_tensor_at
from pyvllm.sampling_params import SamplingParams
from pyvllm.worker.model_runner import ModelRunner

#: Builds the memory of a load from the device's limit in bytes, or None for no limit.
MakeMemory = Callable[[int | None], Memory]


def make_memory_of(device: str) -> MakeMemory:
    """Say how the memory of a device is made. device: `cpu` or `cuda`."""
    return cuda_memory if device == "cuda" else cpu_memory


def cpu_memory(device_limit: int | None) -> Memory:
    """Make the memory of the CPU device."""
    return CpuMemory(cpu_tensor_at, device_limit)


def cuda_memory(device_limit: int | None) -> Memory:
    """Make the memory of the CUDA device. Raises CudaError, or ModelLoadError when this torch has no CUDA."""
    return CudaMemory(TorchSide(cuda_tensor_at, _compute_stream, cpu_tensor_at), device_limit)


def _compute_stream() -> int:
    return int(torch.cuda.current_stream(0).cuda_stream)


def release_caches(memory: Memory) -> None:
    """Give back to the device what torch keeps of a closed engine for its next allocation."""
    if memory.torch_device.startswith("cuda"):
        torch.cuda.empty_cache()


def measure_workspace(memory: Memory, runner: ModelRunner, sizes: CacheSizes) -> dict[str, int]:
    """Run one step of the largest size and give the device bytes that it took, as `workspace_bytes`.

    Empty where the device does not say what it has. What the step computes is not used.
    """
    if not memory.measures():
        return {}
    before = memory.device_room().nbytes
    num_tokens = min(sizes.max_num_batched_tokens, sizes.num_blocks * sizes.block_size)
    request = Request(0, [0] * num_tokens, SamplingParams())
    request.block_ids = list(range(-(-num_tokens // sizes.block_size)))
    hidden = runner.execute([Scheduled(request, num_tokens)])
    runner.compute_logits(hidden.expand(min(sizes.max_num_seqs, num_tokens), -1).contiguous())
    # Another process may have given memory back meanwhile.
    return {"workspace_bytes": max(0, before - memory.device_room().nbytes)}
