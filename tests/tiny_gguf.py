"""Writes the GGUF twin of a tiny checkpoint with the `gguf` package, as llama.cpp's converter lays it out."""

import json
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import load_file

from tests.tiny_models import BOS_TOKEN_ID, EOS_TOKEN_ID

#: general.architecture of each family; llama.cpp calls Mistral and Mixtral llama.
GGUF_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3moe",
}
_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp", "block_sparse_moe.gate": "ffn_gate_inp",
}  # fmt: skip
_EXPERT_STACKS = {
    "gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps",
}  # fmt: skip
_MERGE, _UNUSED_BYTE = ("!", '"'), "\u0143"
#: Gives the GGUF type of a tensor by its GGUF name; one-dimensional tensors are always F32.
Choose = Callable[[str], gguf.GGMLQuantizationType]


def write_gguf(directory: Path, path: Path, choose: Choose = lambda name: gguf.GGMLQuantizationType.F32) -> Path:
    """Write the checkpoint in `directory` (float32) as one GGUF file and return its path."""
    config = json.loads((directory / "config.json").read_text())
    architecture = GGUF_ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, architecture)
    _write_keys(writer, config)
    _write_tokenizer(writer, directory)
    for name, values in _tensors(directory, config, architecture).items():
        kind = choose(name) if values.ndim > 1 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_keys(writer: gguf.GGUFWriter, config: dict) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base((config.get("rope_parameters") or config).get("rope_theta", 10000.0))
    if head_dim := config.get("head_dim"):
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if experts := config.get("num_experts") or config.get("num_local_experts"):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _write_tokenizer(writer: gguf.GGUFWriter, directory: Path) -> None:
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    vocab = {**tokenizer["model"]["vocab"], **added}
    # llama.cpp's byte-level tokenizers have merges; this one takes the place of a byte that no test's text has.
    vocab["".join(_MERGE)] = vocab.pop(_UNUSED_BYTE)
    tokens = sorted(vocab, key=vocab.__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in added else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(_MERGE)])
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)


def _tensors(directory: Path, config: dict, architecture: str) -> dict[str, np.ndarray]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    found: dict[str, np.ndarray] = {}
    stacks: dict[str, dict[int, np.ndarray]] = {}
    for name, values in load_file(directory / "model.safetensors").items():
        block, parts = "", name.split(".")
        if parts[1] == "layers":
            block, parts = f"blk.{parts[2]}.", parts[3:]
        stem, leaf = ".".join(parts[:-1]), parts[-1]
        if "experts" in parts:
            stacks.setdefault(f"{block}{_EXPERT_STACKS[parts[-2]]}.{leaf}", {})[int(parts[-3])] = values
            continue
        part = _NAMES[stem]
        if architecture == "llama" and part in heads:
            values = _interleaved(values, heads[part])
        found[f"{block}{part}.{leaf}"] = values
    return found | {name: np.stack([each[i] for i in range(len(each))]) for name, each in stacks.items()}


def _interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Put the rows of each head into the order of rotary pairs: i and i + D/2 become neighbours."""
    return np.ascontiguousarray(rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape))
