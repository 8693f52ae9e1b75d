"""MixtralForCausalLM: Mistral's attention, with a mixture of experts in every layer."""

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.layers.decoder_weights import DecoderTraits, ExpertTraits, decoder_specs


def traits(config: ModelConfig) -> DecoderTraits:
    """Say what Mixtral adds to the common decoder.

    Whatever the config says, the weights of the chosen experts sum to one (Jiang et al. 2024, section 2.1).
    """
    return DecoderTraits(
        windows=(config.sliding_window,) * config.num_hidden_layers,
        experts=ExpertTraits(
            block="block_sparse_moe",
            gate_proj="w1",
            up_proj="w3",
            down_proj="w2",
            intermediate_size=config.intermediate_size,
            norm_topk_prob=True,
        ),
    )


def weight_specs(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights in the order in which an offloader considers them."""
    return decoder_specs(config, traits(config), dtype)
