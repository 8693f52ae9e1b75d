"""What the safetensors and gguf packages write is read back, every tensor and every value."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from pyvllm.model_loader.checkpoint import open_model
from pyvllm.model_loader.reader import read_tensor

from .files import write_directory

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def read(path, dtype=None):
    """All tensors of a model, in their stored dtype or in the one given."""
    tensors = {}
    with open_model(str(path)).headers() as checkpoint:
        for name, info in checkpoint.tensors.items():
            stored = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}.get(info.stored_type)
            tensors[name] = torch.full(info.shape, float("nan"), dtype=dtype or stored or torch.float32)
            read_tensor(checkpoint, info, tensors[name])
    return tensors


shapes = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.dictionaries(st.text("ab._0Ü", min_size=1), st.tuples(shapes, st.sampled_from(sorted(DTYPES))), min_size=1))
def test_safetensors_files_of_any_shapes_are_read_back(tmp_path_factory, described):
    torch.manual_seed(0)
    written = {name: torch.randn(shape).to(DTYPES[dtype]) for name, (shape, dtype) in described.items()}
    directory = tmp_path_factory.mktemp("m")
    write_directory(directory, {})
    save_file(written, directory / "model.safetensors", metadata={"format": "pt"})
    found = read(directory)
    assert found.keys() == written.keys()
    for name, tensor in written.items():
        assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("wanted", DTYPES)
def test_dtypes_are_converted_as_torch_converts_them(tmp_path, stored, wanted):
    torch.manual_seed(0)
    halves = torch.arange(2**16, dtype=torch.int32).to(torch.int16)
    bits = torch.cat((torch.randn(300_000), halves.view(torch.bfloat16).float(), halves.view(torch.float16).float()))
    written = torch.where(torch.isnan(bits), 0.0, bits).to(DTYPES[stored])
    save_file({"x": written}, tmp_path / "model.safetensors")
    write_directory(tmp_path, {})
    assert torch.equal(read(tmp_path, DTYPES[wanted])["x"], written.to(DTYPES[wanted]))


def write_gguf(path, tensors, architecture="other", **values):
    """tensors: name -> (array of float32, type)."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        writer.add_key_value(key.replace("__", "."), *value)
    for name, (array, kind) in tensors.items():
        writer.add_tensor(name, gguf.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


QUANTISABLE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]


def test_gguf_file_of_every_type_is_read_back(tmp_path):
    shapes = {"F32": (3, 32), "F16": (7,), "BF16": (2, 3, 5), "Q8_0": (5, 7, 64)}
    written = {
        kind: (
            np.random.default_rng(0).normal(size=shapes.get(kind, (5, 96))).astype(np.float32),
            GGMLQuantizationType[kind],
        )
        for kind in QUANTISABLE
    }
    write_gguf(tmp_path / "m.gguf", written)
    found = read(tmp_path / "m.gguf", torch.float32)
    assert found.keys() == written.keys()
    for name, (array, kind) in written.items():
        expected = gguf.dequantize(gguf.quantize(array, kind), kind).reshape(array.shape)
        assert np.array_equal(found[name].numpy(), expected), name


@pytest.mark.parametrize("alignment", [8, 64, 4096])
def test_alignment_of_the_file_is_followed(tmp_path, alignment):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "other")
    writer.add_custom_alignment(alignment)
    arrays = {name: np.full(size, size, dtype=np.float32) for name, size in (("a", 1), ("b", 3), ("c", 5))}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read(tmp_path / "m.gguf")
    assert {name: tensor.tolist() for name, tensor in found.items()} == {n: a.tolist() for n, a in arrays.items()}


def test_keys_of_every_type_are_read_back(tmp_path):
    kinds = gguf.GGUFValueType
    values = {
        "u8": (200, kinds.UINT8), "i8": (-3, kinds.INT8), "u16": (60_000, kinds.UINT16), "i16": (-3, kinds.INT16),
        "u32": (2**32 - 1, kinds.UINT32), "i32": (-(2**31), kinds.INT32), "f32": (0.5, kinds.FLOAT32),
        "yes": (True, kinds.BOOL), "text": ("Ünïcode", kinds.STRING), "u64": (2**64 - 1, kinds.UINT64),
        "i64": (-(2**63), kinds.INT64), "f64": (0.1, kinds.FLOAT64), "strings": (["a", "", "Ü"], kinds.ARRAY),
        "numbers": ([1, -2, 3], kinds.ARRAY), "floats": ([0.5, -0.25], kinds.ARRAY),
        "flags": ([True, False], kinds.ARRAY),
    }  # fmt: skip
    write_gguf(tmp_path / "m.gguf", {"x": (np.zeros(1, np.float32), GGMLQuantizationType.F32)}, **values)
    metadata = open_model(str(tmp_path / "m.gguf")).gguf_metadata
    assert {key: metadata[key] for key in values} == {key: value for key, (value, _) in values.items()}


def test_vocabulary_longer_than_the_reading_window_is_read_back(tmp_path):
    tokens = [f"{'Ġ' * (number % 30)}{number}" for number in range(100_000)]
    write_gguf(
        tmp_path / "m.gguf",
        {"x": (np.zeros(1, np.float32), GGMLQuantizationType.F32)},
        tokenizer__ggml__tokens=(tokens, gguf.GGUFValueType.ARRAY),
    )
    assert open_model(str(tmp_path / "m.gguf")).gguf_metadata["tokenizer.ggml.tokens"] == tokens
