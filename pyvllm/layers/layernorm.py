"""Root-mean-square normalisation."""

import torch
import torch.nn.functional as F
from torch import nn

from pyvllm.layers.parameter import Weights, parameter


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(self, weights: Weights, prefix: str, eps: float) -> None:
        super().__init__()
        self.weight = parameter(weights, f"{prefix}.weight")
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of x; the sum of squares is kept in float32."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
