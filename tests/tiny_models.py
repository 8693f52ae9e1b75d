"""Writes tiny random checkpoints: what transformers saves, with a byte-level tokenizer, different for every seed.

All weights are random, norms and biases too, and large enough that a weight in the wrong place changes the logits.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

#: Every byte, then `<s>` and `</s>`.
VOCAB_SIZE = 258
BOS_TOKEN_ID, EOS_TOKEN_ID = 256, 257

_COMMON = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 256,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
}
_FAMILIES: Mapping[str, tuple[str, Mapping[str, object]]] = {
    "LlamaForCausalLM": ("LlamaConfig", {}),
    "MistralForCausalLM": ("MistralConfig", {"sliding_window": None}),
    "Qwen2ForCausalLM": ("Qwen2Config", {}),
    "Qwen3ForCausalLM": ("Qwen3Config", {"head_dim": 32}),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig",
        {
            "head_dim": 32,
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        },
    ),
    "MixtralForCausalLM": ("MixtralConfig", {"num_local_experts": 8, "num_experts_per_tok": 2}),
}
ARCHITECTURES = tuple(_FAMILIES)


def write_tiny(
    architecture: str,
    directory: Path,
    *,
    tied: bool = False,
    dtype: str = "float32",
    shards: int = 1,
    seed: int = 0,
    **config_overrides: object,
) -> Path:
    """Write `config.json`, safetensors and a tokenizer into a directory, and return it.

    architecture: one of ARCHITECTURES; config_overrides: fields of its transformers config class.
    shards: number of safetensors files; with more than one there is an index.
    """
    directory.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    model = tiny_model(architecture, tied=tied, dtype=dtype, seed=seed, **config_overrides)
    model.save_pretrained(directory, max_shard_size="100GB")
    if shards > 1:
        _split(directory, shards)
    write_tokenizer(directory)
    return directory


def tiny_model(
    architecture: str, *, tied: bool = False, dtype: str = "float32", seed: int = 0, **config_overrides: object
) -> torch.nn.Module:
    """Build the transformers model whose checkpoint `write_tiny` writes for the same arguments."""
    config_name, fields = _FAMILIES[architecture]
    config = getattr(transformers, config_name)(
        **{**_COMMON, **fields, "tie_word_embeddings": tied, **config_overrides}
    )
    with torch.random.fork_rng(devices=[]):
        model = getattr(transformers, architecture)(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            values = torch.randn(parameter.shape, generator=generator)
            centre, spread = (1.0, 0.3) if name.endswith("norm.weight") else (0.0, 0.15)
            parameter.copy_(centre + spread * values)
    return model.to(getattr(torch, dtype)).eval()


def write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of single bytes: the id of a byte is its rank in the byte-level alphabet, sorted."""
    vocab = {letter: index for index, letter in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def _split(directory: Path, shards: int) -> None:
    """Spread the tensors of `model.safetensors` over several files, with the index that transformers would write."""
    whole = directory / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    weight_map = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensors[name] for name in names[shard::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    whole.unlink()
