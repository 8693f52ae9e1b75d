"""Damaged files give what they hold or an error that names them, at a cost that their size bounds, and nothing else."""

import json
from math import prod
from pathlib import Path

import safetensors
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyvllm.errors import VllmError
from pyvllm.model_loader.checkpoint import open_model
from tests.counting import counted_lines

from .attacks import GOOD
from .files import (
    CONFIG,
    INDEX,
    allowed_lines,
    index_file,
    llama_gguf,
    open_descriptors,
    strings,
    tensor,
    vectors,
    write_directory,
)

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


def refusal(path):
    """Open a model, and read all of it: the text of its refusal, or None once every tensor's bytes are the file's."""
    before = open_descriptors()
    try:
        with counted_lines() as lines, open_model(path).headers() as checkpoint:
            assert checkpoint.file_bytes == sum(info.nbytes for info in checkpoint.tensors.values())
            for info in checkpoint.tensors.values():
                checkpoint.read_into(info, 0, read := memoryview(bytearray(info.nbytes)))
                file = Path(path) if Path(path).is_file() else Path(path, checkpoint.file_name(info))
                assert file.read_bytes()[info.offset :][: info.nbytes] == read
        text = None
    except VllmError as error:
        text = str(error)
        assert "\n" not in text and len(text) < 1000
    assert open_descriptors() == before and lines.count < allowed_lines(path)
    return text


def names_one_of(text, *names):
    return text.startswith(tuple(f"{name}: " for name in names))


fuzz = settings(
    max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def test_the_undamaged_files_are_read(tmp_path):
    (tmp_path / "m.gguf").write_bytes(GOOD_GGUF)
    assert refusal(str(tmp_path / "m.gguf")) is None
    assert refusal(write_directory(tmp_path / "m", {"model.safetensors": GOOD})) is None


@fuzz
@given(steps=damage)
def test_damaged_gguf_file_is_read_as_it_lies_or_refused_by_name(tmp_path, steps):
    (tmp_path / "m.gguf").write_bytes(data := damaged(GOOD_GGUF, steps))
    text = refusal(str(tmp_path / "m.gguf"))
    assert names_one_of(text, "m.gguf") if text else len(data) >= len(GOOD_GGUF) - 32


@fuzz
@given(steps=damage)
def test_damaged_safetensors_file_is_read_as_its_own_library_does_or_refused_by_name(tmp_path, steps):
    data = damaged(GOOD, steps)
    text = refusal(write_directory(tmp_path / "m", {"model.safetensors": data}))
    assert names_one_of(text, "model.safetensors") if text else found_by_ours(tmp_path / "m") == found_by_theirs(data)


@fuzz
@given(steps=damage, name=st.sampled_from([INDEX, "config.json"]))
def test_damaged_json_is_read_or_refused_by_name(tmp_path, steps, name):
    files = {INDEX: index_file(x="a.safetensors", y="b.safetensors"), "config.json": json.dumps(CONFIG).encode()}
    files |= {"a.safetensors": vectors(x=[1.0]), "b.safetensors": vectors(y=[1.0])}
    config = damaged(files.pop("config.json"), steps if name == "config.json" else [])
    files[INDEX] = damaged(files[INDEX], steps if name == INDEX else [])
    text = refusal(write_directory(tmp_path / "m", files, config))
    # An index that says something else is at odds with the files, which are then the ones to be named.
    assert names_one_of(text, name, "a.safetensors", "b.safetensors") if text else found_by_ours(tmp_path / "m")


def found_by_ours(path):
    """Name, type, shape and bytes of every tensor, as this package finds them."""
    with open_model(str(path)).headers() as checkpoint:
        found = {}
        for info in checkpoint.tensors.values():
            checkpoint.read_into(info, 0, memoryview(read := bytearray(info.nbytes)))
            found[info.name] = (info.stored_type, list(info.shape), bytes(read))
        return found


def found_by_theirs(data):
    """The same as the safetensors library finds them; None when it refuses the file."""
    try:
        tensors = safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return None
    return {name: (entry["dtype"], entry["shape"], bytes(entry["data"])) for name, entry in tensors}


ENTRIES = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "U8", "F4", 1, None]),
        "shape": st.one_of(st.lists(st.integers(-1, 4), max_size=3), st.none(), st.integers()),
        "data_offsets": st.one_of(st.lists(st.integers(-1, 16), max_size=3), st.none()),
    },
)
SIZES = {"F32": 4, "BF16": 2, "U8": 1}
NAMES = st.text("abé", min_size=1, max_size=3)


@st.composite
def headers(draw):
    """A right header and the size of its data, with one entry or the size changed in half of the cases."""
    header, end = {}, 0
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        dtype, shape = draw(st.sampled_from(sorted(SIZES))), draw(st.lists(st.integers(0, 3), max_size=3))
        begin, end = end, end + SIZES[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    change = draw(st.sampled_from(["nothing", "nothing", "entry", "size"]))
    if change == "entry":
        header[draw(st.text(max_size=3) | st.sampled_from(sorted(header)))] = draw(ENTRIES)
    return header, end if change != "size" else draw(st.integers(0, 16))


@fuzz
@given(made=headers())
def test_a_header_of_the_right_grammar_is_read_when_its_own_library_reads_it(tmp_path, made):
    text = json.dumps(made[0]).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(made[1])
    refused = refusal(write_directory(tmp_path / "m", {"model.safetensors": data}))
    theirs = found_by_theirs(data)
    if refused and theirs is not None:
        # Stricter here: a name that is empty or cannot be shown, and a type that no weight has.
        assert not all(name and name.isprintable() and dtype in SIZES for name, (dtype, _, _) in theirs.items()), (
            refused
        )
    elif not refused:
        assert found_by_ours(tmp_path / "m") == theirs


def test_every_beginning_of_a_gguf_file_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    for length in range(len(GOOD_GGUF)):
        path.write_bytes(GOOD_GGUF[:length])
        assert names_one_of(refusal(str(path)), "m.gguf")


def test_every_beginning_of_a_safetensors_file_is_refused(tmp_path):
    for length in range(len(GOOD)):
        path = write_directory(tmp_path / "m", {"model.safetensors": GOOD[:length]})
        assert names_one_of(refusal(path), "model.safetensors")
