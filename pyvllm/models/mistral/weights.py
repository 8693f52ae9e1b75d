"""MistralForCausalLM: the common decoder with a sliding window."""

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.layers.decoder_weights import DecoderTraits, decoder_specs


def traits(config: ModelConfig) -> DecoderTraits:
    """Say what Mistral adds to the common decoder: `sliding_window`, on all layers unless `layer_types` says which."""
    return DecoderTraits(windows=tuple(map(config.window, range(config.num_hidden_layers))))


def weight_specs(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights in the order in which an offloader considers them."""
    return decoder_specs(config, traits(config), dtype)
