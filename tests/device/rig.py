"""What the device checks run on: a real CUDA device, or the imagined one for a dry run."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes of the checks: for a device, or small enough to try the script itself."""

    copy_bytes: int
    dense_hidden: int
    dense_layers: int
    moe_hidden: int
    moe_layers: int
    moe_experts: int
    num_tokens: int
    architectures: tuple[str, ...]


_ALL = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
    "MixtralForCausalLM",
)
REAL = Scale(2**30, 4096, 12, 2048, 12, 128, 32, _ALL)
DRY = Scale(2**20, 256, 4, 256, 2, 32, 2, ("LlamaForCausalLM", "MixtralForCausalLM"))


class Rig:
    """A device with its runtime, its memory class and its engines."""

    def __init__(self, *, is_dry: bool) -> None:
        self.is_dry = is_dry
        self.scale = DRY if is_dry else REAL
        self.machine: Any = None
        if is_dry:
            from tests.fakecuda.machine import install

            self._build = tempfile.TemporaryDirectory()
            self.machine = install(Path(self._build.name))
        from cuda.bindings import runtime

        self.runtime = runtime
        self.side = self._dry_side() if is_dry else self._real_side()

    def _dry_side(self) -> Any:
        from tests.fakecuda.device_tensor import Device

        self.machine.set_limits(2**34, 2**34)
        return Device(self.machine).torch_side()

    def _real_side(self) -> Any:
        import torch

        from pyvllm.engine.devices import _compute_stream
        from pyvllm.memory.cuda_memory import TorchSide
        from pyvllm.model_loader.tensors import cpu_tensor_at, cuda_tensor_at

        torch.cuda.init()
        torch.backends.cuda.matmul.allow_tf32 = False
        return TorchSide(cuda_tensor_at, _compute_stream, cpu_tensor_at)

    def memory(self) -> Any:
        """A memory with nothing allocated, whatever the environment says about pinning."""
        from pyvllm.memory.cuda_memory import CudaMemory
        from pyvllm.memory.pinning import Environment

        return CudaMemory(self.side, None, Environment())

    def synchronize(self) -> None:
        """Wait for everything on the device."""
        self.runtime.cudaDeviceSynchronize()

    @contextmanager
    def engine(self, model: Path, document: dict | None = None, **settings: Any) -> Iterator[Any]:
        """A loaded engine; closed at the end."""
        from pyvllm.config.engine import EngineConfig
        from pyvllm.config.offload import OffloadConfig
        from pyvllm.engine.llm_engine import LLMEngine
        from pyvllm.memory.cuda_memory import CudaMemory

        offload = OffloadConfig.from_dict(document or {})
        tokens = 64 if self.is_dry else 512
        sizes = {"max_model_len": 128 if self.is_dry else 512, "max_num_batched_tokens": tokens, "max_num_seqs": 32}
        settings = {"device": "cuda", **sizes, **settings}
        make = (lambda limit: CudaMemory(self.side, limit)) if self.is_dry else None
        engine = LLMEngine.load(EngineConfig(model=str(model), offload=offload, **settings), make_memory=make)
        try:
            yield engine
        finally:
            engine.close()

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """A graph being captured from the compute stream."""
        if self.is_dry:
            self.machine.set_capturing(True)
            yield
            self.machine.set_capturing(False)
            return
        import torch

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            mode = self.runtime.cudaStreamCaptureMode.cudaStreamCaptureModeRelaxed
            self.runtime.cudaStreamBeginCapture(stream.cuda_stream, mode)
            try:
                yield
            finally:
                self.runtime.cudaStreamEndCapture(stream.cuda_stream)
                self.runtime.cudaGetLastError()
