"""GGUF keys become the config.json that the same model has, and GGUF tensor names those of Hugging Face."""

import math
import struct

import pytest

from pyvllm.config.model import model_config
from pyvllm.errors import ModelLoadError
from pyvllm.model_loader.checkpoint import open_model
from tests.loader.files import llama_gguf, strings, tensor


def source(tmp_path, *given, **more):
    path = tmp_path / "m.gguf"
    path.write_bytes(llama_gguf(*given, **more))
    return open_model(str(path))


def document(tmp_path, *given, **more):
    return source(tmp_path, *given, **more).document


def test_llama_keys_become_a_configuration(tmp_path):
    keys = {
        "llama.attention.head_count_kv": 1,
        "llama.rope.freq_base": 500_000.0,
        "tokenizer.ggml.tokens": strings("a", "b", "c", "d"),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.eot_token_id": 2,
    }
    found = source(tmp_path, keys)
    config = model_config(found.document, found.origin)
    assert found.architecture == config.architecture == "LlamaForCausalLM"
    assert (config.hidden_size, config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (8, 2, 1, 4)
    assert (config.num_hidden_layers, config.intermediate_size, config.vocab_size) == (1, 8, 4)
    assert (config.max_position_embeddings, config.rope_theta, config.rope_scaling) == (64, 500_000.0, None)
    assert config.rms_norm_eps == pytest.approx(1e-5)
    assert (config.bos_token_id, config.eos_token_ids, config.tie_word_embeddings) == (0, (1, 2), True)


def test_optional_keys_have_the_defaults_of_llama_cpp(tmp_path):
    found = document(tmp_path)
    assert (found["num_key_value_heads"], found["rope_theta"]) == (2, 10000.0)
    assert "eos_token_id" not in found and "sliding_window" not in found


def test_equal_end_tokens_are_one(tmp_path):
    assert document(tmp_path, {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.eot_token_id": 1})["eos_token_id"] == 1


def test_head_size_is_key_length(tmp_path):
    keys = {"qwen3.attention.key_length": 16, "qwen3.attention.value_length": 16, "qwen3.attention.head_count": 3}
    assert document(tmp_path, keys, architecture="qwen3")["head_dim"] == 16


def test_head_of_its_own_and_biases_show_in_the_tensors(tmp_path):
    rows = [
        tensor("output.weight", (8, 4), offset=128),
        tensor("blk.0.attn_q.bias", (8,), offset=256),
        tensor("blk.0.ffn_gate.bias", (8,), offset=288),
    ]
    found = document(tmp_path, {}, rows, bytes(192))
    assert (found["tie_word_embeddings"], found["attention_bias"], found["mlp_bias"]) == (False, True, True)


def test_sliding_window_is_kept(tmp_path):
    assert document(tmp_path, {"llama.attention.sliding_window": 16})["sliding_window"] == 16


ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architecture_has_its_hugging_face_name(tmp_path, name):
    assert source(tmp_path, architecture=name).architecture == ARCHITECTURES[name]


def test_unknown_architecture_keeps_its_own_name_and_nothing_else_is_asked(tmp_path):
    found = source(tmp_path, {"gemma9.block_count": None}, architecture="gemma9")
    assert (found.architecture, found.document) == ("gemma9", {"architectures": ["gemma9"]})
    with found.headers() as checkpoint:
        assert set(checkpoint.tensors) == {"token_embd.weight"}


SCALINGS = {
    "none": ({"type": "none", "factor": 4.0}, None),
    "linear": ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "factor alone": ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    "zero": ({"type": "linear", "factor": 0.0}, None),
    "one": ({"type": "yarn", "factor": 1.0}, None),
    "neutral keys": ({"type": "none", "attn_factor": 1.0, "yarn_beta_fast": 32.0}, None),
    "yarn": (
        {"type": "yarn", "factor": 4.0, "original_context_length": 16},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    ),
    "yarn without a length": (
        {"type": "yarn", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    ),
}


@pytest.mark.parametrize(("keys", "expected"), SCALINGS.values(), ids=SCALINGS)
def test_rope_scaling_is_that_of_the_keys(tmp_path, keys, expected):
    given = {f"qwen2.rope.scaling.{key}": value for key, value in keys.items()}
    assert document(tmp_path, given, architecture="qwen2")["rope_scaling"] == expected


def test_old_scale_key_is_linear_scaling(tmp_path):
    assert document(tmp_path, {"llama.rope.scale_linear": 2.0})["rope_scaling"] == {
        "rope_type": "linear",
        "factor": 2.0,
    }


def test_unsupported_rope_key_is_refused_by_name(tmp_path):
    with pytest.raises(ModelLoadError, match=r"key 'llama\.rope\.scaling\.attn_factor' is not supported, found 2\.0"):
        source(tmp_path, {"llama.rope.scaling.attn_factor": 2.0})


def llama3_factors(theta, head_dim, factor, low=1.0, high=4.0, length=8192):
    """Transcribed from transformers' _compute_llama3_parameters: how far each frequency is divided."""
    factors = []
    for index in range(0, head_dim, 2):
        wavelength = 2 * math.pi * theta ** (index / head_dim)
        if wavelength < length / high:
            factors.append(1.0)
        elif wavelength > length / low:
            factors.append(factor)
        else:
            smooth = (length / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return factors


def rope_freqs(tmp_path, factors, **keys):
    row = tensor("rope_freqs.weight", (len(factors),), offset=128)
    settings = {"llama.attention.key_length": 128, "llama.rope.freq_base": 500_000.0} | keys
    return source(tmp_path, settings, [row], struct.pack(f"<{len(factors)}f", *factors))


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_rope_freqs_of_llama3_become_its_scaling(tmp_path, factor):
    found = rope_freqs(tmp_path, llama3_factors(500_000.0, 128, factor))
    assert found.document["rope_scaling"] == {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    with found.headers() as checkpoint:
        assert "rope_freqs.weight" not in checkpoint.tensors


@pytest.mark.parametrize(
    "factors",
    [
        llama3_factors(500_000.0, 128, 8.0, high=8.0),
        [2.0] * 64,
        [float("nan")] * 64,
        [math.inf] * 64,
        [-1.0] * 64,
        [0.0] * 64,
    ],
    ids=["another high_freq_factor", "twos", "NaN", "infinite", "negative", "zero"],
)
def test_other_rope_freqs_are_refused_by_name(tmp_path, factors):
    with pytest.raises(
        ModelLoadError, match=r"m\.gguf: tensor 'rope_freqs\.weight': its values are not those of llama3"
    ):
        rope_freqs(tmp_path, factors)


def test_rope_freqs_of_another_size_are_refused(tmp_path):
    with pytest.raises(ModelLoadError, match=r"'rope_freqs\.weight': must be F32 of shape \[64\], found F32 \[2\]"):
        rope_freqs(tmp_path, [1.0, 1.0])


NAMES = {
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    "blk.11.attn_q.weight": "model.layers.11.self_attn.q_proj.weight",
    "blk.0.attn_k.bias": "model.layers.0.self_attn.k_proj.bias",
    "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
    "blk.0.attn_output.weight": "model.layers.0.self_attn.o_proj.weight",
    "blk.0.attn_q_norm.weight": "model.layers.0.self_attn.q_norm.weight",
    "blk.0.attn_k_norm.weight": "model.layers.0.self_attn.k_norm.weight",
    "blk.0.ffn_norm.weight": "model.layers.0.post_attention_layernorm.weight",
    "blk.0.ffn_gate.weight": "model.layers.0.mlp.gate_proj.weight",
    "blk.0.ffn_up.weight": "model.layers.0.mlp.up_proj.weight",
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",
    "blk.0.ffn_gate_inp.weight": "model.layers.0.mlp.gate.weight",
    "blk.00.ffn_up.weight": "blk.00.ffn_up.weight",
    "blk.0.unheard_of.weight": "blk.0.unheard_of.weight",
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items(), ids=NAMES)
def test_tensor_has_its_hugging_face_name(tmp_path, name, expected):
    found = source(tmp_path, {}, [tensor(name, (8, 8), offset=128)], bytes(256), architecture="qwen3")
    with found.headers() as checkpoint:
        assert list(checkpoint.tensors) == ["model.embed_tokens.weight", expected]
        assert checkpoint.tensors[expected].rope_heads == 0


def test_only_llama_stores_rows_in_interleaved_rotary_order(tmp_path):
    rows = [tensor(f"blk.0.attn_{part}.weight", (8, 8), offset=128 + 256 * index) for index, part in enumerate("qkv")]
    with source(tmp_path, {}, rows, bytes(768)).headers() as checkpoint:
        heads = [checkpoint.tensors[f"model.layers.0.self_attn.{part}_proj.weight"].rope_heads for part in "qkv"]
    assert heads == [2, 2, 0]


def test_two_tensors_of_one_meaning_are_refused(tmp_path):
    row = tensor("model.embed_tokens.weight", (8,), offset=128)
    with pytest.raises(ModelLoadError, match=r"another tensor also means 'model\.embed_tokens\.weight'"):
        source(tmp_path, {}, [row], bytes(32)).headers()


def test_rows_that_no_heads_divide_are_refused(tmp_path):
    row = tensor("blk.0.attn_q.weight", (8, 6), offset=128)
    with pytest.raises(ModelLoadError, match="must be a multiple of twice the 2 heads, found 6"):
        source(tmp_path, {}, [row], bytes(192)).headers()


EXPERTS = {
    "qwen3moe.expert_count": 4,
    "qwen3moe.expert_used_count": 2,
    "qwen3moe.expert_feed_forward_length": 16,
}


def test_stacked_experts_become_one_tensor_each(tmp_path):
    row = tensor("blk.0.ffn_down_exps.weight", (16, 8, 4), offset=128)
    found = source(tmp_path, EXPERTS, [row], bytes(2048), architecture="qwen3moe")
    config = model_config(found.document, found.origin)
    assert (config.num_experts, config.num_experts_per_tok, config.moe_intermediate_size) == (4, 2, 16)
    assert config.norm_topk_prob and config.is_sparse(0)
    with found.headers() as checkpoint:
        experts = [checkpoint.tensors[f"model.layers.0.mlp.experts.{index}.down_proj.weight"] for index in range(4)]
    assert [info.shape for info in experts] == [(8, 16)] * 4
    assert [info.offset - experts[0].offset for info in experts] == [0, 512, 1024, 1536]


@pytest.mark.parametrize("dims", [(16, 8, 3), (16, 32), (1, 1, 512)])
def test_stack_of_another_number_of_experts_is_refused(tmp_path, dims):
    row = tensor("blk.0.ffn_down_exps.weight", dims, offset=128)
    with pytest.raises(ModelLoadError, match=r"must have 3 dimensions, the last as the key expert_count says \(4\)"):
        source(tmp_path, EXPERTS, [row], bytes(2048), architecture="qwen3moe").headers()
