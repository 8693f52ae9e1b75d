"""The compute kernels of the CPU device: libvllm_kernels.so beside libvllm.so, called through cffi without a copy.

A `Kernels` belongs to one engine. Where the library does not serve the processor, or was not built, there is none, and
the layers compute with torch.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

#: Element types under the numbers of the library (csrc/kernels/kernels.h, which are GGUF's).
TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}
#: Parts of a weight that are stored in unlike types, at most.
MAX_PARTS = 3

_LIBRARY = Path(__file__).parents[1] / "lib" / "libvllm_kernels.so"


def load_kernels(num_threads: int) -> "Kernels | None":
    """Start the kernels with so many threads, the caller's among them; None where this processor has none."""
    try:
        from pyvllm.lib.kernels_abi import ffi
    except ImportError:
        return None
    if not _LIBRARY.exists():
        return None
    library = ffi.dlopen(str(_LIBRARY))
    return Kernels(ffi, library, num_threads) if library.vk_is_supported() else None


class Kernels:
    """The library and its threads. For one thread at a time."""

    def __init__(self, ffi: Any, library: Any, num_threads: int) -> None:
        """Start the threads; they end when this object goes."""
        self.ffi = ffi
        self.library = library
        self.pool = ffi.gc(library.vk_pool_create(num_threads), library.vk_pool_destroy)
        if self.pool == ffi.NULL:
            raise MemoryError("the threads of the CPU kernels could not be started: no memory")

    def pointer(self, tensor: torch.Tensor | None) -> Any:
        """Give a contiguous tensor's address, or NULL. The caller keeps the tensor."""
        return self.ffi.NULL if tensor is None else self.ffi.cast("void *", tensor.data_ptr())

    def set_linear(self, linear: Any, parts: Sequence[torch.Tensor], bias: torch.Tensor | None = None) -> None:
        """Fill a `vk_linear` with a weight: matrices of equal columns, one below the other."""
        for part, tensor in zip(linear.parts, parts, strict=False):
            part.rows, part.num_rows, part.type = self.pointer(tensor), tensor.shape[0], TYPES[tensor.dtype]
        linear.num_parts = len(parts)
        linear.n, linear.k = sum(tensor.shape[0] for tensor in parts), parts[0].shape[1]
        linear.bias = self.pointer(bias)

    def make_linear(self, parts: Sequence[torch.Tensor], bias: torch.Tensor | None = None) -> Any:
        """Make a `vk_linear`; see `set_linear`."""
        linear = self.ffi.new("struct vk_linear *")
        self.set_linear(linear, parts, bias)
        return linear

    def embed(self, table: Any, token_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Look up rows of a `vk_linear`. token_ids: [T] int64, each below its rows. Gives [T, E]."""
        out = torch.empty((len(token_ids), table.k), dtype=dtype)
        ids = self.ffi.cast("int64_t *", token_ids.data_ptr())
        self.library.vk_embed_run(table, TYPES[dtype], ids, len(token_ids), self.pointer(out))
        return out

    def linear(self, linear: Any, x: torch.Tensor) -> torch.Tensor:
        """Project x [T, K], contiguous; [T, N]."""
        out = torch.empty((x.shape[0], linear.n), dtype=x.dtype)
        self.library.vk_linear_run(
            self.pool, linear, TYPES[x.dtype], self.pointer(x), x.shape[0], self.pointer(out)
        )
        return out

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Normalise the rows of x [T, K], contiguous, with a weight of its dtype; [T, K]."""
        out = torch.empty_like(x)
        rows, columns = x.shape
        self.library.vk_norm_run(
            self.pool, self.pointer(weight), eps, TYPES[x.dtype], self.pointer(x), rows, columns, self.pointer(out)
        )
        return out


class KernelStep:
    """What all layers of a step share: its requests' rows and where their cache lies, as a `vk_step`."""

    def __init__(
        self,
        kernels: Kernels,
        cache: tuple[torch.Tensor, torch.Tensor],
        block_size: int,
        spans: Sequence[int],
        block_table: Sequence[int],
    ) -> None:
        """Lay a step out.

        cache: keys and values, [L, N * S, K, D], in the kernels' own order within a layer. spans: for each request its
        first row, the row after its last, the position of its first row, and where its blocks begin in `block_table`.
        """
        ffi, keys = kernels.ffi, cache[0]
        self._kernels = kernels
        self._kept: list[object] = [cache, ffi.new("int64_t[]", spans), ffi.new("int32_t[]", block_table)]
        self.struct = step = ffi.new("struct vk_step *")
        step.pool, step.block_size = kernels.pool, block_size
        step.spans, step.num_spans = ffi.cast("struct vk_span *", self._kept[1]), len(spans) // 4
        step.block_table, step.m = self._kept[2], spans[-3]
        step.keys, step.values = (ffi.cast("char *", tensor.data_ptr()) for tensor in cache)
        step.layer_bytes = keys[0].nbytes

    def rotate_by(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        """Take the step's rotation: [T, D/2] float32, contiguous."""
        self._kept += [cos, sin]
        cast = self._kernels.ffi.cast
        self.struct.cos, self.struct.sin = cast("float *", cos.data_ptr()), cast("float *", sin.data_ptr())
