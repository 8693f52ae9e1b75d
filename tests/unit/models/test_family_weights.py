"""Each family's list of weights, held to lists written by hand from vLLM's parameter names."""

from dataclasses import replace

import pytest

from pyvllm.config.model import ModelConfig, model_config
from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.models.llama import weights as llama
from pyvllm.models.mistral import weights as mistral
from pyvllm.models.qwen2 import weights as qwen2
from pyvllm.models.qwen3 import weights as qwen3
from pyvllm.models.registry import lookup

#: One layer, E = 8, 4 heads of 2, 2 key-value heads, I = 6, V = 10.
TINY = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 6,
    "vocab_size": 10,
}
MOE = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 5}


def config_of(architecture: str, **fields: object) -> ModelConfig:
    return model_config({"architectures": [architecture], **TINY, **fields}, "config.json")


def listed(architecture, **fields):
    """The name within the layer (or the whole name) and shape of every weight, in order."""
    specs = lookup(architecture).weight_specs(config_of(architecture, **fields), "float32")
    return [(spec.name.removeprefix("model.layers.0."), spec.shape) for spec in specs]


QKV, O_PROJ = ("self_attn.qkv_proj.weight", (16, 8)), ("self_attn.o_proj.weight", (8, 8))
QKV_BIAS, O_BIAS = ("self_attn.qkv_proj.bias", (16,)), ("self_attn.o_proj.bias", (8,))
QK_NORMS = [("self_attn.q_norm.weight", (2,)), ("self_attn.k_norm.weight", (2,))]
GATE_UP, DOWN = ("mlp.gate_up_proj.weight", (12, 8)), ("mlp.down_proj.weight", (8, 6))
NORMS = [("input_layernorm.weight", (8,)), ("post_attention_layernorm.weight", (8,))]
TIED = [("model.embed_tokens.weight", (10, 8)), ("model.norm.weight", (8,))]
OUTSIDE = [*TIED, ("lm_head.weight", (10, 8))]


def test_llama_weights():
    assert listed("LlamaForCausalLM") == [QKV, O_PROJ, GATE_UP, DOWN, *NORMS, *OUTSIDE]


def test_llama_weights_with_all_biases():
    attention = [QKV, QKV_BIAS, O_PROJ, O_BIAS]
    mlp = [GATE_UP, ("mlp.gate_up_proj.bias", (12,)), DOWN, ("mlp.down_proj.bias", (8,))]
    assert listed("LlamaForCausalLM", attention_bias=True, mlp_bias=True) == [*attention, *mlp, *NORMS, *OUTSIDE]


def test_mistral_weights_with_heads_wider_than_the_hidden_size():
    wide = [("self_attn.qkv_proj.weight", (32, 8)), ("self_attn.o_proj.weight", (8, 16))]
    assert listed("MistralForCausalLM", head_dim=4) == [*wide, GATE_UP, DOWN, *NORMS, *OUTSIDE]


def test_qwen2_weights():
    assert listed("Qwen2ForCausalLM") == [QKV, QKV_BIAS, O_PROJ, GATE_UP, DOWN, *NORMS, *OUTSIDE]


def test_qwen3_weights():
    assert listed("Qwen3ForCausalLM") == [QKV, O_PROJ, *QK_NORMS, GATE_UP, DOWN, *NORMS, *OUTSIDE]


def test_qwen3_moe_weights():
    experts = [("mlp.gate.weight", (3, 8)), ("mlp.experts.w13_weight", (3, 10, 8))]
    experts += [("mlp.experts.w2_weight", (3, 8, 5))]
    assert listed("Qwen3MoeForCausalLM", **MOE) == [QKV, O_PROJ, *QK_NORMS, *experts, *NORMS, *OUTSIDE]


def test_qwen3_moe_layers_that_are_not_sparse_are_dense():
    names = [name for name, _ in listed("Qwen3MoeForCausalLM", **MOE, num_hidden_layers=4, mlp_only_layers=[1])]
    assert "model.layers.1.mlp.gate_up_proj.weight" in names
    assert [name for name in names if "w13" in name] == ["mlp.experts.w13_weight"] + [
        f"model.layers.{layer}.mlp.experts.w13_weight" for layer in (2, 3)
    ]


def test_mixtral_weights():
    moe = "block_sparse_moe"
    experts = [(f"{moe}.gate.weight", (3, 8)), (f"{moe}.experts.w13_weight", (3, 12, 8))]
    experts += [(f"{moe}.experts.w2_weight", (3, 8, 6))]
    mixtral = {"num_local_experts": 3, "num_experts_per_tok": 2}
    assert listed("MixtralForCausalLM", **mixtral) == [QKV, O_PROJ, *experts, *NORMS, *OUTSIDE]


def test_a_tied_head_is_the_embedding_under_another_name():
    assert listed("LlamaForCausalLM", tie_word_embeddings=True)[-2:] == TIED
    config = config_of("LlamaForCausalLM", tie_word_embeddings=True)
    embedding = lookup("LlamaForCausalLM").weight_specs(config, "float32")[-2]
    assert embedding.aliases == ("lm_head.weight",)
    assert embedding.layer is None


def sources_of(architecture, name, **fields):
    specs = lookup(architecture).weight_specs(config_of(architecture, **fields), "float32")
    spec = next(spec for spec in specs if spec.name == f"model.layers.0.{name}")
    prefix = "model.layers.0."
    return [(source.tensor.removeprefix(prefix), source.shape, source.first_row) for source in spec.sources]


