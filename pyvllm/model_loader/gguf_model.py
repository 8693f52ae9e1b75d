"""What the keys and tensor names of a GGUF file mean: a `config.json` document and Hugging Face's names.

The container itself is in `gguf.py`. Source of the keys and names: docs/gguf.md of ggml-org/ggml, and gguf-py's
constants and tensor_mapping of ggml-org/llama.cpp; of what is done with the keys: src/llama-model.cpp and
convert_hf_to_gguf.py there.
"""

import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import pi

from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.model_loader.gguf import GGUFHeader, Keys, brief
from pyvllm.model_loader.paths import OpenFile
from pyvllm.model_loader.tensor_info import TensorInfo

#: `general.architecture` and the Hugging Face architecture of the same model.
ARCHITECTURES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3moe": "Qwen3MoeForCausalLM",
}
SPLIT_GGUF = "split GGUF is not supported: merge the parts first"

#: Architectures whose q and k rows are stored in interleaved rotary order.
_INTERLEAVED = ("llama",)

_OUTSIDE: Mapping[str, str] = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True, slots=True)
class _ExpertNames:
    """What Hugging Face calls a family's mixture of experts."""

    block: str
    parts: Mapping[str, str]
    """The three stacks and the projection of one expert that each holds."""


_QWEN_EXPERTS = _ExpertNames(
    "mlp", {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
)
_MIXTRAL_EXPERTS = _ExpertNames("block_sparse_moe", {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"})
_ROUTER = "ffn_gate_inp"
_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,4})\.([a-z_]+)\.(weight|bias)")
_OUTSIDE_NAME = re.compile(r"([a-z_]+)\.(weight|bias)")

#: Keys, after the architecture's name, that change the computation in a way that is not carried out, unless they have
#: the value that changes nothing.
_REFUSED_KEYS: Mapping[str, object] = {
    "attention.clamp_kqv": 0.0,
    "attention.max_alibi_bias": 0.0,
    "attention.scale": None,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 1.0,
    "residual_scale": 1.0,
    "embedding_scale": 1.0,
    "use_parallel_residual": False,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_beta_fast": 32.0,
    "rope.scaling.yarn_beta_slow": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
    "rope.scaling.yarn_log_multiplier": 0.0,
}
_ROPE_FACTORS = "rope_freqs.weight"
#: low_freq_factor, high_freq_factor and original length of Llama 3.1 to 3.3; a GGUF file stores only their effect.
_LLAMA3 = (1.0, 4.0, 8192)
#: How many tensors a file may have when every expert counts.
MAX_NAMED_TENSORS = 500_000


def config_document(header: GGUFHeader, file: OpenFile) -> dict[str, object]:
    """Write the keys of a GGUF file as the `config.json` document of the same model.

    For an architecture that is not in `ARCHITECTURES` the document only names it, as the file does.
    Reads the values of `rope_freqs.weight`, if the file has it, to know the rope scaling that they stand for.
    Raises FormatError for a missing or wrong key, ModelLoadError for a key that cannot be honoured.
    """
    keys = header.keys
    _refuse_splits(keys)
    name = keys.text("general.architecture")
    if not 1 <= len(name) <= 64 or not name.isprintable():
        raise FormatError(f"{keys.origin}: key 'general.architecture': is no name, found {brief(name)}")
    if name not in ARCHITECTURES:
        return {"architectures": [name]}
    tensors = {info.name: info for info in header.tensors}
    _refuse(keys, name)
    rows = _vocab_size(keys, name, tensors)
    document = {"architectures": [_architecture(keys, name)], **_sizes(keys, name)}
    document |= {
        "vocab_size": rows,
        "max_position_embeddings": keys.integer(f"{name}.context_length"),
        "rms_norm_eps": keys.number(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number(f"{name}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(keys, name, tensors, file),
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
        "tie_word_embeddings": "output.weight" not in tensors,
        **_token_ids(keys, rows),
    }
    if f"{name}.attention.sliding_window" in keys:
        document["sliding_window"] = keys.integer(f"{name}.attention.sliding_window")
    if name == "qwen3moe":
        document |= _experts(keys, name)
    elif _is_mixtral(keys, name):
        document["num_local_experts"] = experts = keys.integer("llama.expert_count", high=65_536)
        document["num_experts_per_tok"] = keys.integer("llama.expert_used_count", high=experts)
    return document


def _is_mixtral(keys: Keys, name: str) -> bool:
    """Whether the file is of the llama architecture with experts, which is what llama.cpp calls Mixtral."""
    return name == "llama" and keys.integer("llama.expert_count", 0, low=0, high=65_536) > 0


def _architecture(keys: Keys, name: str) -> str:
    return "MixtralForCausalLM" if _is_mixtral(keys, name) else ARCHITECTURES[name]


def _sizes(keys: Keys, name: str) -> dict[str, object]:
    hidden = keys.integer(f"{name}.embedding_length", high=2**24)
    heads = keys.integer(f"{name}.attention.head_count", high=65_536)
    head_dim = _head_dim(keys, name)
    for key in (f"{name}.attention.value_length", f"{name}.rope.dimension_count"):
        if (value := keys.integer(key, head_dim)) != head_dim:
            raise ModelLoadError(f"{keys.origin}: key '{key}': only the head size ({head_dim}) works, found {value}")
    return {
        "hidden_size": hidden,
        "num_hidden_layers": keys.integer(f"{name}.block_count", high=10_000),
        "num_attention_heads": heads,
        "num_key_value_heads": keys.integer(f"{name}.attention.head_count_kv", heads, high=65_536),
        "head_dim": head_dim,
        "intermediate_size": keys.integer(f"{name}.feed_forward_length", high=2**24),
    }


def _head_dim(keys: Keys, name: str) -> int:
    if (key := f"{name}.attention.key_length") in keys:
        return keys.integer(key, high=65_536)
    hidden = keys.integer(f"{name}.embedding_length", high=2**24)
    heads = keys.integer(f"{name}.attention.head_count", high=65_536)
    if hidden % heads:
        raise FormatError(f"{keys.origin}: embedding_length ({hidden}) must be a multiple of head_count ({heads})")
    return hidden // heads


def _refuse_splits(keys: Keys) -> None:
    if (count := keys.integer("split.count", 1, low=0)) > 1:
        raise ModelLoadError(f"{keys.origin}: key 'split.count': is one of {count} parts; {SPLIT_GGUF}")


def _refuse(keys: Keys, name: str) -> None:
    for suffix, neutral in _REFUSED_KEYS.items():
        if (key := f"{name}.{suffix}") in keys and keys[key] != neutral:
            raise ModelLoadError(f"{keys.origin}: key '{key}' is not supported, found {brief(keys[key])}")


def _vocab_size(keys: Keys, name: str, tensors: Mapping[str, TensorInfo]) -> int:
    embedding = tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise FormatError(f"{keys.origin}: tensor 'token_embd.weight': a model needs it, with 2 dimensions")
    rows = embedding.shape[0]
    counts = {"tokenizer.ggml.tokens": len(keys.strings("tokenizer.ggml.tokens"))}
    counts[f"{name}.vocab_size"] = keys.integer(f"{name}.vocab_size", rows)
    for key, count in counts.items():
        if key in keys and count != rows:
            rule = f"must give as many tokens as 'token_embd.weight' has rows ({rows}), found {count}"
            raise FormatError(f"{keys.origin}: key '{key}': {rule}")
    return rows


def _token_ids(keys: Keys, vocab_size: int) -> dict[str, object]:
    ids: dict[str, object] = {}
    if (key := "tokenizer.ggml.bos_token_id") in keys:
        ids["bos_token_id"] = keys.integer(key, low=0, high=vocab_size - 1)
    # A chat model may end its turn with another token than the one that ends a text.
    ends = [key for kind in ("eos", "eot") if (key := f"tokenizer.ggml.{kind}_token_id") in keys]
    if found := [*dict.fromkeys(keys.integer(key, low=0, high=vocab_size - 1) for key in ends)]:
        ids["eos_token_id"] = found if len(found) > 1 else found[0]
    return ids


def _experts(keys: Keys, name: str) -> dict[str, object]:
    experts = keys.integer(f"{name}.expert_count", high=65_536)
    return {
        "num_experts": experts,
        "num_experts_per_tok": keys.integer(f"{name}.expert_used_count", high=experts),
        "moe_intermediate_size": keys.integer(f"{name}.expert_feed_forward_length", high=2**24),
        "norm_topk_prob": True,  # llama.cpp normalises the chosen experts' weights of this architecture always
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def _rope_scaling(keys: Keys, name: str, tensors: Mapping[str, TensorInfo], file: OpenFile) -> dict[str, object] | None:
    factor = _factor(keys, f"{name}.rope.scaling.factor", _factor(keys, f"{name}.rope.scale_linear", 1.0))
    # A file that gives a factor without a type means linear scaling.
    kind = keys.text(f"{name}.rope.scaling.type", "linear")
    if _ROPE_FACTORS in tensors:
        if factor != 1.0 and kind != "none":
            raise ModelLoadError(f"{keys.origin}: tensor '{_ROPE_FACTORS}' with a scaling factor is not supported")
        theta = keys.number(f"{name}.rope.freq_base", 10000.0)
        return _llama3_scaling(file, tensors[_ROPE_FACTORS], theta, _head_dim(keys, name))
    if kind not in ("none", "linear", "yarn"):
        raise ModelLoadError(f"{keys.origin}: key '{name}.rope.scaling.type': '{kind[:40]}' is not supported")
    if kind == "none" or factor == 1.0:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    trained = keys.integer(f"{name}.context_length")
    length = keys.integer(f"{name}.rope.scaling.original_context_length", trained)
    return {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}


def _factor(keys: Keys, key: str, default: float) -> float:
    return keys.number(key, default) if keys.get(key) != 0 else 1.0  # some converters write 0 for "not scaled"


def _llama3_scaling(file: OpenFile, info: TensorInfo, theta: float, head_dim: int) -> dict[str, object]:
    """Find the `llama3` scaling whose factors are those of `rope_freqs.weight`, or refuse.

    Source: Llama3Model.generate_extra_tensors in convert_hf_to_gguf.py of llama.cpp.
    """
    where = f"{file.name}: tensor '{info.name}'"
    if info.stored_type != "F32" or info.shape != (head_dim // 2,):
        found = f"{info.stored_type} {list(info.shape)}"
        raise FormatError(f"{where}: must be F32 of shape [{head_dim // 2}], found {found}")
    stored = struct.unpack(f"<{info.numel}f", file.read(info.offset, info.nbytes))
    factor = max(stored)
    low, high, length = _LLAMA3
    for index, value in enumerate(stored):
        wavelength = 2 * pi * theta ** (2 * index / head_dim)
        smooth = min(max((length / wavelength - low) / (high - low), 0.0), 1.0)
        if not abs(value * ((1 - smooth) / max(factor, 1.0) + smooth) - 1) < 1e-4:
            raise ModelLoadError(
                f"{where}: its values are not those of llama3 scaling (low_freq_factor {low}, high_freq_factor {high}, "
                f"original length {length}), and no other scaling by a tensor is supported"
            )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": length,
    }


def hugging_face_tensors(header: GGUFHeader) -> list[TensorInfo]:
    """Give the tensors of a GGUF file Hugging Face's names; stacked experts become one tensor each.

    A tensor that has no such name keeps its own. `rope_freqs.weight` is left out: `config_document` has used it.
    Raises FormatError when two tensors get one name, or a stack does not fit the keys.
    """
    keys = header.keys
    architecture = keys.text("general.architecture")
    if architecture not in ARCHITECTURES:
        return list(header.tensors)
    counts = _Counts(keys, architecture)
    named: dict[str, TensorInfo] = {}
    for info in header.tensors:
        if info.name == _ROPE_FACTORS:
            continue
        for found in _renamed(info, counts):
            if found.name in named:
                raise FormatError(f"{keys.origin}: tensor {info.name!r}: another tensor also means {found.name!r}")
            named[found.name] = found
        if len(named) > MAX_NAMED_TENSORS:
            raise FormatError(f"{keys.origin}: has more than {MAX_NAMED_TENSORS} tensors, experts counted singly")
    return list(named.values())


class _Counts:
    """How many heads and experts the keys of a file give to its tensors, and how the experts are called."""

    def __init__(self, keys: Keys, architecture: str) -> None:
        self.origin = keys.origin
        self.experts = keys.integer(f"{architecture}.expert_count", 0, low=0, high=65_536)
        self.expert_names = _MIXTRAL_EXPERTS if _is_mixtral(keys, architecture) else _QWEN_EXPERTS
        self.rope_heads: dict[str, int] = {}
        if architecture in _INTERLEAVED:
            queries = keys.integer(f"{architecture}.attention.head_count", high=65_536)
            keyed = keys.integer(f"{architecture}.attention.head_count_kv", queries, high=65_536)
            self.rope_heads = {"attn_q": queries, "attn_k": keyed}


def _renamed(info: TensorInfo, counts: _Counts) -> Iterable[TensorInfo]:
    if match := _LAYER_NAME.fullmatch(info.name):
        layer, part, kind = match.groups()
        prefix = f"model.layers.{layer}."
        names = counts.expert_names
        if part in names.parts and kind == "weight":
            return _unstacked(info, f"{prefix}{names.block}.experts", f"{names.parts[part]}.weight", counts)
        if part == _ROUTER:
            return [replace(info, name=f"{prefix}{names.block}.gate.{kind}")]
        if part in _IN_LAYER:
            heads = counts.rope_heads.get(part, 0)
            if heads and info.shape[0] % (2 * heads):
                rule = f"its rows must be a multiple of twice the {heads} heads, found {info.shape[0]}"
                raise FormatError(f"{counts.origin}: tensor {info.name!r}: {rule}")
            return [replace(info, name=f"{prefix}{_IN_LAYER[part]}.{kind}", rope_heads=heads)]
    elif (match := _OUTSIDE_NAME.fullmatch(info.name)) and match[1] in _OUTSIDE:
        return [replace(info, name=f"{_OUTSIDE[match[1]]}.{match[2]}")]
    return [info]


def _unstacked(info: TensorInfo, prefix: str, suffix: str, counts: _Counts) -> Iterable[TensorInfo]:
    if len(info.shape) != 3 or info.shape[0] != counts.experts:
        rule = f"must have 3 dimensions, the last as the key expert_count says ({counts.experts})"
        raise FormatError(f"{counts.origin}: tensor {info.name!r}: {rule}, found {list(info.shape[::-1])}")
    size = info.nbytes // counts.experts
    for expert in range(counts.experts):
        name, offset = f"{prefix}.{expert}.{suffix}", info.offset + expert * size
        yield TensorInfo(name, info.shape[1:], info.stored_type, info.file, offset, size)
