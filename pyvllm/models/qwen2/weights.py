"""Qwen2ForCausalLM: the common decoder with biased queries, keys and values."""

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.layers.decoder_weights import DecoderTraits, decoder_specs


def traits(config: ModelConfig) -> DecoderTraits:
    """Say what Qwen2 adds to the common decoder: biases that no config field turns off, and a window on some layers."""
    return DecoderTraits(qkv_bias=True, windows=tuple(map(config.window, range(config.num_hidden_layers))))


def weight_specs(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights in the order in which an offloader considers them."""
    return decoder_specs(config, traits(config), dtype)
