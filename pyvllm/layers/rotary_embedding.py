"""Rotary position embedding in the half-split layout of Hugging Face checkpoints (Su et al. 2021)."""

import math

import torch

from pyvllm.config.model import ModelConfig
from pyvllm.layers.rope_scaling import LinearScaling, Llama3Scaling, YarnScaling, rope_scaling


class RotaryEmbedding:
    """Cosines and sines of a step's positions.

    They are computed once a step for the positions at hand and shared by all layers: a table for every position of a
    model with 131072 of them would hold 64 MiB and more that no plan counts, to save four small operations a step.
    """

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        frequencies, self.factor = inverse_frequencies(config)
        self.inv_freq = frequencies.to(device)

    def __call__(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (cos, sin) for `rotate`, each [T, 1, D], of positions [T]; the first half of sin is negated."""
        cos, sin = self.angles(positions)
        return torch.cat((cos, cos), -1)[:, None].to(dtype), torch.cat((-sin, sin), -1)[:, None].to(dtype)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (cos, sin), each [T, D/2] float32, of positions [T]."""
        angles = positions.to(torch.float32)[:, None] * self.inv_freq
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if self.factor == 1.0 else (cos * self.factor, sin * self.factor)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate heads x [T, H, D] by the angles of their tokens; cos and sin as RotaryEmbedding gives them.

    Dimension i is paired with i + D/2; rolling by D/2 brings each next to its partner, and the sign is in `sin`.
    """
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def inverse_frequencies(config: ModelConfig) -> tuple[torch.Tensor, float]:
    """Return ([D/2] float32 radians a position, the factor of cos and sin).

    Computed in float32 in the order in which transformers computes them, so that the angles are the same numbers.
    """
    scaling = rope_scaling(config)
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    wavelengths = config.rope_theta**steps
    if scaling is None:
        return 1.0 / wavelengths, 1.0
    if isinstance(scaling, LinearScaling):
        return 1.0 / wavelengths / scaling.factor, 1.0
    if isinstance(scaling, Llama3Scaling):
        return _llama3(1.0 / wavelengths, scaling), 1.0
    return _yarn(wavelengths, scaling, config), scaling.attention_factor


def _llama3(inv_freq: torch.Tensor, scaling: Llama3Scaling) -> torch.Tensor:
    """Blend by how often a dimension turns within the original context: below low_freq_factor times, scale fully."""
    turns = scaling.original_max_position_embeddings * inv_freq / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * inv_freq / scaling.factor + kept * inv_freq


def _yarn(wavelengths: torch.Tensor, scaling: YarnScaling, config: ModelConfig) -> torch.Tensor:
    """Keep dimensions that turn more than beta_fast times, scale those below beta_slow, ramp between (section 3.2)."""

    def dimension(turns: float) -> float:
        base = scaling.original_max_position_embeddings / (turns * 2 * math.pi)
        return config.head_dim * math.log(base) / (2 * math.log(config.rope_theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    # A ramp of no width would divide by zero.
    width = high - low if high != low else 0.001
    scaled = ((torch.arange(config.head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return 1.0 / (scaling.factor * wavelengths) * scaled + 1.0 / wavelengths * (1 - scaled)
