"""Runs the model over the tokens of one sequence and gives the next token's logits."""

from collections.abc import Sequence

import torch

from pyvllm.models.interfaces import CausalLM, LayerScope
from pyvllm.worker.sequence_cache import SequenceCache


class ModelRunner:
    """Owns the model, its layer scope and the key-value cache. Not for two threads at once."""

    def __init__(
        self, model: CausalLM, scope: LayerScope, cache: SequenceCache, prefill_tokens: int, device: str
    ) -> None:
        """Take the parts. prefill_tokens: prompt tokens computed in one step at most."""
        self.model = model
        self.scope = scope
        self.cache = cache
        self._prefill_tokens = prefill_tokens
        self._device = device

    @torch.inference_mode()
    def begin(self, prompt_token_ids: Sequence[int]) -> torch.Tensor:
        """Compute a new sequence's prompt, in chunks, and give the logits [V] after its last token."""
        self.cache.clear()
        hidden = None
        for start in range(0, len(prompt_token_ids), self._prefill_tokens):
            hidden = self._step(prompt_token_ids[start : start + self._prefill_tokens])
        if hidden is None:
            raise ValueError("a prompt needs at least one token")
        return self._logits(hidden)

    @torch.inference_mode()
    def extend(self, token_id: int) -> torch.Tensor:
        """Compute one more token of the sequence and give the logits [V] after it."""
        return self._logits(self._step([token_id]))

    def _step(self, token_ids: Sequence[int]) -> torch.Tensor:
        first = self.cache.num_tokens
        tokens = torch.tensor(token_ids, dtype=torch.int64, device=self._device)
        positions = torch.arange(first, first + len(token_ids), device=self._device)
        hidden = self.model(tokens, positions, self.cache, self.scope)
        self.cache.num_tokens = first + len(token_ids)
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.model.compute_logits(hidden[-1:])[0]
