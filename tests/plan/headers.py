"""Writes checkpoints of real shapes without their bytes: config.json, an index, and sparse safetensors files.

Tensor names and shapes are those that Hugging Face's checkpoints of these families have, written down here anew.
"""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path

LLAMA_3_70B = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
_QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
QWEN3_30B_A3B = {
    **_QWEN3_MOE,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
}
QWEN3_235B_A22B = {
    **_QWEN3_MOE,
    "hidden_size": 4096,
    "num_hidden_layers": 94,
    "num_attention_heads": 64,
    "intermediate_size": 12288,
    "moe_intermediate_size": 1536,
}

_DTYPES = {"bfloat16": ("BF16", 2), "float32": ("F32", 4)}


def tensors(config: dict) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor of a Llama or Qwen3-MoE checkpoint."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim", hidden // heads)
    q, kv, is_moe = heads * dim, config["num_key_value_heads"] * dim, "num_experts" in config
    yield "model.embed_tokens.weight", (config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, shape in (("q", (q, hidden)), ("k", (kv, hidden)), ("v", (kv, hidden)), ("o", (hidden, q))):
            yield f"{at}.self_attn.{name}_proj.weight", shape
        for norm in ("q_norm", "k_norm") if is_moe else ():
            yield f"{at}.self_attn.{norm}.weight", (dim,)
        if is_moe:
            yield f"{at}.mlp.gate.weight", (config["num_experts"], hidden)
            for expert in range(config["num_experts"]):
                yield from _mlp(f"{at}.mlp.experts.{expert}", config["moe_intermediate_size"], hidden)
        else:
            yield from _mlp(f"{at}.mlp", config["intermediate_size"], hidden)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,)
    yield "model.norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", (config["vocab_size"], hidden)


def _mlp(block: str, size: int, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    for name, shape in (("gate", (size, hidden)), ("up", (size, hidden)), ("down", (hidden, size))):
        yield f"{block}.{name}_proj.weight", shape


def write_headers(config: dict, directory: Path, shards: int) -> Path:
    """Write a checkpoint whose files have their full size, no data blocks, and true headers."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    listed = list(tensors(config))
    size = -(-len(listed) // shards)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = listed[shard * size : (shard + 1) * size]
        _write_shard(directory / file, part, config["torch_dtype"])
        weight_map |= dict.fromkeys((name for name, _ in part), file)
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def _write_shard(path: Path, part: list[tuple[str, tuple[int, ...]]], dtype: str) -> None:
    stored, item = _DTYPES[dtype]
    header, end = {}, 0
    for name, shape in part:
        nbytes = prod(shape) * item
        header[name] = {"dtype": stored, "shape": list(shape), "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
