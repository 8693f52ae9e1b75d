"""Makes the files that the tables need: SmolLM2 in other forms, and a random mixture of experts."""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from load import make_directory

#: Rows of the random table are drawn with this seed; the experts' counts of a scan share it.
_SEED = 5


@dataclass(frozen=True, slots=True)
class MoeShape:
    """A Qwen3-MoE; with the defaults and a vocabulary of 49,152 it has 1.1e9 parameters, 2.2 GB in bfloat16."""

    num_experts: int = 128
    num_experts_per_tok: int = 8
    num_hidden_layers: int = 10
    hidden_size: int = 1024
    moe_intermediate_size: int = 256
    num_attention_heads: int = 16
    num_key_value_heads: int = 4
    head_dim: int = 64

    def document(self, vocab_size: int) -> dict[str, object]:
        """Give the model's config.json."""
        names = (name for name in MoeShape.__dataclass_fields__)
        return {
            "architectures": ["Qwen3MoeForCausalLM"],
            "model_type": "qwen3_moe",
            "dtype": "bfloat16",
            **{name: getattr(self, name) for name in names},
            "vocab_size": vocab_size,
            "intermediate_size": 4 * self.hidden_size,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "rope_theta": 1000000.0,
            "hidden_act": "silu",
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "tie_word_embeddings": False,
            "attention_bias": False,
        }

    def layer_weights(self) -> dict[str, tuple[int, ...]]:
        """Give the matrices of a layer outside its experts, without the prefix: name and shape."""
        width, head = self.hidden_size, self.head_dim
        queries, keys = self.num_attention_heads * head, self.num_key_value_heads * head
        return {
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries),
            "mlp.gate": (self.num_experts, width),
        }

    def active_weights(self, vocab_size: int) -> int:
        """Count the matrix weights that one token needs: every layer with its chosen experts, and the head."""
        layer = sum(rows * columns for rows, columns in self.layer_weights().values())
        layer += 3 * self.num_experts_per_tok * self.hidden_size * self.moe_intermediate_size
        return self.num_hidden_layers * layer + vocab_size * self.hidden_size


#: Small enough that a test makes it and runs it in seconds.
TINY_MOE = MoeShape(
    num_experts=8, num_experts_per_tok=2, num_hidden_layers=2, hidden_size=64, moe_intermediate_size=32,
    num_attention_heads=4, num_key_value_heads=2, head_dim=16,
)  # fmt: skip


def moe_tensors(shape: MoeShape, vocab_size: int) -> dict[str, object]:
    """Draw the weights in bfloat16, under Hugging Face's names; a layer's experts are views of one stack."""
    import torch

    generator = torch.Generator().manual_seed(_SEED)
    width, inner, count = shape.hidden_size, shape.moe_intermediate_size, shape.num_experts

    def drawn(*sizes: int) -> torch.Tensor:
        return (torch.randn(sizes, generator=generator) * sizes[-1] ** -0.5).bfloat16()

    table = drawn(vocab_size, width) * width**0.5
    tensors = {"model.embed_tokens.weight": table, "lm_head.weight": drawn(vocab_size, width)}
    norms = {"model.norm": width}
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        for name, sizes in shape.layer_weights().items():
            tensors[f"{prefix}.{name}.weight"] = drawn(*sizes)
        for part, sizes in (("gate_proj", (inner, width)), ("up_proj", (inner, width)), ("down_proj", (width, inner))):
            stack = drawn(count, *sizes)
            for expert in range(count):
                tensors[f"{prefix}.mlp.experts.{expert}.{part}.weight"] = stack[expert]
        norms |= {f"{prefix}.{name}": width for name in ("input_layernorm", "post_attention_layernorm")}
        norms |= {f"{prefix}.self_attn.{name}": shape.head_dim for name in ("q_norm", "k_norm")}
    return tensors | {f"{name}.weight": torch.ones(size).bfloat16() for name, size in norms.items()}


