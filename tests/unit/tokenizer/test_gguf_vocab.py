"""GGUF tokenizer keys of the wrong type, size or range are refused by name (R123)."""

import math

import pytest

from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.tokenizer.tokenizer import tokenizer_from_gguf
from tests.unit.tokenizer.vocabularies import byte_level_metadata, sentencepiece_metadata

SIZE = len(byte_level_metadata()["tokenizer.ggml.tokens"])
LLAMA_SIZE = len(sentencepiece_metadata()["tokenizer.ggml.tokens"])
PRE_NAMES = "deepseek-coder, deepseek-r1-qwen, default, gpt-2, llama-bpe, llama-v3, llama3, qwen2, refact"


def replaced(values, index, value):
    return [*values[:index], value, *values[index + 1 :]]


TOKENS = byte_level_metadata()["tokenizer.ggml.tokens"]
TYPES = byte_level_metadata()["tokenizer.ggml.token_type"]
MERGES = byte_level_metadata()["tokenizer.ggml.merges"]
SCORES = sentencepiece_metadata()["tokenizer.ggml.scores"]

WRONG = {
    "model a number": ({"model": 2}, "tokenizer.ggml.model must be string, found int 2"),
    "pre a number": ({"pre": 7}, "tokenizer.ggml.pre must be string, found int 7"),
    "tokens missing": ({"tokens": None}, "tokenizer.ggml.tokens is missing or empty"),
    "tokens empty": ({"tokens": []}, "tokenizer.ggml.tokens is missing or empty"),
    "tokens a string": ({"tokens": "abc"}, "tokenizer.ggml.tokens must be an array, found str 'abc'"),
    "tokens of integers": ({"tokens": [1, 2]}, "must be an array of string elements, found int 1 at index 0"),
    "a token of bytes": ({"tokens": replaced(TOKENS, 3, b"x")}, "found bytes b'x' at index 3"),
    "a token twice": ({"tokens": replaced(TOKENS, 3, TOKENS[0])}, "stands twice, at index 0 and 3"),
    "types of floats": ({"token_type": [1.0] * SIZE}, "an array of integer elements, found float 1.0 at index 0"),
    "types of bools": ({"token_type": [True] * SIZE}, "found bool True at index 0"),
    "too few types": ({"token_type": TYPES[1:]}, f"token_type has {SIZE - 1} elements for {SIZE} tokens"),
    "too many types": ({"token_type": [*TYPES, 1]}, f"token_type has {SIZE + 1} elements for {SIZE} tokens"),
    "an unknown type": ({"token_type": replaced(TYPES, 5, 7)}, "token_type must be from 0 to 6, found 7 at index 5"),
    "a negative type": ({"token_type": replaced(TYPES, 5, -1)}, "found -1 at index 5"),
    "merges missing": ({"merges": None}, "tokenizer.ggml.merges is missing"),
    "merges of integers": ({"merges": [1]}, "must be an array of string elements"),
    "a merge without space": ({"merges": ["ab"]}, "'ab' at index 0 is not two tokens with a space between"),
    "an empty merge": ({"merges": [""]}, "'' at index 0 is not two tokens"),
    "a merge of no token": ({"merges": ["a none"]}, "'a' and 'none' need tokens that tokenizer.ggml.tokens lacks"),
    "a merge into no token": ({"merges": ["a b"]}, "'a' and 'b' need tokens that tokenizer.ggml.tokens lacks"),
    "bos a string": ({"bos_token_id": "1"}, "bos_token_id must be integer, found str '1'"),
    "bos a bool": ({"bos_token_id": True}, "bos_token_id must be integer, found bool True"),
    "bos too high": ({"bos_token_id": SIZE}, f"bos_token_id is {SIZE}, but the vocabulary has {SIZE} tokens"),
    "eos negative": ({"eos_token_id": -1}, "eos_token_id is -1"),
    "eot too high": ({"eot_token_id": 2**32 - 1}, "eot_token_id is 4294967295"),
    "add_bos a number": ({"add_bos_token": 1}, "add_bos_token must be bool, found int 1"),
    "add_space_prefix a string": ({"add_space_prefix": "no"}, "add_space_prefix must be bool, found str 'no'"),
}
WRONG_LLAMA = {
    "scores missing": ({"scores": None}, "tokenizer.ggml.scores is missing"),
    "scores of integers": ({"scores": [1] * LLAMA_SIZE}, "must be an array of float elements, found int 1 at index 0"),
    "too few scores": ({"scores": SCORES[:-1]}, f"scores has {LLAMA_SIZE - 1} elements for {LLAMA_SIZE} tokens"),
    "a score NaN": ({"scores": replaced(SCORES, 9, math.nan)}, "scores must be finite, found nan at index 9"),
    "a score infinite": ({"scores": replaced(SCORES, 9, math.inf)}, "found inf at index 9"),
    "unknown id too high": ({"unknown_token_id": LLAMA_SIZE}, f"unknown_token_id is {LLAMA_SIZE}"),
}


