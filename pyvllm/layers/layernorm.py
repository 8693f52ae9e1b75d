"""Root-mean-square normalisation."""

import torch
import torch.nn.functional as F
from torch import nn

from pyvllm.layers.parameter import Weights, parameter, reader


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last axis.

    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(self, weights: Weights, prefix: str, eps: float) -> None:
        super().__init__()
        self.weight = parameter(weights, f"{prefix}.weight")
        self.eps = eps
        self.read = reader(weights)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis of x; the sum of squares is kept in float32."""
        weight = self.read(self.weight, x.numel() // x.shape[-1])
        return F.rms_norm(x, weight.shape, weight, self.eps)
