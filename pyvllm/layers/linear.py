"""Projections and the token embedding."""

import torch
import torch.nn.functional as F
from torch import nn

from pyvllm.layers.kernels import Rows
from pyvllm.layers.parameter import Weights, matrix_rows, parameter, reader, stored_parts


class Linear(nn.Module):
    """y = x W^T + b, with the weight (and bias) taken by name.

    Fused projections (`qkv_proj`, `gate_up_proj`) are one Linear whose rows are the parts, one after the other.
    """

    def __init__(self, weights: Weights, prefix: str, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = parameter(weights, f"{prefix}.weight")
        self.stored = stored_parts(weights, f"{prefix}.weight")
        self.bias = parameter(weights, f"{prefix}.bias") if bias else None
        self.read = reader(weights)

    def rows(self) -> tuple[list[Rows], int]:
        """Describe the weight to the kernels."""
        return matrix_rows(self.weight, self.stored)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Project the last axis of x: [T, ...]."""
        rows = x.shape[0]
        return F.linear(x, self.read(self.weight, rows), self.bias if self.bias is None else self.read(self.bias, rows))


class Embedding(nn.Module):
    """The table of token vectors; a tied model uses the same table as its head."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        super().__init__()
        self.weight = parameter(weights, f"{prefix}.weight")
        self.stored = stored_parts(weights, f"{prefix}.weight")
        self.read = reader(weights)

    def rows(self) -> tuple[list[Rows], int]:
        """Describe the table to the kernels."""
        return matrix_rows(self.weight, self.stored)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Look up [T] token ids; [T, E]. Only their rows are read."""
        return F.embedding(token_ids, self.weight)
