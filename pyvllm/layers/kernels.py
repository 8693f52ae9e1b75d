"""The compute kernels of the CPU device: libvllm_kernels.so beside libvllm.so, called through cffi without a copy.

A `Kernels` belongs to one engine and computes on the fastest instruction set that the processor has, of those that the
library is compiled for. Where it has none (x86-64 with AVX2, FMA and F16C is the least), or the library was not built,
there is none, and the layers compute with torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pyvllm.layers.kernel_library import INSTRUCTION_SETS, MAX_PARTS, TYPE_NUMBERS, open_library, supported_sets

#: Element types under the library's numbers.
TYPES = {
    torch.float32: TYPE_NUMBERS["F32"],
    torch.float16: TYPE_NUMBERS["F16"],
    torch.bfloat16: TYPE_NUMBERS["BF16"],
}


def load_kernels(num_threads: int, instruction_set: str | None = None) -> "Kernels | None":
    """Start the kernels with so many threads, the caller's among them; None where this processor has none.

    instruction_set: one of INSTRUCTION_SETS, for tests and measurements; None where the processor lacks it. By default
    the fastest that the processor has.
    """
    found = open_library()
    if found is None:
        return None
    sets = supported_sets(found[1])
    chosen = instruction_set or next(iter(sets), None)
    return Kernels(*found, num_threads, chosen) if chosen in sets else None


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a matrix that are stored in one type, one after the other."""

    tensor: torch.Tensor
    """Their bytes, contiguous."""
    type_number: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight as the library takes it, and what keeps its memory."""

    struct: Any
    parts: Sequence[Rows]
    bias: torch.Tensor | None


def plain_rows(matrix: torch.Tensor) -> Rows:
    """Describe a contiguous matrix of numbers."""
    return Rows(matrix, TYPES[matrix.dtype], matrix.shape[0])


class Kernels:
    """The library and its threads. For one thread at a time."""

    def __init__(self, ffi: Any, library: Any, num_threads: int, instruction_set: str) -> None:
        """Start the threads; they end when this object goes. instruction_set: one that this processor has."""
        self.ffi = ffi
        self.library = library
        self.instruction_set = instruction_set
        created = library.vk_pool_create(num_threads, INSTRUCTION_SETS[instruction_set])
        self.pool = ffi.gc(created, library.vk_pool_destroy)
        if self.pool == ffi.NULL:
            raise MemoryError("the threads of the CPU kernels could not be started: no memory")

    def pointer(self, tensor: torch.Tensor | None) -> Any:
        """Give a contiguous tensor's address, or NULL. The caller keeps the tensor."""
        return self.ffi.NULL if tensor is None else self.ffi.cast("void *", tensor.data_ptr())

    def set_linear(self, linear: Any, parts: Sequence[Rows], columns: int, bias: torch.Tensor | None = None) -> None:
        """Fill a `vk_linear` with a weight of so many columns: its parts, one below the other."""
        if not 1 <= len(parts) <= MAX_PARTS:
            raise ValueError(f"a weight has from 1 to {MAX_PARTS} parts of unlike types, found {len(parts)}")
        for part, rows in zip(linear.parts, parts, strict=False):
            part.rows, part.num_rows, part.type = self.pointer(rows.tensor), rows.num_rows, rows.type_number
        linear.num_parts, linear.n, linear.k = len(parts), sum(rows.num_rows for rows in parts), columns
        linear.bias = self.pointer(bias)

    def make_linear(self, parts: Sequence[Rows], columns: int, bias: torch.Tensor | None = None) -> Matrix:
        """Make a weight of its own from parts, as `set_linear` does."""
        linear = self.ffi.new("struct vk_linear *")
        self.set_linear(linear, parts, columns, bias)
        return Matrix(linear, parts, bias)

    def check(self, is_done: int) -> None:
        """Raise MemoryError if a call of the library says that it had no memory to compute in."""
        if not is_done:
            raise MemoryError("the CPU kernels could not get memory for this step; lower max_num_batched_tokens")

    def embed(self, table: Matrix, token_ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Look up rows. token_ids: [T] int64, each below its rows. Gives [T, E]."""
        out = torch.empty((len(token_ids), table.struct.k), dtype=dtype)
        ids = self.ffi.cast("int64_t *", token_ids.data_ptr())
        self.library.vk_embed_run(self.pool, table.struct, TYPES[dtype], ids, len(token_ids), self.pointer(out))
        return out

    def run_layers(self, layers: Any, count: int, step: "KernelStep", x: torch.Tensor) -> None:
        """Compute so many decoder layers, one after the other. layers: `vk_layer *`; x [T, E], contiguous, in place."""
        self.check(self.library.vk_layers_run(layers, count, step.struct, self.pointer(x)))

    def highest(self, rows: torch.Tensor) -> tuple[list[float], list[int]]:
        """Give the greatest number of each row of [N, V], contiguous, and its first place; of a row with NaN, NaN."""
        count, width = rows.shape
        best, places = self.ffi.new("float[]", count), self.ffi.new("int64_t[]", count)
        self.library.vk_highest_run(self.pool, TYPES[rows.dtype], self.pointer(rows), count, width, best, places)
        return list(best), list(places)

    def linear(self, linear: Matrix, x: torch.Tensor) -> torch.Tensor:
        """Project x [T, K], contiguous; [T, N]."""
        out = torch.empty((x.shape[0], linear.struct.n), dtype=x.dtype)
        self.check(
            self.library.vk_linear_run(
                self.pool, linear.struct, TYPES[x.dtype], self.pointer(x), x.shape[0], self.pointer(out)
            )
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
