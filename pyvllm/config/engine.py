"""What an engine is asked for: model, device, sizes. The Python face of `vllm_model_params` and its options."""

from dataclasses import dataclass, field

from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import InvalidArgument

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
GGUF_WEIGHTS = ("auto", "expanded")


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
    """Bytes of the key-value cache; 0 is one sequence of `max_model_len`."""
    threads: int | None = None
    """Compute and reader threads; None is the number of usable cores."""
    gguf_weights: str = "auto"
    """`auto` or `expanded`: GGUF weights are expanded to `dtype` at load."""
    offload: OffloadConfig = field(default_factory=OffloadConfig)

    def __post_init__(self) -> None:
        _one_of("device", self.device, DEVICES)
        _one_of("dtype", self.dtype, DTYPES)
        if self.gguf_weights == "stored":
            raise InvalidArgument(
                "gguf_weights 'stored' is not supported yet: weights are expanded to dtype at load; use 'auto' or "
                "'expanded'"
            )
        _one_of("gguf_weights", self.gguf_weights, GGUF_WEIGHTS)
        if self.max_model_len is not None:
            _integer("max_model_len", self.max_model_len, 1)
        if self.threads is not None:
            _integer("threads", self.threads, 1, 1024)
        _integer("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 0)
        utilization = self.gpu_memory_utilization
        if isinstance(utilization, bool) or not isinstance(utilization, int | float) or not 0 < utilization <= 1:
            raise InvalidArgument(f"gpu_memory_utilization must be in (0, 1], got {utilization!r}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidArgument(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def _integer(name: str, value: object, low: int, high: int = 2**63 - 1) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgument(f"{name} must be an integer from {low} to {high}, got {value!r}")
