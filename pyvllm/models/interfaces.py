"""What a model is given and what it must offer: all that an architecture registered from outside has to meet."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from pyvllm.layers.attention import AttentionContext
from pyvllm.layers.parameter import Weights
from pyvllm.layers.scope import LayerScope

__all__ = ["AttentionContext", "CausalLM", "LayerScope", "Weights"]


class CausalLM(Protocol):
    """A decoder language model, built as `Class(config: ModelConfig, weights: Weights)`.

    Each parameter is `nn.Parameter(weights.take(name), requires_grad=False)` under the name its WeightSpec bears, and
    the model allocates no other memory that lasts.
    """

    def __call__(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: AttentionContext, scope: LayerScope
    ) -> torch.Tensor:
        """Run the tokens of one step; token_ids, positions: [T] int64. Returns [T, E] after the final norm."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return [N, V] for hidden states [N, E]."""
        ...

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Give every parameter once, under its WeightSpec's name; with duplicates, a tied one under all its names."""
        ...
