"""Tiny models as embedding checkpoints are: without a head, or with a `modules.json`; and one with a template."""

import json

from safetensors.torch import load_file, save_file

from tests.server.conftest import TEMPLATE
from tests.tiny_models import write_tiny


def write_headless(architecture, directory, *, prefix=""):
    """A checkpoint of `LlamaModel` and its like: no head, and tensors named from the decoder on."""
    write_tiny(architecture.replace("Model", "ForCausalLM"), directory)
    tensors = load_file(directory / "model.safetensors")
    kept = {prefix + name.removeprefix("model."): value for name, value in tensors.items() if name != "lm_head.weight"}
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    change(directory / "config.json", architectures=[architecture])
    return directory


def write_pooled(directory, pooling, *, architecture="Qwen3ForCausalLM"):
    """A generating checkpoint with the files of sentence-transformers beside it."""
    write_tiny(architecture, directory)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ]
    (directory / "modules.json").write_text(json.dumps(modules))
    (directory / "1_Pooling").mkdir()
    (directory / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return directory


def write_chatty(directory, **more):
    """A tiny Llama with a chat template."""
    write_tiny("LlamaForCausalLM", directory, **more)
    change(directory / "tokenizer_config.json", chat_template=TEMPLATE)
    return directory


def change(path, **fields):
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
