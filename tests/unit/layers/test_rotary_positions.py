"""Rotary positions: the frequencies of transformers, and rotation as a turn of the plane."""

import math

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pyvllm.config.model import model_config
from pyvllm.layers.rotary_embedding import RotaryEmbedding, inverse_frequencies, rotate

#: Field values of published models, where there is one.
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
ROPES = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 2.5},
    "llama-3.2": {**LLAMA3, "original_max_position_embeddings": 8192},
    "llama-3-without-original": LLAMA3,
    "qwen2.5-yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    "yarn-without-original": {"rope_type": "yarn", "factor": 40.0, "beta_fast": 16, "beta_slow": 2},
    "yarn-attention-factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25},
    "yarn-mscale": {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7, "truncate": False},
    "yarn-mscale-of-one-kind": {"rope_type": "yarn", "factor": 40.0, "mscale": 0.7},
    "yarn-past-the-last-dimension": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 100.0},
    "yarn-factor-of-one": {"rope_type": "yarn", "factor": 1.0},
}


def both(rope, theta=500000.0, head_dim=64):
    """The rotary embedding of transformers and ours for the same config.json."""
    parameters = {"rope_theta": theta, **rope}
    sizes = {"hidden_size": 4 * head_dim, "num_attention_heads": 4, "max_position_embeddings": 131072}
    theirs = LlamaRotaryEmbedding(LlamaConfig(**sizes, rope_parameters=dict(parameters)))
    document = {"num_hidden_layers": 1, "intermediate_size": 8, "vocab_size": 8, "architectures": ["LlamaForCausalLM"]}
    return theirs, model_config({**document, **sizes, "rope_parameters": parameters}, "config.json")


@pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
def test_frequencies_equal_those_of_transformers(rope):
    theirs, config = both(rope)
    frequencies, factor = inverse_frequencies(config)
    torch.testing.assert_close(frequencies, theirs.inv_freq, rtol=1e-6, atol=0)
    assert factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("rope", [ROPES["default"], ROPES["linear"]], ids=["default", "linear"])
def test_plain_frequencies_are_the_very_numbers_of_transformers(rope):
    theirs, config = both(rope)
    assert torch.equal(inverse_frequencies(config)[0], theirs.inv_freq)


def test_rotation_turns_each_pair_of_a_head_by_the_angle_of_its_position():
    _, config = both(ROPES["default"], theta=100.0, head_dim=4)
    x = torch.tensor([[[1.0, 2.0, 3.0, 4.0]]])
    rotation = RotaryEmbedding(config, x.device)(torch.tensor([3]), x.dtype)
    # Angles at position 3: 3 * 100^0 = 3 for the pair (0, 2), 3 * 100^(-2/4) = 0.3 for the pair (1, 3).
    (a, b), expected = (3.0, 0.3), []
    expected.append(1 * math.cos(a) - 3 * math.sin(a))
    expected.append(2 * math.cos(b) - 4 * math.sin(b))
    expected.append(3 * math.cos(a) + 1 * math.sin(a))
    expected.append(4 * math.cos(b) + 2 * math.sin(b))
    torch.testing.assert_close(rotate(x, *rotation)[0, 0], torch.tensor(expected), rtol=1e-6, atol=1e-6)


def test_scores_depend_on_the_distance_of_two_positions_alone():
    _, config = both(ROPES["llama-3.2"])
    rotary = RotaryEmbedding(config, torch.device("cpu"))
    q, k = torch.randn(2, 1, 1, 64, generator=torch.Generator().manual_seed(0))

    def score(position_q, position_k):
        turned = [rotate(x, *rotary(torch.tensor([at]), x.dtype)) for x, at in ((q, position_q), (k, position_k))]
        return (turned[0] * turned[1]).sum().item()

    assert score(17, 5) == pytest.approx(score(112, 100), abs=1e-4)
    assert abs(score(17, 5) - score(17, 6)) > 1e-2