def make_moe(gguf_file: str, folder: str, shape: MoeShape, with_gguf: bool) -> None:
    """Write a random mixture of experts with the vocabulary of a GGUF file.

    Into `folder`: `moe/` with config.json, model.safetensors, tokenizer.json; and `moe-bf16.gguf`, `moe-q8_0.gguf`.
    """
    from safetensors.torch import save_file

    from pyvllm.model_loader.checkpoint import open_model
    from pyvllm.tokenizer.gguf_backend import build_backend
    from pyvllm.tokenizer.gguf_vocab import read_vocab

    vocab = read_vocab(open_model(gguf_file).gguf_metadata)
    tensors = moe_tensors(shape, len(vocab.tokens))
    directory = Path(folder, "moe")
    directory.mkdir(parents=True)
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(shape.document(len(vocab.tokens))))
    build_backend(vocab).tokenizer.save(str(directory / "tokenizer.json"))
    if with_gguf:
        for kind in ("BF16", "Q8_0"):
            write_moe_gguf(gguf_file, str(Path(folder, f"moe-{kind.lower()}.gguf")), shape, tensors, kind)


_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
}


def write_moe_gguf(gguf_file: str, target: str, shape: MoeShape, tensors: dict[str, object], kind: str) -> None:
    """Write the model as GGUF, its matrices as `kind`, BF16 or Q8_0; norms and routers in float32, as llama.cpp does.

    Tensors are written one by one, so that no second copy of the model is held. Source of names and keys: gguf-py's
    constants.
    """
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(target, "qwen3moe")
    _write_keys(writer, gguf_file, shape)
    named = dict(_gguf_tensors(shape, tensors))
    kinds = {name: _stored_kind(name, kind) for name in named}
    for name, (sizes, _) in named.items():
        stored = gguf.GGMLQuantizationType[kinds[name]]
        nbytes = np.prod(gguf.quant_shape_to_byte_shape(sizes, stored)).item()
        writer.add_tensor_info(name, sizes, np.dtype(np.float32), nbytes, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name, (_, read) in named.items():
        writer.write_tensor_data(gguf.quantize(read().float().numpy(), gguf.GGMLQuantizationType[kinds[name]]))
    writer.close()


def _stored_kind(name: str, kind: str) -> str:
    return "F32" if "norm" in name or "ffn_gate_inp" in name else kind


def _gguf_tensors(
    shape: MoeShape, tensors: dict[str, object]
) -> Iterator[tuple[str, tuple[tuple[int, ...], Callable[[], object]]]]:
    """Name each tensor of the GGUF file, with its shape and a function that gives it."""
    import torch

    def whole(name: str) -> tuple[tuple[int, ...], Callable[[], object]]:
        return tuple(tensors[name].shape), lambda: tensors[name]

    yield "token_embd.weight", whole("model.embed_tokens.weight")
    yield "output_norm.weight", whole("model.norm.weight")
    yield "output.weight", whole("lm_head.weight")
    for layer in range(shape.num_hidden_layers):
        for name, short in _GGUF_NAMES.items():
            yield f"blk.{layer}.{short}.weight", whole(f"model.layers.{layer}.{name}.weight")
        for part in ("gate", "up", "down"):
            names = [f"model.layers.{layer}.mlp.experts.{e}.{part}_proj.weight" for e in range(shape.num_experts)]
            sizes = (shape.num_experts, *tensors[names[0]].shape)
            yield f"blk.{layer}.ffn_{part}_exps.weight", (sizes, lambda n=names: torch.stack([tensors[x] for x in n]))


def _write_keys(writer: object, gguf_file: str, shape: MoeShape) -> None:
    """Write the model's keys, and the vocabulary's as the other file has them."""
    import gguf

    document = shape.document(0)
    writer.add_block_count(shape.num_hidden_layers)
    writer.add_context_length(document["max_position_embeddings"])
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(document["intermediate_size"])
    writer.add_head_count(shape.num_attention_heads)
    writer.add_head_count_kv(shape.num_key_value_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_freq_base(document["rope_theta"])
    writer.add_layer_norm_rms_eps(document["rms_norm_eps"])
    writer.add_expert_count(shape.num_experts)
    writer.add_expert_used_count(shape.num_experts_per_tok)
    writer.add_expert_feed_forward_length(shape.moe_intermediate_size)
    for name, field in gguf.GGUFReader(gguf_file).fields.items():
        if name.startswith("tokenizer."):
            is_array = field.types[0] == gguf.GGUFValueType.ARRAY
            writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if is_array else None)


def main(kind: str, *arguments: str) -> None:
    """Make one kind of files: `directory GGUF TARGET`, or `moe GGUF FOLDER SHAPE WITH_GGUF`."""
    if kind == "directory":
        make_directory(*arguments)
        return
    gguf_file, folder, shape, with_gguf = arguments
    make_moe(gguf_file, folder, MoeShape(**json.loads(shape)), with_gguf == "with_gguf")


if __name__ == "__main__":
    main(*sys.argv[1:])
