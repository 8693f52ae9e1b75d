"""Attention: what a layer asks of the key-value cache's owner, and the computation for one sequence."""

from typing import Protocol

import torch
import torch.nn.functional as F

from pyvllm.layers.kernels import KernelStep


class AttentionContext(Protocol):
    """The attention of one step; it owns the key-value cache and knows the step's sequences."""

    def attend(
        self, layer_index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Store a layer's new keys and values, and attend over all that each token may see.

        q: [T, H, D], k and v: [T, K, D], the step's tokens, q and k already rotated; views of one buffer that the
        caller does not use again. window: tokens (the newest included) that a token sees, or None for all.
        Returns [T, H, D]; scores are scaled by 1 / sqrt(D).
        """
        ...


def kernel_step_of(attention: AttentionContext) -> KernelStep | None:
    """Give the step as the kernels take it, if the cache is theirs; then a layer may attend without `attend`."""
    step: KernelStep | None = getattr(attention, "kernel_step", None)
    return step


def causal_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, first_position: int, window: int | None, scale: float
) -> torch.Tensor:
    """Attend from the newest tokens of one sequence over the whole of it.

    q: [T, H, D], the tokens at positions first_position to first_position + T - 1; k, v: [S, K, D], positions 0 to
    S - 1 with S = first_position + T and H a multiple of K. A token sees itself and what is before it, with a window
    only the last `window` of these. Returns [T, H, D], contiguous.
    Source: Vaswani et al. 2017, section 3.2; grouped heads: Ainslie et al. 2023; window: Mistral 7B, section 2.
    """
    if window is not None and window < k.shape[0]:
        # Keys that even the first of the new tokens does not see are left out, so one new token needs no mask.
        oldest = max(0, first_position - window + 1)
        k, v, first_position = k[oldest:], v[oldest:], first_position - oldest
    if q.shape[0] == 1:
        return _attend_one(q, k, v, scale)
    mask = None
    is_windowed = window is not None and window < k.shape[0]
    if first_position or is_windowed:
        mask = _visible(q.shape[0], k.shape[0], first_position, window, q.device)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return out[0].transpose(0, 1).contiguous()


def _attend_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """One token sees all keys: the query heads of a group become rows of one product, and no key is repeated."""
    rows = q.reshape(1, k.shape[1], -1, q.shape[2])
    out = F.scaled_dot_product_attention(rows, k.transpose(0, 1)[None], v.transpose(0, 1)[None], scale=scale)
    return out.reshape(q.shape)


def _visible(queries: int, keys: int, first: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Return [T, S] bool: which key each query sees, the first query standing at key `first`."""
    everything = torch.ones(queries, keys, dtype=torch.bool, device=device)
    visible = everything.tril(first)
    return visible if window is None else visible.triu(first - window + 1)
