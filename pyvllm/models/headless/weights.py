"""The weights of `LlamaModel` and its like: those of the family's `...ForCausalLM`, without the head."""

from collections.abc import Callable
from dataclasses import replace

from pyvllm.config.model import ModelConfig, WeightSpec
from pyvllm.models.llama import weights as llama_weights
from pyvllm.models.mistral import weights as mistral_weights
from pyvllm.models.qwen2 import weights as qwen2_weights
from pyvllm.models.qwen3 import weights as qwen3_weights


def llama(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights of LlamaModel in the order in which an offloader considers them."""
    return _headless(llama_weights.weight_specs, config, dtype)


def mistral(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights of MistralModel in the order in which an offloader considers them."""
    return _headless(mistral_weights.weight_specs, config, dtype)


def qwen2(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights of Qwen2Model in the order in which an offloader considers them."""
    return _headless(qwen2_weights.weight_specs, config, dtype)


def qwen3(config: ModelConfig, dtype: str) -> list[WeightSpec]:
    """List the weights of Qwen3Model in the order in which an offloader considers them."""
    return _headless(qwen3_weights.weight_specs, config, dtype)


def _headless(
    weight_specs: Callable[[ModelConfig, str], list[WeightSpec]], config: ModelConfig, dtype: str
) -> list[WeightSpec]:
    """A tied head is no weight of its own; without its alias there is none at all."""
    return [replace(spec, aliases=()) for spec in weight_specs(replace(config, tie_word_embeddings=True), dtype)]
