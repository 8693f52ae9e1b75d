"""Damaged files give a checkpoint or an error of ours, quickly, and nothing else."""

import json
import time

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvllm.errors import VllmError
from pyvllm.model_loader.checkpoint import open_model

from .attacks import GOOD
from .files import CONFIG, INDEX, index_file, llama_gguf, open_descriptors, strings, tensor, vectors, write_directory

GOOD_GGUF = llama_gguf(
    {
        "tokenizer.ggml.tokens": strings("a", "b", "c", "d"),
        "tokenizer.ggml.eos_token_id": 3,
        "llama.rope.freq_base": 500.0,
    },
    [
        tensor("blk.0.attn_q.weight", (8, 8), offset=128),
        tensor("blk.0.ffn_up.weight", (32, 2), kind=8, offset=384),
        tensor("rope_freqs.weight", (2,), offset=480),
    ],
    bytes(256) + bytes(96) + b"\0\0\x80?" * 2,
)

damage = st.lists(
    st.one_of(
        st.tuples(st.just("set"), st.integers(0, 2**16), st.integers(0, 255)),
        st.tuples(st.just("flip"), st.integers(0, 2**16), st.integers(0, 7)),
        st.tuples(st.just("cut"), st.integers(0, 2**16), st.integers(1, 64)),
        st.tuples(st.just("double"), st.integers(0, 2**16), st.integers(1, 64)),
        st.tuples(st.just("ones"), st.integers(0, 2**16), st.integers(1, 8)),
        st.tuples(st.just("end"), st.integers(0, 2**16), st.just(0)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data, steps):
    data = bytearray(data)
    for kind, where, what in steps:
        at = where % max(len(data), 1)
        part = data[at : at + what]
        if kind == "set":
            data[at : at + 1] = bytes([what])
        elif kind == "flip":
            data[at : at + 1] = bytes([data[at] ^ (1 << what)]) if data else b""
        elif kind == "cut":
            del data[at : at + what]
        elif kind == "double":
            data[at:at] = part
        elif kind == "ones":
            data[at : at + what] = b"\xff" * len(part)
        else:
            del data[at:]
    return bytes(data)


def outcome(path):
    before, start = open_descriptors(), time.process_time()
    try:
        with open_model(path).headers() as checkpoint:
            size = sum(info.nbytes for info in checkpoint.tensors.values())
            assert checkpoint.file_bytes == size
            for info in checkpoint.tensors.values():
                checkpoint.read_into(info, 0, memoryview(bytearray(info.nbytes)))
        result = "read"
    except VllmError as error:
        assert str(error)
        result = "refused"
    assert open_descriptors() == before and time.process_time() - start < 1
    return result


fuzz = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_the_undamaged_files_are_read(tmp_path):
    (tmp_path / "m.gguf").write_bytes(GOOD_GGUF)
    assert outcome(str(tmp_path / "m.gguf")) == "read"
    assert outcome(write_directory(tmp_path / "m", {"model.safetensors": GOOD})) == "read"


@fuzz
@given(steps=damage)
def test_damaged_gguf_file_is_read_or_refused(tmp_path, steps):
    (tmp_path / "m.gguf").write_bytes(damaged(GOOD_GGUF, steps))
    outcome(str(tmp_path / "m.gguf"))


@fuzz
@given(steps=damage)
def test_damaged_safetensors_file_is_read_or_refused(tmp_path, steps):
    outcome(write_directory(tmp_path / "m", {"model.safetensors": damaged(GOOD, steps)}))


@fuzz
@given(steps=damage, name=st.sampled_from([INDEX, "config.json"]))
def test_damaged_json_is_read_or_refused(tmp_path, steps, name):
    files = {INDEX: index_file(x="a.safetensors", y="b.safetensors"), "config.json": json.dumps(CONFIG).encode()}
    files |= {"a.safetensors": vectors(x=[1.0]), "b.safetensors": vectors(y=[1.0])}
    config = damaged(files.pop("config.json"), steps if name == "config.json" else [])
    files[INDEX] = damaged(files[INDEX], steps if name == INDEX else [])
    outcome(write_directory(tmp_path / "m", files, config))


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", 1, None]),
        "shape": st.one_of(st.lists(st.integers(-1, 4), max_size=3), st.none(), st.integers()),
        "data_offsets": st.one_of(st.lists(st.integers(-1, 16), max_size=3), st.none()),
    },
)


@fuzz
@given(header=st.dictionaries(st.text(max_size=3), ENTRIES, max_size=3), size=st.integers(0, 16))
def test_any_header_of_the_right_grammar_is_read_or_refused(tmp_path, header, size):
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(size)
    outcome(write_directory(tmp_path / "m", {"model.safetensors": data}))


def test_every_beginning_of_a_gguf_file_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    for length in range(len(GOOD_GGUF)):
        path.write_bytes(GOOD_GGUF[:length])
        assert outcome(str(path)) == "refused"


def test_every_beginning_of_a_safetensors_file_is_refused(tmp_path):
    for length in range(len(GOOD)):
        assert outcome(write_directory(tmp_path / "m", {"model.safetensors": GOOD[:length]})) == "refused"