def test_fused_projections_are_filled_by_the_tensors_of_the_checkpoint():
    assert sources_of("LlamaForCausalLM", "self_attn.qkv_proj.weight") == [
        ("self_attn.q_proj.weight", (8, 8), 0),
        ("self_attn.k_proj.weight", (4, 8), 8),
        ("self_attn.v_proj.weight", (4, 8), 12),
    ]
    assert sources_of("Qwen2ForCausalLM", "self_attn.qkv_proj.bias") == [
        ("self_attn.q_proj.bias", (8,), 0),
        ("self_attn.k_proj.bias", (4,), 8),
        ("self_attn.v_proj.bias", (4,), 12),
    ]
    assert sources_of("LlamaForCausalLM", "mlp.gate_up_proj.weight") == [
        ("mlp.gate_proj.weight", (6, 8), 0),
        ("mlp.up_proj.weight", (6, 8), 6),
    ]


def test_stacked_experts_are_filled_expert_by_expert_gate_before_up():
    assert sources_of("Qwen3MoeForCausalLM", "mlp.experts.w13_weight", **MOE)[:3] == [
        ("mlp.experts.0.gate_proj.weight", (5, 8), 0),
        ("mlp.experts.0.up_proj.weight", (5, 8), 5),
        ("mlp.experts.1.gate_proj.weight", (5, 8), 10),
    ]
    mixtral = {"num_local_experts": 2, "num_experts_per_tok": 2}
    block = "block_sparse_moe.experts"
    assert sources_of("MixtralForCausalLM", f"{block}.w13_weight", **mixtral)[1:3] == [
        (f"{block}.0.w3.weight", (6, 8), 6),
        (f"{block}.1.w1.weight", (6, 8), 12),
    ]
    assert sources_of("MixtralForCausalLM", f"{block}.w2_weight", **mixtral) == [
        (f"{block}.0.w2.weight", (8, 6), 0),
        (f"{block}.1.w2.weight", (8, 6), 8),
    ]


def test_expert_stacks_say_how_much_of_them_a_token_uses():
    specs = lookup("Qwen3MoeForCausalLM").weight_specs(config_of("Qwen3MoeForCausalLM", **MOE), "float32")
    of_experts = {spec.name_in_layer: (spec.num_experts, spec.experts_per_token) for spec in specs if spec.num_experts}
    assert of_experts == {"mlp.experts.w13_weight": (3, 2), "mlp.experts.w2_weight": (3, 2)}
    assert {spec.name_in_layer for spec in specs if spec.kind == "experts"} == set(of_experts)


@pytest.mark.parametrize("family", [llama, mistral, qwen2, qwen3], ids=lambda family: family.__name__)
def test_a_window_acts_on_the_layers_that_the_config_calls_sliding(family):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    config = config_of("LlamaForCausalLM", num_hidden_layers=3, sliding_window=7, layer_types=kinds)
    assert family.traits(config).windows == (7, None, 7)


def test_the_smollm2_135m_shape_has_the_weights_and_bytes_of_the_published_model():
    fields = {"hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3}
    fields |= {"intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": True}
    config = config_of("LlamaForCausalLM", **fields)
    specs = lookup("LlamaForCausalLM").weight_specs(config, "bfloat16")
    assert len(specs) == 182
    assert sum(spec.nbytes for spec in specs) == 269_030_016
    assert [spec.layer for spec in specs] == [layer for layer in range(30) for _ in range(6)] + [None, None]


def test_an_activation_other_than_silu_is_refused_by_name():
    with pytest.raises(ModelLoadError, match=r"hidden_act 'gelu' is not supported for LlamaForC.*; supported: silu"):
        listed("LlamaForCausalLM", hidden_act="gelu")


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope"])
def test_position_scaling_of_another_kind_is_refused_by_name(kind):
    problem = f"rope_type '{kind}' is not supported for Qwen2ForCausalLM; supported: default, linear, llama3, yarn"
    with pytest.raises(ModelLoadError, match=problem):
        listed("Qwen2ForCausalLM", rope_scaling={"type": kind, "factor": 2.0})


@pytest.mark.parametrize(
    ("parameters", "problem"),
    [
        ({"rope_type": "linear"}, "'factor' must be a positive number, found None"),
        ({"rope_type": "linear", "factor": "2"}, "'factor' must be a positive number, found '2'"),
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}, "must be greater"),
        ({"rope_type": "yarn", "factor": 2.0, "truncate": 1}, "'truncate' must be true or false, found 1"),
        ({"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1.5}, "must be a whole number"),
        ({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, "'partial_rotary_factor' 0.5 is not"),
    ],
)
def test_a_bad_number_of_position_scaling_is_refused_by_name(parameters, problem):
    with pytest.raises(ModelLoadError, match=problem):
        listed("LlamaForCausalLM", rope_scaling=parameters)


def test_a_mixture_without_experts_is_refused():
    problem = r"num_experts_per_tok \(0\) must be from 1 to the number of experts \(0\)"
    for architecture in ("MixtralForCausalLM", "Qwen3MoeForCausalLM"):
        with pytest.raises(FormatError, match=problem):
            listed(architecture)


def test_heads_of_odd_size_are_refused():
    config = replace(config_of("LlamaForCausalLM"), head_dim=3)
    with pytest.raises(FormatError, match="head_dim must be even for rotary positions, found 3"):
        lookup("LlamaForCausalLM").weight_specs(config, "float32")
