"""LlamaForCausalLM: the common decoder, with biases where the config asks for them."""

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.layers.decoder_weights import DecoderTraits, decoder_specs


def traits(config: ModelConfig) -> DecoderTraits:
    """Say what Llama adds to the common decoder.

    `sliding_window` acts only on layers that `layer_types` calls sliding: without that list Llama attends to all, as
    in transformers and vLLM.
    """
    sliding = config.sliding_layers or (False,) * config.num_hidden_layers
    return DecoderTraits(
        qkv_bias=config.attention_bias,
        o_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        windows=tuple(config.sliding_window if is_sliding else None for is_sliding in sliding),
    )


def weight_specs(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights in the order in which an offloader considers them."""
    return decoder_specs(config, traits(config), dtype)
