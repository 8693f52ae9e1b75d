"""The gated feed-forward: dense, and as a mixture of experts."""

import torch
import torch.nn.functional as F
from torch import nn

from pyvllm.config.model import ModelConfig
from pyvllm.layers.decoder_weights import ExpertTraits
from pyvllm.layers.kernels import Rows
from pyvllm.layers.linear import Linear
from pyvllm.layers.parameter import Weights, matrix_rows, parameter, reader, stored_parts


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """Return silu(gate) * up of [..., 2I] whose first half is the gate; [..., I]. Source: Shazeer 2020, SwiGLU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


class MLP(nn.Module):
    """The dense gated feed-forward."""

    def __init__(self, weights: Weights, prefix: str, *, bias: bool) -> None:
        super().__init__()
        self.gate_up_proj = Linear(weights, f"{prefix}.gate_up_proj", bias=bias)
        self.down_proj = Linear(weights, f"{prefix}.down_proj", bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [T, E]; [T, E]."""
        out: torch.Tensor = self.down_proj(silu_and_mul(self.gate_up_proj(x)))
        return out


class Experts(nn.Module):
    """All experts of a layer, stacked in two weights."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        super().__init__()
        self.w13_weight = parameter(weights, f"{prefix}.w13_weight")
        self.w2_weight = parameter(weights, f"{prefix}.w2_weight")
        self._stored = {leaf: stored_parts(weights, f"{prefix}.{leaf}") for leaf in ("w13_weight", "w2_weight")}
        self.read = reader(weights)

    def rows(self, leaf: str) -> tuple[list[Rows], int]:
        """Describe the rows of all experts to the kernels. leaf: `w13_weight` or `w2_weight`."""
        return matrix_rows(getattr(self, leaf), self._stored[leaf])

    def forward(self, x: torch.Tensor, expert_ids: torch.Tensor, expert_weights: torch.Tensor) -> torch.Tensor:
        """Sum each token's experts, weighted.

        x: [T, E]; expert_ids [T, k] int64; expert_weights [T, k] float32. Returns [T, E].
        The tokens are sorted by expert, so each routed expert's rows are read once, as a view; the rows of the others,
        which may lie in host memory or on no page at all, are not touched.
        """
        num_experts, top_k = self.w13_weight.shape[0], expert_ids.shape[1]
        flat = expert_ids.flatten()
        order = flat.argsort(stable=True)
        tokens = order // top_k
        counts = torch.bincount(flat, minlength=num_experts).tolist()
        rows = x[tokens]
        outputs, start = torch.empty_like(rows), 0
        for expert, count in enumerate(counts):
            if count:
                end = start + count
                gate_up = F.linear(rows[start:end], self.read(self.w13_weight[expert], count))
                outputs[start:end] = F.linear(silu_and_mul(gate_up), self.read(self.w2_weight[expert], count))
                start = end
        # Back in the order of the tokens and then summed: adding in place would add in an order of the device's choice.
        placed = torch.empty_like(outputs)
        placed[order] = outputs
        weighted = placed.view(*expert_ids.shape, -1).mul_(expert_weights[..., None])
        return weighted.sum(dim=1)


class SparseMoeBlock(nn.Module):
    """A router and the experts it chooses for each token."""

    def __init__(self, config: ModelConfig, traits: ExpertTraits, weights: Weights, prefix: str) -> None:
        super().__init__()
        self.gate = Linear(weights, f"{prefix}.gate")
        self.experts = Experts(weights, f"{prefix}.experts")
        self.top_k = config.num_experts_per_tok
        self.norm_topk_prob = traits.norm_topk_prob

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [T, E]; [T, E]. The router's softmax is taken in float32 over all experts, before the choice."""
        probabilities = F.softmax(self.gate(x), dim=-1, dtype=torch.float32)
        expert_weights, expert_ids = probabilities.topk(self.top_k, dim=-1)
        if self.norm_topk_prob:
            expert_weights = expert_weights / expert_weights.sum(dim=-1, keepdim=True)
        out: torch.Tensor = self.experts(x, expert_ids, expert_weights)
        return out
