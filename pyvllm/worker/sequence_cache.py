"""The key-value cache of one sequence, and attention over it."""

import torch

from pyvllm.config.model import ModelConfig
from pyvllm.layers.attention import causal_attention


class SequenceCache:
    """Keys and values of every token so far, for each layer: the attention context of one sequence at a time.

    Memory is reserved for `max_model_len` tokens and touched as the sequence grows.
    """

    def __init__(self, config: ModelConfig, max_model_len: int, dtype: torch.dtype, device: str) -> None:
        """Reserve two [L, S, K, D] tensors: layers, tokens, key-value heads, head size."""
        shape = (config.num_hidden_layers, max_model_len, config.num_key_value_heads, config.head_dim)
        self._keys = torch.empty(shape, dtype=dtype, device=device)
        self._values = torch.empty(shape, dtype=dtype, device=device)
        self._scale = config.head_dim**-0.5
        self.num_tokens = 0
        """Tokens whose keys and values every layer has."""

    def attend(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Store this step's keys and values and attend over all tokens so far.

        q: [T, H, D]; k, v: [T, K, D], already rotated. window: how many tokens a query sees, or None. Gives [T, H, D].
        """
        start, end = self.num_tokens, self.num_tokens + q.shape[0]
        keys, values = self._keys[layer_index], self._values[layer_index]
        keys[start:end] = k
        values[start:end] = v
        return causal_attention(q, keys[:end], values[:end], start, window, self._scale)

    def clear(self) -> None:
        """Forget the sequence."""
        self.num_tokens = 0

    @property
    def nbytes(self) -> int:
        """Bytes reserved."""
        return self._keys.nbytes + self._values.nbytes
