"""What users of other loaders reported, tried on this one; each test bears the id of its report."""

import struct
import subprocess
import sys

import pytest
import torch

from pyvllm.errors import ModelLoadError
from pyvllm.model_loader.checkpoint import open_model
from pyvllm.model_loader.gguf import TYPE_NAMES
from pyvllm.model_loader.reader import read_tensor

from .attacks import GOOD
from .files import INDEX, entry, gguf_file, index_file, safetensors_file, tensor, vectors, write_directory


def tensors_of(path):
    with open_model(str(path)).headers() as checkpoint:
        return {name: values(checkpoint, name) for name in checkpoint.tensors}


def values(checkpoint, name):
    out = torch.empty(checkpoint.tensors[name].shape)
    read_tensor(checkpoint, checkpoint.tensors[name], out)
    return out.tolist()


def refused(path):
    with pytest.raises(ModelLoadError) as caught:
        open_model(str(path)).headers()
    return str(caught.value)


def test_R54_consolidated_file_beside_an_index_is_ignored(tmp_path):
    files = {INDEX: index_file(x="a.safetensors"), "a.safetensors": vectors(x=[1.0])}
    path = write_directory(tmp_path / "m", files | {"consolidated.safetensors": vectors(x=[9.0], wq=[9.0])})
    assert tensors_of(path) == {"x": [1.0]}


@pytest.mark.parametrize("name", ["model.safetensors", "model-00001-of-00001.safetensors"])
def test_R54_consolidated_file_beside_other_files_is_ignored(tmp_path, name):
    files = {name: vectors(x=[1.0]), "consolidated.safetensors": vectors(x=[9.0])}
    assert tensors_of(write_directory(tmp_path / "m", files)) == {"x": [1.0]}


def test_R59_weight_map_decides_for_each_tensor(tmp_path):
    files = {
        INDEX: index_file(x="a.safetensors", y="b.safetensors"),
        "a.safetensors": vectors(x=[1.0], y=[9.0]),
        "b.safetensors": vectors(x=[9.0], y=[2.0]),
    }
    assert tensors_of(write_directory(tmp_path / "m", files)) == {"x": [1.0], "y": [2.0]}


def test_R59_a_name_in_two_files_without_an_index_is_refused(tmp_path):
    text = refused(write_directory(tmp_path / "m", {"a.safetensors": GOOD, "b.safetensors": vectors(x=[1.0])}))
    assert text == f"b.safetensors: tensor 'x': is also in a.safetensors, and no {INDEX} says which one counts"


def test_R60_index_names_a_shard_that_is_not_on_disk(tmp_path):
    index = index_file(x="a.safetensors", y="b.safetensors", z="c.safetensors")
    # The shard that is there is broken, which only somebody who opened it first would say.
    path = write_directory(tmp_path / "m", {INDEX: index, "a.safetensors": b"broken"})
    assert refused(path) == f"{INDEX}: names a file that is not there: b.safetensors and 1 more"


def test_R60_missing_file_of_a_numbered_set_without_an_index(tmp_path):
    files = {f"model-0000{part}-of-00003.safetensors": vectors(**{f"x{part}": [1.0]}) for part in (1, 3)}
    text = refused(write_directory(tmp_path / "m", files))
    assert text.endswith("is one of 3 files, and model-00002-of-00003.safetensors is not there")


def test_R61_missing_shard_is_one_short_line(tmp_path):
    index = index_file(**{f"x{number}": f"{number}.safetensors" for number in range(1000)})
    text = refused(write_directory(tmp_path / "m", {INDEX: index}))
    assert "0.safetensors and 999 more" in text and "\n" not in text and len(text) < 120


def test_R62_empty_directory_is_refused(tmp_path):
    assert "has no config.json; a model is a directory with config.json" in refused(tmp_path)


def test_R62_configuration_without_weights_is_refused(tmp_path):
    assert "has no .safetensors file" in refused(write_directory(tmp_path / "m", {}))


