"""What an engine is asked for: model, device, sizes. The Python face of `vllm_model_params` and its options."""

import os
from dataclasses import dataclass, field

from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import InvalidArgument

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
GGUF_WEIGHTS = ("auto", "expanded", "stored")
CPU_KERNELS = ("auto", "avx512", "avx2", "torch")
SCHEDULING_POLICIES = ("fcfs", "priority", "lpm")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Everything that decides how a model is planned, loaded and served.

    Raises InvalidArgument, naming field and value, for what is out of range or not supported.
    """

    model: str
    """Path of a Hugging Face directory or of a single GGUF file."""
    tokenizer_config_path: str | None = None
    """A `tokenizer_config.json` to use instead of the model's own."""
    device: str = "auto"
    """`auto` (accelerator first), `cpu` or `cuda`."""
    dtype: str = "auto"
    """`auto` is the checkpoint's own; bfloat16 for a quantised GGUF."""
    max_model_len: int | None = None
    """Tokens of prompt and answer together; None is the model's own limit."""
    gpu_memory_utilization: float = 0.92
    """Fraction of the device's free bytes that may be used, in (0, 1]."""
    kv_cache_memory_bytes: int = 0
    """Bytes of the key-value cache; 0 sizes it by the device."""
    block_size: int = 32
    """Tokens of a cache block, a multiple of 16."""
    num_blocks: int | None = None
    """Blocks of the cache; None sizes it by `kv_cache_memory_bytes`."""
    max_num_seqs: int = 8
    """Requests computed in one step at most."""
    max_num_batched_tokens: int | None = None
    """Tokens computed in one step at most; None is 2048, or 4096 for a mixture of experts."""
    scheduling_policy: str = "fcfs"
    """`fcfs`, `priority` (smaller numbers first) or `lpm` (longest cached prefix first)."""
    enable_prefix_caching: bool = True
    """Whether requests share the cache blocks of equal prefixes."""
    threads: int | None = None
    """Compute and reader threads; None is the number of usable cores."""
    gguf_weights: str = "auto"
    """Quantised GGUF weights: `stored` keeps their blocks and is refused where that cannot be, `expanded` makes numbers
    of `dtype` of them at load, `auto` takes what is faster and fits. The answers are the same, bit for bit."""
    cpu_kernels: str = "auto"
    """What computes on the CPU device: `avx512` or `avx2`, refused where the processor has not that, or `torch`; `auto`
    is the first of them that can be."""
    offload: OffloadConfig = field(default_factory=OffloadConfig)

    def __post_init__(self) -> None:
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("gguf_weights", self.gguf_weights, GGUF_WEIGHTS)
        _one_of("cpu_kernels", self.cpu_kernels, CPU_KERNELS)
        if self.max_model_len is not None:
            _integer("max_model_len", self.max_model_len, 1)
        if self.threads is not None:
            _integer("threads", self.threads, 1, 1024)
        _integer("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 0)
        _integer("block_size", self.block_size, 16, 2**20)
        if self.block_size % 16:
            raise InvalidArgument(f"block_size must be a multiple of 16, got {self.block_size}")
        if self.num_blocks is not None:
            _integer("num_blocks", self.num_blocks, 1, 2**31)
            if self.kv_cache_memory_bytes:
                raise InvalidArgument(
                    f"num_blocks ({self.num_blocks}) and kv_cache_memory_bytes ({self.kv_cache_memory_bytes}) both "
                    "size the key-value cache; give one"
                )
        _integer("max_num_seqs", self.max_num_seqs, 1, 2**16)
        if self.max_num_batched_tokens is not None:
            _integer("max_num_batched_tokens", self.max_num_batched_tokens, 1, 2**31)
        _one_of("scheduling_policy", self.scheduling_policy, SCHEDULING_POLICIES)
        utilization = self.gpu_memory_utilization
        if isinstance(utilization, bool) or not isinstance(utilization, int | float) or not 0 < utilization <= 1:
            raise InvalidArgument(f"gpu_memory_utilization must be in (0, 1], got {utilization!r}")

    @property
    def num_threads(self) -> int:
        """Compute and reader threads: what was asked for, or the usable cores."""
        return self.threads or len(os.sched_getaffinity(0))


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _integer(name: str, value: object, low: int, high: int = 2**63 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(f"{name} must be an integer from {low} to {high}, got {value!r}")
