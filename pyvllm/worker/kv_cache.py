"""The paged key-value cache, and the attention of one step over it."""

import torch

from pyvllm.config.model import ModelConfig
from pyvllm.errors import DoesNotFit
from pyvllm.layers.attention import causal_attention
from pyvllm.layers.kernels import TYPES, Kernels, KernelStep
from pyvllm.worker.input_batch import InputBatch


class KVCache:
    """Keys and values of every layer, in blocks of tokens that the scheduler hands out."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, dtype: torch.dtype, device: str) -> None:
        """Reserve two [L, N * S, K, D] tensors; memory is touched as blocks are first used.

        Raises DoesNotFit when the system refuses.
        """
        self.block_size = block_size
        self.scale = config.head_dim**-0.5
        shape = (config.num_hidden_layers, num_blocks * block_size, config.num_key_value_heads, config.head_dim)
        try:
            self.keys = torch.empty(shape, dtype=dtype, device=device)
            self.values = torch.empty(shape, dtype=dtype, device=device)
        except RuntimeError as error:
            raise DoesNotFit(
                f"the key-value cache of {num_blocks} blocks of {block_size} tokens could not be allocated: {error}; "
                "lower num_blocks, kv_cache_memory_bytes or max_model_len"
            ) from error

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self.keys.nbytes + self.values.nbytes


class PagedAttention:
    """The attention context of one step: every request's tokens see their own sequence and nothing else."""

    def __init__(self, cache: KVCache, batch: InputBatch) -> None:
        """Take the step's layout and find every token's slot in the cache: block id * block size + offset."""
        self._cache = cache
        self._batch = batch
        offsets = torch.arange(cache.block_size)
        device = cache.keys.device
        self._slots, new = [], []
        for span in batch.spans:
            blocks = torch.tensor(span.block_ids, dtype=torch.int64)
            end = span.first_position + span.end - span.start
            slots = (blocks[:, None] * cache.block_size + offsets).view(-1)[:end]
            new.append(slots[span.first_position :])
            self._slots.append(slots.to(device))
        self._new_slots = torch.cat(new).to(device)

    def attend(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Store the step's keys and values in their slots and attend, request by request.

        q: [T, H, D]; k, v: [T, K, D], rotated. window: tokens that a token sees, or None. Gives [T, H, D].
        """
        keys, values = self._cache.keys[layer_index], self._cache.values[layer_index]
        keys.index_copy_(0, self._new_slots, k)
        values.index_copy_(0, self._new_slots, v)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for span, slots in zip(self._batch.spans, self._slots, strict=True):
            rows = slice(span.start, span.end)
            seen = keys.index_select(0, slots), values.index_select(0, slots)
            out[rows] = causal_attention(q[rows], *seen, span.first_position, window, self._cache.scale)
        return out


class KernelAttention:
    """The same on the CPU kernels, which keep a block in an order of their own and attend for all requests at once."""

    def __init__(self, kernels: Kernels, cache: KVCache, batch: InputBatch) -> None:
        """Take the step's layout."""
        self._kernels = kernels
        self._cache = cache
        spans: list[int] = []
        block_table: list[int] = []
        for span in batch.spans:
            spans += (span.start, span.end, span.first_position, len(block_table))
            block_table += span.block_ids
        self.kernel_step = KernelStep(kernels, (cache.keys, cache.values), cache.block_size, spans, block_table)

    def attend(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Store the step's keys and values and attend, for a model that computes its layers itself.

        q: [T, H, D]; k, v: [T, K, D], rotated. window: tokens that a token sees, or None. Gives [T, H, D].
        """
        kernels = self._kernels
        qkv = torch.cat((q, k, v), dim=1).to(self._cache.keys.dtype)
        out = torch.empty(q.shape, dtype=qkv.dtype)
        layer = kernels.ffi.new("struct vk_attention *")
        layer.layer, layer.window = layer_index, window or 0
        layer.num_heads, layer.num_kv_heads, layer.head_dim = q.shape[1], k.shape[1], q.shape[2]
        layer.type, layer.scale = TYPES[qkv.dtype], self._cache.scale
        step = self.kernel_step.struct
        kernels.check(kernels.library.vk_attend_run(layer, step, kernels.pointer(qkv), kernels.pointer(out)))
        return out.to(q.dtype)
