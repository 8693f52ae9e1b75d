"""Qwen3ForCausalLM: the common decoder with normalised queries and keys."""

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.layers.decoder_weights import DecoderTraits, decoder_specs


def traits(config: ModelConfig) -> DecoderTraits:
    """Say what Qwen3 adds to the common decoder."""
    return DecoderTraits(
        qkv_bias=config.attention_bias,
        o_bias=config.attention_bias,
        qk_norm=True,
        windows=tuple(map(config.window, range(config.num_hidden_layers))),
    )


def weight_specs(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights in the order in which an offloader considers them."""
    return decoder_specs(config, traits(config), dtype)
