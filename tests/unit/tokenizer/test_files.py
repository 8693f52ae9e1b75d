"""The small JSON files of a model directory: bounded, regular, and one plain object each."""

import json

import pytest

from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.tokenizer.files import MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES, read_file, read_json_object

REFUSED = {
    "a repeated key": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice in one object"),
    "NaN": (b'{"a": NaN}', "NaN is not a JSON number"),
    "an infinite number": (b'{"a": -Infinity}', "-Infinity is not a JSON number"),
    "bad UTF-8": (b'{"a": "\xff"}', "is not valid JSON: 'utf-8' codec can't decode byte 0xff"),
    "a list": (b"[]", "must hold one JSON object, found list"),
    "nothing": (b"", "is not valid JSON"),
    "nesting without end": (b'{"a":' * 100_000, "is not valid JSON: maximum recursion depth"),
    "a number of 5000 digits": (b'{"a": ' + b"1" * 5000 + b"}", "is not valid JSON: Exceeds the limit"),
}


@pytest.mark.parametrize(("data", "text"), REFUSED.values(), ids=REFUSED)
def test_anything_but_one_plain_object_is_refused_by_file(tmp_path, data, text):
    path = tmp_path / "some.json"
    path.write_bytes(data)
    with pytest.raises(FormatError) as refusal:
        read_json_object(str(path))
    assert str(refusal.value).startswith("some.json: ")
    assert text in str(refusal.value)


def test_an_object_is_read_as_it_stands(tmp_path):
    document = {"eos_token": "</s>", "list": [1, 2.5, None, True], "é": {"deep": "🙂"}}
    (tmp_path / "some.json").write_text(json.dumps(document))
    assert read_json_object(str(tmp_path / "some.json")) == document


@pytest.mark.parametrize("limit", [MAX_CONFIG_BYTES, MAX_TOKENIZER_BYTES])
def test_a_file_over_its_limit_is_not_read(tmp_path, limit):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(limit + 1)
    with pytest.raises(FormatError, match=rf"^large\.json: {limit + 1} bytes; at most {limit} are read"):
        read_file(str(path), limit)


def test_a_file_that_says_it_is_empty_and_is_not_is_read_to_the_limit_only(tmp_path):
    # Files of /proc have size 0 and any amount of text.
    with pytest.raises(FormatError, match="grew beyond 10 bytes while it was read"):
        read_file("/proc/self/status", 10)


@pytest.mark.parametrize("name", ["absent.json", "a\0b", "."])
def test_a_path_that_is_no_readable_file_is_named(tmp_path, name):
    with pytest.raises(ModelLoadError, match=r"cannot be opened|is not a regular file") as refusal:
        read_file(f"{tmp_path}/{name}", 100)
    assert str(refusal.value).startswith(f"{tmp_path}/{name}: ")