def test_R62_directory_named_like_a_weight_file_is_refused(tmp_path):
    path = write_directory(tmp_path / "m", {})
    (tmp_path / "m" / "model.safetensors").mkdir()
    assert refused(path) == "model.safetensors: must be a regular file, found a directory"


@pytest.mark.parametrize("cut", [1, 1024, 2**19])
def test_R63_R64_truncated_last_shard_says_both_sizes(tmp_path, cut):
    whole = safetensors_file({"x": entry(0, 2**20)}, bytes(2**20))
    path = write_directory(
        tmp_path / "m", {"a.safetensors": GOOD.replace(b'"x"', b'"z"'), "b.safetensors": whole[:-cut]}
    )
    expected = f"truncated: the header describes {len(whole)} bytes, the file has {len(whole) - cut}"
    assert refused(path) == f"b.safetensors: tensor 'x': {expected}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_R66_data_at_an_odd_offset_is_read(tmp_path, dtype):
    header = b'{"x":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}'
    header += b" " * (1 - len(header) % 2)
    path = write_directory(
        tmp_path / "m", {"model.safetensors": safetensors_file(header, struct.pack("<3f", 1, -2, 0.5))}
    )
    with open_model(path).headers() as checkpoint:
        assert checkpoint.tensors["x"].offset % 2 == 1
        out = torch.empty(3, dtype=dtype)
        read_tensor(checkpoint, checkpoint.tensors["x"], out)
    assert out.tolist() == [1.0, -2.0, 0.5]


@pytest.mark.parametrize("length", [100_000_001, 2**63])
def test_R68_header_over_the_limit_names_the_limit(tmp_path, length):
    text = refused(write_directory(tmp_path / "m", {"model.safetensors": safetensors_file({}, length=length)}))
    assert text == f"model.safetensors: header length {length} exceeds the format's limit of 100000000"


def test_R69_file_of_metadata_alone_has_no_tensors(tmp_path):
    path = write_directory(tmp_path / "m", {"model.safetensors": safetensors_file({"__metadata__": {}})})
    assert refused(path) == "model.safetensors: has no tensors"


def test_R70_shape_and_size_disagree(tmp_path):
    path = write_directory(
        tmp_path / "m", {"model.safetensors": safetensors_file({"x": entry(0, 12, shape=[2, 2])}, bytes(12))}
    )
    assert refused(path) == "model.safetensors: tensor 'x': shape [2, 2] of F32 needs 16 bytes, data_offsets give 12"


@pytest.mark.parametrize("dtype", ["F8_E8M0", "F8_E4M3", "F4", "X9", "f32", "", None])
def test_R71_unknown_dtype_is_named(tmp_path, dtype):
    path = write_directory(tmp_path / "m", {"model.safetensors": safetensors_file({"x": entry(0, 4, dtype)}, bytes(4))})
    assert refused(path).startswith(f"model.safetensors: tensor 'x': dtype {dtype!r} is not supported")


@pytest.mark.parametrize("name", ["../other/model.safetensors", "/etc/passwd", "..\\model.safetensors"])
def test_R72_weight_map_cannot_lead_out_of_the_directory(tmp_path, name):
    write_directory(tmp_path / "other", {"model.safetensors": GOOD})
    path = write_directory(tmp_path / "m", {INDEX: index_file(x=name)})
    expected = f"{INDEX}: tensor 'x': file name {name!r} must be a plain file name inside the model directory"
    assert refused(path) == expected


def test_R73_R79_bfloat16_stays_bfloat16(tmp_path):
    stored = bytes(range(256)) * 2
    path = write_directory(
        tmp_path / "m", {"model.safetensors": safetensors_file({"x": entry(0, 512, "BF16", [16, 16])}, stored)}
    )
    with open_model(path).headers() as checkpoint:
        assert (checkpoint.stored_dtype, checkpoint.file_bytes) == ("bfloat16", 512)
        out = torch.empty(16, 16, dtype=torch.bfloat16)
        read_tensor(checkpoint, checkpoint.tensors["x"], out)
    assert out.view(torch.uint8).numpy().tobytes() == stored


