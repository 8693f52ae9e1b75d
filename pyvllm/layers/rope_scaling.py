"""Which kinds of position scaling the models know, and the numbers of each: read and checked without torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pyvllm.config.model import ModelConfig
from pyvllm.errors import FormatError, ModelLoadError

#: `rope_type` values that `rope_scaling` understands.
SUPPORTED_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """All frequencies divided by `factor` (Chen et al. 2023, position interpolation)."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths divided by `factor`, short ones kept, a linear blend between (Llama 3.1's rule)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): a ramp over the dimensions, and cos and sin times `attention_factor`."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float
    beta_slow: float
    truncate: bool
    """Whether the ends of the ramp are rounded outwards to whole dimensions."""


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling


def rope_scaling(config: ModelConfig) -> RopeScaling | None:
    """Read the position scaling of a model; None when positions are not scaled.

    Raises ModelLoadError for a kind that is not supported, FormatError for a missing or bad number.
    Source of names and defaults: `modeling_rope_utils.py` of transformers 5.
    """
    parameters = config.rope_scaling
    if parameters is None:
        return None
    kind = parameters.get("rope_type", "default")
    get = _Numbers(parameters, config)
    if get.number("partial_rotary_factor", 1.0) != 1.0:
        raise ModelLoadError(
            f"rope parameters: 'partial_rotary_factor' {parameters['partial_rotary_factor']!r} is not supported for "
            f"{config.architecture}; supported: 1.0"
        )
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(get.number("factor"))
    if kind == "llama3":
        return _llama3(get)
    if kind == "yarn":
        return _yarn(get)
    raise ModelLoadError(
        f"rope parameters: rope_type {kind!r} is not supported for {config.architecture}; "
        f"supported: {', '.join(SUPPORTED_ROPE_TYPES)}"
    )


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Typed access to the rope parameters of a config."""

    parameters: Mapping[str, object]
    config: ModelConfig

    def number(self, name: str, default: float | None = None) -> float:
        """Give a number above 0 and below 1e30, or the default for one that is null or absent. Raises FormatError."""
        value = self.parameters.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise FormatError(f"rope parameters: '{name}' must be a positive number, found {value!r}")
        return float(value)

    def original_positions(self) -> int:
        """Give the positions that the model was trained on before scaling; max_position_embeddings by default.

        Raises FormatError for what is no whole number above 0.
        """
        name = "original_max_position_embeddings"
        value = self.number(name, float(self.config.max_position_embeddings))
        if value != int(value):
            raise FormatError(f"rope parameters: '{name}' must be a whole number, found {value!r}")
        return int(value)


def _llama3(get: _Numbers) -> Llama3Scaling:
    low, high = get.number("low_freq_factor"), get.number("high_freq_factor")
    if high <= low:
        raise FormatError(
            f"rope parameters: 'high_freq_factor' ({high}) must be greater than 'low_freq_factor' ({low})"
        )
    return Llama3Scaling(get.number("factor"), low, high, get.original_positions())


def _yarn(get: _Numbers) -> YarnScaling:
    original = get.original_positions()
    factor = get.number("factor", get.config.max_position_embeddings / original)
    truncate = get.parameters.get("truncate", True)
    if not isinstance(truncate, bool):
        raise FormatError(f"rope parameters: 'truncate' must be true or false, found {truncate!r}")
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=_yarn_attention_factor(get, factor),
        beta_fast=get.number("beta_fast", 32.0),
        beta_slow=get.number("beta_slow", 1.0),
        truncate=truncate,
    )


def _yarn_attention_factor(get: _Numbers, factor: float) -> float:
    """The paper's 0.1 ln(s) + 1 unless given; with both `mscale` values, the ratio of the two (DeepSeek's rule)."""
    if get.parameters.get("attention_factor") is not None:
        return get.number("attention_factor")
    if get.parameters.get("mscale") and get.parameters.get("mscale_all_dim"):
        return _mscale(factor, get.number("mscale")) / _mscale(factor, get.number("mscale_all_dim"))
    return _mscale(factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0
