"""Runs the model over the tokens of a step and gives the logits after each request's newest token."""

from collections.abc import Sequence

import torch

from pyvllm.core.scheduler import Scheduled
from pyvllm.models.interfaces import CausalLM, LayerScope
from pyvllm.worker.input_batch import make_batch
from pyvllm.worker.kv_cache import KVCache, PagedAttention


class ModelRunner:
    """Owns the model, its layer scope and the key-value cache. Not for two threads at once."""

    def __init__(self, model: CausalLM, scope: LayerScope, cache: KVCache, device: str) -> None:
        """Take the parts. device: where the model's tensors are."""
        self.model = model
        self.scope = scope
        self.cache = cache
        self._device = device

    @torch.inference_mode()
    def execute(self, step: Sequence[Scheduled]) -> torch.Tensor:
        """Compute a step and give the final hidden states [N, E] of the requests whose last token is in it."""
        batch = make_batch(step, self.cache.block_size, self._device)
        hidden = self.model(batch.token_ids, batch.positions, PagedAttention(self.cache, batch), self.scope)
        if len(batch.last_rows) == hidden.shape[0]:
            return hidden
        return hidden[torch.tensor(batch.last_rows, dtype=torch.int64, device=hidden.device)]

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Give the logits [N, V] of hidden states [N, E]."""
        return self.model.compute_logits(hidden)
