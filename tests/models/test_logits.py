"""Logits equal those of transformers on tiny random checkpoints, in float32."""

import pytest
import torch
import transformers

from tests.checkpoint_weights import build, logits
from tests.tiny_models import ARCHITECTURES, VOCAB_SIZE, write_tiny

#: Two float32 computations of the same sums in another order; the logits are of size 1 to 6.
TOLERANCE = {"rtol": 1e-4, "atol": 2e-5}
ALTERNATING = ["sliding_attention", "full_attention"] * 2


def prompt(length=24, seed=1):
    return torch.randint(VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def reference_logits(directory, token_ids, dtype=torch.float32):
    """What transformers itself computes from the files, with its own plain attention."""
    name = transformers.AutoConfig.from_pretrained(directory).architectures[0]
    model = getattr(transformers, name).from_pretrained(directory, dtype=dtype, attn_implementation="eager")
    return model.eval()(torch.tensor([token_ids])).logits[0]


def assert_equal_to_transformers(directory, token_ids):
    model, _, weights = build(directory)
    expected = reference_logits(directory, token_ids)
    torch.testing.assert_close(logits(model, token_ids), expected, **TOLERANCE)
    torch.testing.assert_close(logits(model, token_ids, [1] * len(token_ids)), expected, **TOLERANCE)
    torch.testing.assert_close(logits(model, token_ids, [7, 1, len(token_ids) - 8]), expected, **TOLERANCE)
    assert not weights.unread


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_transformers(architecture, tied, tmp_path):
    assert_equal_to_transformers(write_tiny(architecture, tmp_path, tied=tied), prompt())


@pytest.mark.parametrize("heads", [(4, 1, 16), (4, 4, 16), (6, 2, 8), (2, 1, 64)], ids=str)
def test_logits_equal_transformers_for_any_grouping_of_heads(heads, tmp_path):
    num_heads, num_kv_heads, head_dim = heads
    shape = {"num_attention_heads": num_heads, "num_key_value_heads": num_kv_heads, "head_dim": head_dim}
    assert_equal_to_transformers(write_tiny("MistralForCausalLM", tmp_path, **shape), prompt())


@pytest.mark.parametrize(
    ("architecture", "biases"),
    [
        ("LlamaForCausalLM", {"attention_bias": True}),
        ("LlamaForCausalLM", {"mlp_bias": True}),
        ("Qwen3ForCausalLM", {"attention_bias": True}),
        ("Qwen3MoeForCausalLM", {"attention_bias": True}),
    ],
)
def test_logits_equal_transformers_with_biases(architecture, biases, tmp_path):
    assert_equal_to_transformers(write_tiny(architecture, tmp_path, **biases), prompt())


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "default", "rope_theta": 500.0},
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.2, "beta_fast": 8.0, "beta_slow": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "mscale": 1.2, "mscale_all_dim": 0.6, "truncate": False},
    ],
    ids=["theta", "linear", "llama3", "yarn", "yarn-explicit", "yarn-mscale"],
)
def test_logits_equal_transformers_with_scaled_positions(rope, tmp_path):
    rope = {"rope_theta": 10000.0, **rope}
    if rope["rope_type"] in ("llama3", "yarn"):
        rope["original_max_position_embeddings"] = 64
    assert_equal_to_transformers(write_tiny("LlamaForCausalLM", tmp_path, rope_parameters=rope), prompt(40))


@pytest.mark.parametrize(
    ("architecture", "window"),
    [
        ("LlamaForCausalLM", {"sliding_window": 5}),
        ("MistralForCausalLM", {"sliding_window": 5}),
        ("MixtralForCausalLM", {"sliding_window": 5}),
        ("Qwen2ForCausalLM", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}),
        ("Qwen3ForCausalLM", {"use_sliding_window": True, "sliding_window": 5, "layer_types": ALTERNATING}),
        ("Qwen3MoeForCausalLM", {"use_sliding_window": True, "sliding_window": 5}),
    ],
)
def test_logits_equal_transformers_past_the_sliding_window(architecture, window, tmp_path):
    assert_equal_to_transformers(write_tiny(architecture, tmp_path, **window), prompt())


@pytest.mark.parametrize(
    "experts",
    [
        {"norm_topk_prob": False},
        {"num_experts_per_tok": 8},
        {"num_experts_per_tok": 1, "norm_topk_prob": False},
        {"mlp_only_layers": [1]},
        {"decoder_sparse_step": 2},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_logits_equal_transformers_for_every_use_of_experts(experts, tmp_path):
    assert_equal_to_transformers(write_tiny("Qwen3MoeForCausalLM", tmp_path, **experts), prompt())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_logits_are_as_near_to_float32_as_those_of_transformers(architecture, tmp_path):
    directory = write_tiny(architecture, tmp_path, dtype="bfloat16")
    exact = reference_logits(directory, prompt())
    theirs = reference_logits(directory, prompt(), dtype=torch.bfloat16).float()
    ours = logits(build(directory, "bfloat16")[0], prompt()).float()
    assert (ours - exact).square().mean() < 1.5 * (theirs - exact).square().mean()


def test_logits_do_not_depend_on_how_the_checkpoint_is_sharded(tmp_path):
    whole = build(write_tiny("Qwen3MoeForCausalLM", tmp_path / "whole"))[0]
    parts = build(write_tiny("Qwen3MoeForCausalLM", tmp_path / "parts", shards=3))[0]
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) == 3
    assert torch.equal(logits(whole, prompt()), logits(parts, prompt()))
