"""A directory's tokenizer gives the ids that transformers gives; its files are refused by name when they are bad."""

import json
import os

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.errors import FormatError, GenerationError, InvalidArgument, ModelLoadError, VllmError
from pyvllm.tokenizer.tokenizer import load_tokenizer
from tests.unit.tokenizer.vocabularies import (
    byte_level_backend,
    sentencepiece_backend,
    with_template,
    write_directory,
)

TEXTS = ("", "the hello world", "a</s>b<s>", " ab  ab", "é🙂\r\n", "<pad>x<tool>")
NAMED = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}


def library(kind):
    return sentencepiece_backend() if kind == "sentencepiece" else byte_level_backend()


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece"])
@pytest.mark.parametrize("single", ["$A", "<s> $A", "<s> $A </s>", "$A </s>"])
@pytest.mark.parametrize("config", [None, NAMED], ids=["no config", "config"])
def test_ids_equal_those_of_transformers(tmp_path, kind, single, config):
    directory = write_directory(tmp_path, with_template(library(kind), single), config)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(directory)
    ours = load_tokenizer(directory)
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text)
        ids = theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_tokens_that_only_the_config_declares_stay_whole_as_in_transformers(tmp_path):
    size = byte_level_backend().get_vocab_size()
    pad, tool = {"content": "<pad>", "special": True}, {"content": "<tool>", "special": False}
    declared = {str(size): pad, str(size + 1): tool}
    directory = write_directory(tmp_path, config={**NAMED, "added_tokens_decoder": declared})
    theirs, ours = transformers.PreTrainedTokenizerFast.from_pretrained(directory), load_tokenizer(directory)
    assert ours.encode("<pad>x<tool>") == theirs.encode("<pad>x<tool>")
    assert ours.decode(ours.encode("<pad>x<tool>")) == "x<tool>"
    assert ours.num_ids == size + 2


def test_a_plain_token_that_the_config_calls_special_is_no_part_of_the_text(tmp_path):
    tokenizer = load_tokenizer(write_directory(tmp_path, config={**NAMED, "pad_token": "x"}))
    assert tokenizer.decode(tokenizer.encode("axb")) == "ab"


@pytest.mark.parametrize("single", ["$A", "<s> $A", "<s> $A </s>"])
@pytest.mark.parametrize("add", [True, False])
def test_add_bos_token_decides_whatever_the_post_processor_does(tmp_path, single, add):
    backend = with_template(byte_level_backend(), single)
    tokenizer = load_tokenizer(write_directory(tmp_path, backend, {**NAMED, "add_bos_token": add}))
    bos = backend.token_to_id("<s>")
    assert tokenizer.encode("the").count(bos) == add
    assert tokenizer.encode("<s>the").count(bos) == add + 1
    assert tokenizer.encode("the")[: int(add)] == [bos] * add


@pytest.mark.parametrize("add", [True, False])
def test_add_eos_token_decides_whatever_the_post_processor_does(tmp_path, add):
    backend = with_template(byte_level_backend(), "<s> $A </s>")
    tokenizer = load_tokenizer(write_directory(tmp_path, backend, {**NAMED, "add_eos_token": add}))
    assert (tokenizer.encode("the")[-1] == backend.token_to_id("</s>")) == add


def test_truncation_and_padding_of_the_file_do_not_touch_a_prompt(tmp_path):
    backend = byte_level_backend()
    backend.enable_truncation(3)
    backend.enable_padding(length=50)
    assert len(load_tokenizer(write_directory(tmp_path, backend)).encode("abcdef")) == 6


EOS = {
    "named by the config": ({"config": NAMED}, {"</s>"}),
    "an object in the config": ({"config": {"eos_token": {"content": "</s>", "lstrip": False}}}, {"</s>"}),
    "one more in generation_config": ({"config": NAMED, "generation_config": {"eos_token_id": 5}}, {"</s>", 5}),
    "a list in generation_config": ({"generation_config": {"eos_token_id": [5, 6]}}, {5, 6}),
    "only in config.json": ({"config.json": {"eos_token_id": [7]}}, {7}),
    "generation_config before config.json": ({"generation_config": {}, "config.json": {"eos_token_id": 7}}, set()),
    "nowhere": ({}, set()),
}


@pytest.mark.parametrize(("files", "expected"), EOS.values(), ids=EOS)
def test_eos_ids_come_from_where_vllm_takes_them(tmp_path, files, expected):
    directory = write_directory(tmp_path, config=files.get("config"))
    for name in ("generation_config", "config.json"):
        if name in files:
            (tmp_path / (name if name.endswith(".json") else f"{name}.json")).write_text(json.dumps(files[name]))
    end = byte_level_backend().token_to_id("</s>")
    assert load_tokenizer(directory).eos_token_ids == {end if item == "</s>" else item for item in expected}


def test_a_config_given_by_path_replaces_the_directorys_own(tmp_path):
    directory = write_directory(tmp_path / "model", config=NAMED)
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"eos_token": "<s>"}))
    assert load_tokenizer(directory, str(other)).eos_token_ids == {byte_level_backend().token_to_id("<s>")}


def test_a_config_path_that_is_missing_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match=r"absent\.json: cannot be opened: No such file"):
        load_tokenizer(write_directory(tmp_path), str(tmp_path / "absent.json"))


