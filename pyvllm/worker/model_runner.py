"""Runs the model over the tokens of a step and gives the logits after each request's newest token."""

from collections.abc import Sequence

import torch

from pyvllm.core.scheduler import Scheduled
from pyvllm.layers.kernels import Kernels
from pyvllm.models.interfaces import AttentionContext, CausalLM, LayerScope
from pyvllm.worker.input_batch import InputBatch, make_batch
from pyvllm.worker.kv_cache import KernelAttention, KVCache, PagedAttention


class ModelRunner:
    """Owns the model, its layer scope and the key-value cache. Not for two threads at once."""

    def __init__(
        self, model: CausalLM, scope: LayerScope, cache: KVCache, device: str, kernels: Kernels | None = None
    ) -> None:
        """Take the parts. device: where the model's tensors are. kernels: what attends, instead of torch."""
        self.model = model
        self.scope = scope
        self.cache = cache
        self._device = device
        self._kernels = kernels

    @torch.inference_mode()
    def execute(self, step: Sequence[Scheduled]) -> torch.Tensor:
        """Compute a step and give the final hidden states [N, E] of the requests whose last token is in it."""
        batch = make_batch(step, self.cache.block_size, self._device)
        attention = self._attention(batch)
        hidden = self.model(batch.token_ids, batch.positions, attention, self.scope)
        if len(batch.last_rows) == hidden.shape[0]:
            return hidden
        return hidden[torch.tensor(batch.last_rows, dtype=torch.int64, device=hidden.device)]

    def _attention(self, batch: InputBatch) -> AttentionContext:
        if self._kernels is None:
            return PagedAttention(self.cache, batch)
        return KernelAttention(self._kernels, self.cache, batch)

    @torch.inference_mode()
    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Give the logits [N, V] of hidden states [N, E]."""
        return self.model.compute_logits(hidden)

    def highest(self, logits: torch.Tensor) -> tuple[list[float], list[int]]:
        """Give each row's highest logit, and the token that has it; of a row with NaN, NaN."""
        if self._kernels is None:
            best, ids = logits.max(dim=-1)
            return best.tolist(), ids.tolist()
        return self._kernels.highest(logits)
