"""Tensors reach the memory they were given, in order, in small pieces, on every way of reading."""

import struct

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType

from pyvllm.errors import FormatError, InvalidArgument
from pyvllm.model_loader import reader
from pyvllm.model_loader.checkpoint import Checkpoint, open_model
from pyvllm.model_loader.reader import read_tensor
from pyvllm.model_loader.tensor_info import TensorInfo
from tests.loader.files import entry, llama_gguf, safetensors_file, tensor, write_directory


@pytest.fixture
def vector(tmp_path):
    """A checkpoint with the F32 tensor x = 0, 1, ... 999 and the I64 tensor n."""
    header = {"x": entry(0, 4000), "n": entry(4000, 4016, "I64", [2])}
    data = struct.pack("<1000f", *range(1000)) + bytes(16)
    with open_model(
        write_directory(tmp_path / "m", {"model.safetensors": safetensors_file(header, data)})
    ).headers() as opened:
        yield opened


def test_equal_dtype_is_read_in_one_piece_into_place(vector, monkeypatch):
    reads = []
    read_into = Checkpoint.read_into
    monkeypatch.setattr(Checkpoint, "read_into", lambda *a: reads.append(len(a[3])) or read_into(*a))
    out = torch.zeros(1002)
    read_tensor(vector, vector.tensors["x"], out[1:1001])
    assert reads == [4000]
    assert out.tolist() == [0.0, *range(1000), 0.0]


@pytest.mark.parametrize("chunk", [1, 7, 999, 1000, 1001])
def test_chunks_of_any_size_give_the_same_values(vector, monkeypatch, chunk):
    monkeypatch.setattr(reader, "CHUNK_ELEMENTS", chunk)
    out = torch.zeros(1002, dtype=torch.float16)
    read_tensor(vector, vector.tensors["x"], out[1:1001])
    assert out.tolist() == [0.0, *range(1000), 0.0]


def test_any_shape_of_as_many_elements_is_filled(vector):
    out = torch.zeros(10, 100)
    read_tensor(vector, vector.tensors["x"], out)
    assert out.flatten().tolist() == [*range(1000)]


def test_a_parameter_is_filled_in_place(vector):
    parameter = torch.nn.Parameter(torch.zeros(1000), requires_grad=True)
    read_tensor(vector, vector.tensors["x"], parameter)
    assert parameter[999].item() == 999.0


@pytest.mark.parametrize(
    "out",
    [torch.zeros(999), torch.zeros(1000, 2)[:, 0], torch.zeros(1000, dtype=torch.int32)],
    ids=["size", "stride", "dtype"],
)
def test_memory_that_does_not_fit_is_refused(vector, out):
    with pytest.raises(InvalidArgument, match=r"tensor 'x' of shape \[1000\] needs a contiguous float tensor"):
        read_tensor(vector, vector.tensors["x"], out)


def test_integers_are_no_weights(vector):
    with pytest.raises(FormatError, match=r"model\.safetensors: tensor 'n': is stored as I64; a weight is read from"):
        read_tensor(vector, vector.tensors["n"], torch.zeros(2))


def test_read_past_the_tensor_is_refused(vector):
    with pytest.raises(FormatError, match="has 4000 bytes, 4 were asked for at byte 3997"):
        vector.read_into(vector.tensors["x"], 3997, memoryview(bytearray(4)))


@pytest.mark.parametrize("chunk", [256, 700, 1024, 2**18])
def test_blocks_are_never_split(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(reader, "CHUNK_ELEMENTS", chunk)
    blocks = np.random.default_rng(0).integers(0, 128, size=(10, 210), dtype=np.uint8)
    blocks[:, 209] &= 0x3F
    data = tmp_path / "m.gguf"
    data.write_bytes(llama_gguf({}, [tensor("x", (512, 5), kind=14, offset=128)], blocks.tobytes()))
    out = torch.zeros(5, 512)
    with open_model(str(data)).headers() as checkpoint:
        read_tensor(checkpoint, checkpoint.tensors["x"], out)
    assert np.array_equal(out.numpy().reshape(10, 256), gguf.dequantize(blocks, GGMLQuantizationType.Q6_K))


def permuted(weights, heads):
    """How llama.cpp stores query and key rows: [heads, 2, D/2, columns] becomes [heads, D/2, 2, columns]."""
    pairs = weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


@pytest.mark.parametrize("chunk", [1, 100, 2**18])
@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_rotary_rows_are_put_back_in_order(tmp_path, monkeypatch, chunk, heads, kind):
    monkeypatch.setattr(reader, "CHUNK_ELEMENTS", chunk)
    rows = np.random.default_rng(0).normal(size=(24, 64)).astype(np.float32)
    stored = gguf.quantize(permuted(rows, heads), GGMLQuantizationType[kind])
    expected = permuted_back(stored, heads, kind)
    path = tmp_path / "m.gguf"
    number = GGMLQuantizationType[kind].value
    keys = {
        "llama.attention.head_count": heads * 2,
        "llama.attention.head_count_kv": heads,
        "llama.attention.key_length": 4,
    }
    path.write_bytes(llama_gguf(keys, [tensor("blk.0.attn_k.weight", (64, 24), number, offset=128)], stored.tobytes()))
    out = torch.zeros(24, 64)
    with open_model(str(path)).headers() as checkpoint:
        info = checkpoint.tensors["model.layers.0.self_attn.k_proj.weight"]
        assert info.rope_heads == heads
        read_tensor(checkpoint, info, out)
    assert np.array_equal(out.numpy(), expected)
    if kind == "F32":
        assert np.array_equal(out.numpy(), rows)


def permuted_back(stored, heads, kind):
    values = gguf.dequantize(stored, GGMLQuantizationType[kind])
    half = values.shape[0] // heads // 2
    return values.reshape(heads, half, 2, -1).swapaxes(1, 2).reshape(values.shape)


def test_rotary_biases_are_put_back_in_order(tmp_path):
    bias = np.arange(8, dtype=np.float32)
    path = tmp_path / "m.gguf"
    path.write_bytes(llama_gguf({}, [tensor("blk.0.attn_q.bias", (8,), offset=128)], permuted(bias, 2).tobytes()))
    out = torch.zeros(8, dtype=torch.bfloat16)
    with open_model(str(path)).headers() as checkpoint:
        read_tensor(checkpoint, checkpoint.tensors["model.layers.0.self_attn.q_proj.bias"], out)
    assert out.tolist() == bias.tolist()


def test_info_says_what_can_be_read():
    kinds = {"F32": True, "F16": True, "BF16": True, "Q4_K": True, "I64": False, "F64": False, "BOOL": False}
    found = {kind: TensorInfo("x", (2, 3), kind, 0, 0, 24).is_readable for kind in kinds}
    assert found == kinds and TensorInfo("x", (2, 3), "F32", 0, 0, 24).numel == 6