def test_a_directory_without_tokenizer_json_is_refused(tmp_path):
    with pytest.raises(ModelLoadError, match=r"no tokenizer\.json; it is needed"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_model_alone_is_refused_by_name(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"\x0a")
    with pytest.raises(ModelLoadError, match=r"found tokenizer\.model, which is not supported: convert it"):
        load_tokenizer(str(tmp_path))


PLACES = [(), ("model",), ("model", "vocab"), ("added_tokens", 0), ("pre_tokenizer",), ("decoder",), ("normalizer",)]


@pytest.mark.parametrize("place", PLACES, ids=str)
@pytest.mark.parametrize("value", [7, "text", [1, "x"], {"type": "Nothing"}, True], ids=str)
def test_r123_wrong_types_in_tokenizer_json_are_a_model_load_error(tmp_path, place, value):
    parent = root = {"root": json.loads(byte_level_backend().to_str())}
    for key in ("root", *place)[:-1]:
        parent = parent[key]
    parent[("root", *place)[-1]] = value
    (tmp_path / "tokenizer.json").write_text(json.dumps(root["root"]))
    with pytest.raises(FormatError, match=r"^tokenizer\.json: "):
        load_tokenizer(str(tmp_path))


def test_r123_a_file_on_which_the_library_panics_is_a_model_load_error(tmp_path):
    document = json.loads(byte_level_backend().to_str())
    document["model"]["continuing_subword_prefix"] = "longer than any token"
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(FormatError, match=r"^tokenizer\.json: range end index"):
        load_tokenizer(str(tmp_path))


LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=3))
NAMES = st.text(max_size=2)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2))


@given(data=st.data())
def test_r123_any_change_of_tokenizer_json_loads_or_is_refused(tmp_path_factory, data):
    document = json.loads(data.draw(st.sampled_from(["byte level", "sentencepiece"]).map(library)).to_str())
    document["model"]["vocab"] = dict(list(document["model"]["vocab"].items())[-30:])
    document["model"]["merges"] = document["model"]["merges"][-2:]
    node = document
    while isinstance(node, dict | list) and node:
        parent, key = node, data.draw(st.sampled_from(list(node) if isinstance(node, dict) else range(len(node))))
        node = parent[key] if data.draw(st.booleans()) else None
    parent[key] = data.draw(VALUES)
    directory = tmp_path_factory.mktemp("changed")
    (directory / "tokenizer.json").write_text(json.dumps(document))
    try:
        tokenizer = load_tokenizer(str(directory))
        tokenizer.decode(tokenizer.encode("ab </s>é🙂"))
    except VllmError as refusal:
        assert isinstance(refusal, FormatError | GenerationError)


BAD_CONFIG = {
    "eos a number": ({"eos_token": 5}, "eos_token must be a string or an object with a string 'content', found 5"),
    "bos an empty object": ({"bos_token": {}}, "bos_token must be a string or an object"),
    "add_bos a string": ({"add_bos_token": "yes"}, "add_bos_token must be true or false, found 'yes'"),
    "eos of another model": ({"eos_token": "<|end|>"}, "eos_token '<|end|>' is not in the vocabulary"),
    "special tokens a number": ({"additional_special_tokens": 3}, "additional_special_tokens must be a list"),
    "a lone surrogate": ({"eos_token": "\ud800"}, "eos_token must be valid Unicode"),
    "added tokens a list": ({"added_tokens_decoder": []}, "added_tokens_decoder must be an object, found list"),
    "an added id that is no number": ({"added_tokens_decoder": {"x": {}}}, "must map token ids to objects"),
    "an added id that leaves a hole": ({"added_tokens_decoder": {"9999": {"content": "<q>"}}}, "cannot have id 9999"),
    "an added token without content": ({"added_tokens_decoder": {"1": {}}}, "must be a string or an object"),
    "a flag of an added token": (
        {"added_tokens_decoder": {"1": {"content": "a", "special": 1}}},
        "added_tokens_decoder[1].special must be true or false",
    ),
}


@pytest.mark.parametrize(("config", "text"), BAD_CONFIG.values(), ids=BAD_CONFIG)
def test_a_bad_tokenizer_config_is_refused_by_field(tmp_path, config, text):
    with pytest.raises(FormatError) as refusal:
        load_tokenizer(write_directory(tmp_path, config=config))
    assert text in str(refusal.value)
    assert "tokenizer_config.json" in str(refusal.value)


@pytest.mark.parametrize("value", ["2", True, 1.0, [1, None], -1, 2**31, {"id": 1}])
def test_a_bad_eos_token_id_is_refused(tmp_path, value):
    with pytest.raises(FormatError, match=r"generation_config\.json: eos_token_id must be token ids from 0"):
        load_tokenizer(write_directory(tmp_path, generation_config={"eos_token_id": value}))


@pytest.mark.parametrize("text", ["\ud800", "abc\udfff"])
def test_a_prompt_with_a_lone_surrogate_is_an_invalid_argument(tmp_path, text):
    with pytest.raises(InvalidArgument, match="not valid Unicode text"):
        load_tokenizer(write_directory(tmp_path)).encode(text)


def test_a_tokenizer_json_that_is_a_fifo_is_refused_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(ModelLoadError, match="not a regular file"):
        load_tokenizer(str(tmp_path))
