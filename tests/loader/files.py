"""Writes safetensors and GGUF files byte by byte, right or wrong ones, without any library that reads them."""

import json
import os
import struct
from pathlib import Path

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}
INDEX = "model.safetensors.index.json"


def safetensors_file(header, data=b"", length=None):
    """A file with this header (a mapping, or bytes as they are), its length field as it should be or as given."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(begin, end, dtype="F32", shape=None):
    """One header entry; the shape is that of a vector of 4-byte elements unless given."""
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


def vectors(**values):
    """A right file of F32 vectors."""
    header, data = {}, b""
    for name, items in values.items():
        header[name] = entry(len(data), len(data) + 4 * len(items))
        data += struct.pack(f"<{len(items)}f", *items)
    return safetensors_file(header, data)


def index_file(**weight_map):
    return json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}).encode()


def write_directory(path: Path, files, config=CONFIG):
    """Write a model directory; `files` maps names to bytes."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    for name, data in files.items():
        (path / name).write_bytes(data)
    return str(path)


class Typed:
    """A GGUF value of the type with this id, with its payload as bytes."""

    def __init__(self, kind, payload):
        self.kind, self.payload = kind, payload


def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def array(kind, count, payload=b""):
    """An array whose header says `count` elements of type `kind`, whatever the payload holds."""
    return Typed(9, struct.pack("<IQ", kind, count) + payload)


def strings(*items):
    return array(8, len(items), b"".join(string(item) for item in items))


def _value(value):
    if isinstance(value, Typed):
        return struct.pack("<I", value.kind) + value.payload
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<IQ", 10, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    return struct.pack("<I", 8) + string(value)


def tensor(name, dims, kind=0, offset=0):
    """One row of the tensor directory; `dims` as the file has them, fastest first."""
    return string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf_file(
    keys=(), tensors=(), data=b"", *, magic=b"GGUF", version=3, num_keys=None, num_tensors=None, architecture="other"
):
    """A GGUF file; `keys` are pairs, so that a key can be repeated, and the counts can be made to lie."""
    keys = [("general.architecture", architecture), *keys]
    num_tensors = len(tensors) if num_tensors is None else num_tensors
    head = magic + struct.pack("<IQQ", version, num_tensors, len(keys) if num_keys is None else num_keys)
    head += b"".join(string(key) + _value(value) for key, value in keys) + b"".join(tensors)
    return head + bytes(-len(head) % 32) + data


#: Keys of a llama model of one layer with 2 heads of 4, and tensors that `config_document` asks for.
LLAMA_KEYS = {
    "llama.block_count": 1,
    "llama.context_length": 64,
    "llama.embedding_length": 8,
    "llama.feed_forward_length": 8,
    "llama.attention.head_count": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def llama_gguf(changes=None, tensors=(), data=b"", architecture="llama"):
    """A GGUF file with keys changed, added, or (None) left out; `token_embd` of 4 rows of zeros comes first."""
    keys = {key.replace("llama", architecture, 1): value for key, value in LLAMA_KEYS.items()} | (changes or {})
    given = [(key, value) for key, value in keys.items() if value is not None]
    rows = [tensor("token_embd.weight", (8, 4)), *tensors]
    return gguf_file(given, rows, bytes(8 * 4 * 4) + data, architecture=architecture)


def allowed_lines(path):
    """Lines of Python that reading a model's headers may take: bounded by what is on the disk, whatever numbers say."""
    files = [path, *path.iterdir()] if (path := Path(path)).is_dir() else [path]
    return 4000 + sum(file.stat().st_blocks * 512 for file in files if file.is_file())


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))
