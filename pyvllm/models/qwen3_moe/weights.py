"""Qwen3MoeForCausalLM: Qwen3's attention, with a mixture of experts in the layers that the config calls sparse."""

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.layers.decoder_weights import DecoderTraits, ExpertTraits, decoder_specs


def traits(config: ModelConfig) -> DecoderTraits:
    """Say what Qwen3Moe adds to the common decoder; its window, when used, is on all layers."""
    return DecoderTraits(
        qkv_bias=config.attention_bias,
        o_bias=config.attention_bias,
        qk_norm=True,
        windows=(config.sliding_window,) * config.num_hidden_layers,
        experts=ExpertTraits(
            block="mlp",
            gate_proj="gate_proj",
            up_proj="up_proj",
            down_proj="down_proj",
            intermediate_size=config.moe_intermediate_size,
            norm_topk_prob=config.norm_topk_prob,
        ),
    )


def weight_specs(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights in the order in which an offloader considers them."""
    return decoder_specs(config, traits(config), dtype)
