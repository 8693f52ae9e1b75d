"""pyvllm: language models larger than the device, with their weights in host memory.

The public names resolve on first use, so that importing the package loads neither torch nor a library.
"""

__version__ = "0.21.0"

_PUBLIC = {
    "LLM": "pyvllm.entrypoints.llm",
    "OffloadConfig": "pyvllm.config.offload",
    "SamplingParams": "pyvllm.sampling_params",
    "VllmError": "pyvllm.errors",
    "InvalidArgument": "pyvllm.errors",
    "ModelLoadError": "pyvllm.errors",
    "GenerationError": "pyvllm.errors",
    "Cancelled": "pyvllm.errors",
}
__all__ = [*_PUBLIC, "__version__"]


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'pyvllm' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_PUBLIC[name]), name)
