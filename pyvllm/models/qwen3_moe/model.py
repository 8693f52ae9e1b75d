"""The compute of Qwen3MoeForCausalLM: the common decoder with this family's traits."""

from pyvllm.config.model import ModelConfig
from pyvllm.layers.decoder import DecoderForCausalLM
from pyvllm.layers.parameter import Weights
from pyvllm.models.qwen3_moe.weights import traits


class Qwen3MoeForCausalLM(DecoderForCausalLM):
    """Built from a config and the weights of a load; see models/interfaces.py."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, traits(config), weights)