@pytest.mark.parametrize(("changes", "text"), WRONG.values(), ids=WRONG)
def test_r123_a_byte_level_vocabulary_of_wrong_values_is_refused_by_name(changes, text):
    with pytest.raises(FormatError) as refusal:
        tokenizer_from_gguf(byte_level_metadata(**changes))
    assert text in str(refusal.value)


@pytest.mark.parametrize(("changes", "text"), WRONG_LLAMA.values(), ids=WRONG_LLAMA)
def test_r123_a_sentencepiece_vocabulary_of_wrong_values_is_refused_by_name(changes, text):
    with pytest.raises(FormatError) as refusal:
        tokenizer_from_gguf(sentencepiece_metadata(**changes))
    assert text in str(refusal.value)


def test_a_file_without_a_tokenizer_is_refused():
    with pytest.raises(ModelLoadError, match=r"has no tokenizer: the key tokenizer\.ggml\.model is missing"):
        tokenizer_from_gguf({"general.architecture": "llama"})


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "GPT2", ""])
def test_another_model_is_refused_with_the_list_of_the_supported(model):
    with pytest.raises(ModelLoadError) as refusal:
        tokenizer_from_gguf(byte_level_metadata(model=model))
    assert str(refusal.value) == f"tokenizer.ggml.model {model!r} is not supported; supported: gpt2, llama"


@pytest.mark.parametrize("pre", ["deepseek-llm", "falcon3", "Qwen2", "", "smollm "])
def test_another_pre_tokenizer_is_refused_with_the_list_of_the_supported(pre):
    with pytest.raises(ModelLoadError) as refusal:
        tokenizer_from_gguf(byte_level_metadata(pre))
    assert f"tokenizer.ggml.pre {pre!r} is not supported; supported: {PRE_NAMES}" in str(refusal.value)


def test_a_sentencepiece_vocabulary_that_cannot_spell_every_byte_needs_an_unknown_token():
    data = sentencepiece_metadata()
    tokens = ["<nobyte>" if token == "<0x41>" else token for token in data["tokenizer.ggml.tokens"]]
    assert tokenizer_from_gguf(sentencepiece_metadata(tokens=tokens)).encode("the")
    with pytest.raises(FormatError, match="lacks the byte token <0x00>, and there is no unknown token"):
        tokenizer_from_gguf(sentencepiece_metadata(tokens=["a"], token_type=[1], scores=[0.0]))


def test_a_piece_of_absurd_length_is_refused():
    tokens = replaced(sentencepiece_metadata()["tokenizer.ggml.tokens"], LLAMA_SIZE - 1, "x" * 513)
    with pytest.raises(FormatError, match=f"token {LLAMA_SIZE - 1} has 513 characters; at most 512"):
        tokenizer_from_gguf(sentencepiece_metadata(tokens=tokens))


def test_an_empty_token_keeps_its_id():
    tokenizer = tokenizer_from_gguf(byte_level_metadata(tokens=replaced(TOKENS, SIZE - 1, "")))
    assert tokenizer.num_ids == SIZE


def test_bos_wanted_but_not_there_is_said_and_not_added(capsys):
    tokenizer = tokenizer_from_gguf(byte_level_metadata(bos_token_id=None, add_bos_token=True))
    assert tokenizer.encode("a") == [TOKENS.index("a")]
    assert "add_bos_token is true, but there is no bos_token" in capsys.readouterr().err