def test_R98_quantised_file_says_how_many_bytes_it_stores(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file([], [tensor("x", (256, 4), kind=14)], bytes(4 * 210)))
    with open_model(str(path)).headers() as checkpoint:
        assert checkpoint.is_quantised and checkpoint.file_bytes == 840


#: Ids of the tensor types that are read; every other one from 0 to 40 is refused with its own name.
READ = {0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0"}
READ |= {12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 30: "BF16"}


@pytest.mark.parametrize("kind", range(42))
def test_R99_every_tensor_type_is_read_or_named(tmp_path, kind):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file([], [tensor("blk.0.x", (256,), kind)], bytes(1024)))
    if kind in READ:
        with open_model(str(path)).headers() as checkpoint:
            assert checkpoint.tensors["blk.0.x"].stored_type == READ[kind]
    else:
        name = TYPE_NAMES[kind]
        assert refused(path).startswith(
            f"m.gguf: tensor 'blk.0.x': type {name} (id {kind}) is not supported; types that"
        )


PEAK = """
import resource, sys, torch
from pyvllm.model_loader.checkpoint import open_model
from pyvllm.model_loader.reader import read_tensor
out = torch.zeros(2**24, dtype=torch.bfloat16)
with open_model(sys.argv[1]).headers() as checkpoint:
    read_tensor(checkpoint, checkpoint.tensors["warm"], torch.zeros(2**20, dtype=torch.bfloat16))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_tensor(checkpoint, checkpoint.tensors["x"], out)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_R32_R105_reading_holds_no_second_copy(tmp_path, dtype):
    size = {"F32": 4, "BF16": 2}[dtype]
    header = {
        "warm": entry(0, 2**20 * size, dtype, [2**20]),
        "x": entry(2**20 * size, (2**20 + 2**24) * size, dtype, [2**24]),
    }
    path = write_directory(tmp_path / "m", {"model.safetensors": safetensors_file(header)})
    file = tmp_path / "m" / "model.safetensors"
    with file.open("r+b") as sparse:
        sparse.truncate(file.stat().st_size + (2**20 + 2**24) * size)
    run = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 4 * 1024, "KiB above the 32 MiB that the weight itself takes"


def test_R114_every_way_of_reading_gives_the_same_bytes(tmp_path):
    stored = bytes(index * 7 % 256 for index in range(4096))
    header = {"a": entry(0, 4, "U8", [4]), "x": entry(4, 4096, "U8", [4092])}
    path = write_directory(tmp_path / "m", {"model.safetensors": safetensors_file(header, stored)})
    with open_model(path).headers() as checkpoint:
        info = checkpoint.tensors["x"]
        for step in (1, 7, 1000, 4092):
            read = bytearray(info.nbytes)
            for start in range(0, info.nbytes, step):
                checkpoint.read_into(info, start, memoryview(read)[start : start + step])
            assert bytes(read) == stored[4:]


def test_R120_37_byte_file_with_an_empty_key_is_an_error(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<QIB", 0, 0, 0))
    assert path.stat().st_size == 37
    assert "m.gguf: truncated: a header of 1 keys and 1 tensors" in refused(path)


def test_R121_dimension_that_overflows_the_size_is_an_error(tmp_path):
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file([], [tensor("x", (2**42 + 1, 2**22))], bytes(32)))
    assert "tensor 'x': dimensions must be at least 1 and make less than 2**63 bytes" in refused(path)


def test_49_byte_array_length_attack_returns_at_once(tmp_path):
    """PyPI's gguf reader grew to 2 GiB in 12 s on this file."""
    path = tmp_path / "m.gguf"
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"a" + struct.pack("<IIQ", 9, 0, 2**63)
    )
    assert path.stat().st_size == 49
    assert "must have from 1 to 100000 tensors, found 0" in refused(path)
