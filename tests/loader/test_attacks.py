"""Every attack is refused with its text, at a cost that its true size bounds, and leaves nothing open."""

import pytest

from pyvllm.errors import ModelLoadError
from pyvllm.model_loader.checkpoint import open_model
from tests.counting import counted_lines

from .attacks import CONFIGS, GGUF, GOOD, INDEXES, SAFETENSORS
from .files import INDEX, allowed_lines, array, gguf_file, open_descriptors, tensor, write_directory


def refusal(path):
    """Open a model and its headers; give the text that refuses it, and hold what every refusal must keep."""
    before = open_descriptors()
    with counted_lines() as lines, pytest.raises(ModelLoadError) as caught:
        open_model(str(path)).headers()
    assert lines.count < allowed_lines(path)
    assert open_descriptors() == before
    text = str(caught.value)
    assert "\n" not in text and len(text) < 1000
    return text


def parametrize(table):
    return pytest.mark.parametrize(("data", "expected"), table.values(), ids=table)


@parametrize(SAFETENSORS)
def test_bad_safetensors_file_is_refused(tmp_path, data, expected):
    text = refusal(write_directory(tmp_path / "m", {"model.safetensors": data}))
    assert text.startswith("model.safetensors: ") and expected in text


@parametrize(INDEXES)
def test_bad_index_is_refused(tmp_path, data, expected):
    assert expected in refusal(write_directory(tmp_path / "m", {INDEX: data, "a.safetensors": GOOD}))


@parametrize(CONFIGS)
def test_bad_config_is_refused(tmp_path, data, expected):
    text = refusal(write_directory(tmp_path / "m", {"model.safetensors": GOOD}, config=data))
    assert text.startswith("config.json: ") and expected in text


@parametrize(GGUF)
def test_bad_gguf_file_is_refused(tmp_path, data, expected):
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    text = refusal(path)
    assert text.startswith("m.gguf: ") and expected in text


def test_sparse_gguf_of_a_terabyte_is_refused_at_once(tmp_path):
    """A file that is large on paper allows every length; only the caps are left to refuse it."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_file([("a", array(0, 2**39))], [tensor("x", (8,))]))
    with path.open("r+b") as file:
        file.truncate(2**40)
    assert "an array of 549755813888 elements; all together have at most 16777216" in refusal(path)
