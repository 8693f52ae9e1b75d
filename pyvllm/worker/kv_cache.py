"""The paged key-value cache, and the attention of one step over it."""

import torch

from pyvllm.config.model import ModelConfig
from pyvllm.errors import DoesNotFit
from pyvllm.layers.attention import causal_attention
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
        """Take the step's layout."""
        self._cache = cache
        self._batch = batch

    def attend(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Store the step's keys and values in their slots and attend, request by request.

        q: [T, H, D]; k, v: [T, K, D], rotated. window: tokens that a token sees, or None. Gives [T, H, D].
        """
        keys, values = self._cache.keys[layer_index], self._cache.values[layer_index]
        keys.index_copy_(0, self._batch.slot_mapping, k)
        values.index_copy_(0, self._batch.slot_mapping, v)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for span in self._batch.spans:
            rows = slice(span.start, span.end)
            seen = keys.index_select(0, span.slots), values.index_select(0, span.slots)
            out[rows] = causal_attention(q[rows], *seen, span.first_position, window, self._cache.scale)
        return out
