"""Writes checkpoints of any size without a library: what an architecture's weight list names, in one safetensors file.

Zero tensors are holes in the file, so that a model of many gigabytes takes no disk and is written at once.
"""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pyvllm.config.model import model_config
from pyvllm.models.registry import lookup

VOCAB_SIZE = 258
_STORED = {"float32": "F32", "bfloat16": "BF16"}
_BYTES = {"float32": 4, "bfloat16": 2}
_COMMON = {
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "bos_token_id": 256,
    "eos_token_id": 257,
    "tie_word_embeddings": False,
}
_SMALL = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2}
_MOE = {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 128, "norm_topk_prob": True}

#: One small model of every architecture.
SMALL = {
    "LlamaForCausalLM": {"model_type": "llama", "intermediate_size": 512},
    "MistralForCausalLM": {"model_type": "mistral", "intermediate_size": 512, "sliding_window": None},
    "Qwen2ForCausalLM": {"model_type": "qwen2", "intermediate_size": 512},
    "Qwen3ForCausalLM": {"model_type": "qwen3", "intermediate_size": 512, "head_dim": 64},
    "Qwen3MoeForCausalLM": {"model_type": "qwen3_moe", "intermediate_size": 512, "head_dim": 64, **_MOE},
    "MixtralForCausalLM": {
        "model_type": "mixtral",
        "intermediate_size": 256,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
}


def small_document(architecture: str) -> dict[str, object]:
    """`config.json` of a small model."""
    return {**_COMMON, **_SMALL, **SMALL[architecture], "architectures": [architecture]}


def dense_document(hidden_size: int, num_layers: int) -> dict[str, object]:
    """`config.json` of a dense model in the proportions of Llama 3 8B."""
    return {
        **_COMMON,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 7 // 2,
        "num_hidden_layers": num_layers,
        "num_attention_heads": hidden_size // 128,
        "num_key_value_heads": max(1, hidden_size // 512),
        "head_dim": 128,
    }


def moe_document(hidden_size: int, num_layers: int, num_experts: int) -> dict[str, object]:
    """`config.json` of a mixture of experts in the proportions of Qwen3 30B A3B: eight experts a token."""
    return {
        **_COMMON,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": hidden_size,
        "intermediate_size": hidden_size * 3,
        "moe_intermediate_size": hidden_size * 3 // 8,
        "num_hidden_layers": num_layers,
        "num_attention_heads": max(4, hidden_size // 64),
        "num_key_value_heads": 4,
        "head_dim": 128,
        "num_experts": num_experts,
        "num_experts_per_tok": min(8, num_experts),
        "norm_topk_prob": True,
    }


def write(
    directory: Path, document: dict[str, object], dtype: str, is_random: Callable[[str], bool] = lambda name: True
) -> Path:
    """Write a model directory; tensors for whose name `is_random` is false are zeros, and holes in the file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**document, "torch_dtype": dtype}))
    _write_tokenizer(directory)
    specs = lookup(document["architectures"][0]).weight_specs(model_config(document, "config.json"), dtype)
    shapes = {source.tensor: source.shape for spec in specs for source in spec.sources}
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + torch.Size(shape).numel() * _BYTES[dtype]
        header[name] = {"dtype": _STORED[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = torch.Generator().manual_seed(0)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        data = file.tell()
        for name, shape in shapes.items():
            if is_random(name):
                file.seek(data + header[name]["data_offsets"][0])
                file.write(_values(name, shape, dtype, generator))
        file.truncate(data + end)
    return directory


def _values(name: str, shape: tuple[int, ...], dtype: str, generator: torch.Generator) -> memoryview:
    centre, spread = (1.0, 0.3) if name.endswith("norm.weight") else (0.0, 0.1)
    values = centre + spread * torch.randn(shape, generator=generator)
    return values.to(getattr(torch, dtype)).view(-1).view(torch.uint8).numpy().data


def _write_tokenizer(directory: Path) -> None:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
