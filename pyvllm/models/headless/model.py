"""`LlamaModel` and its like: the family's decoder, whose final hidden states are asked for and no logits."""

from dataclasses import replace

from pyvllm.config.model import ModelConfig
from pyvllm.layers.parameter import Weights
from pyvllm.models.llama.model import LlamaForCausalLM
from pyvllm.models.mistral.model import MistralForCausalLM
from pyvllm.models.qwen2.model import Qwen2ForCausalLM
from pyvllm.models.qwen3.model import Qwen3ForCausalLM


def _headless(config: ModelConfig) -> ModelConfig:
    """A tied head takes no weight; it is dropped once the decoder is built."""
    return replace(config, tie_word_embeddings=True)


class LlamaModel(LlamaForCausalLM):
    """Built from a config and the weights of a load; see models/interfaces.py."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(_headless(config), weights)
        del self.lm_head


class MistralModel(MistralForCausalLM):
    """Built from a config and the weights of a load; see models/interfaces.py."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(_headless(config), weights)
        del self.lm_head


class Qwen2Model(Qwen2ForCausalLM):
    """Built from a config and the weights of a load; see models/interfaces.py."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(_headless(config), weights)
        del self.lm_head


class Qwen3Model(Qwen3ForCausalLM):
    """Built from a config and the weights of a load; see models/interfaces.py."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(_headless(config), weights)
        del self.lm_head
