"""A tokenizer built from GGUF metadata gives the ids of the tokenizer that the file was made from."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from pyvllm.model_loader.checkpoint import open_model
from pyvllm.tokenizer.pre_tokenizers import PRE_TOKENIZERS
from pyvllm.tokenizer.tokenizer import tokenizer_from_gguf
from tests.counting import counted_lines
from tests.unit.tokenizer.vocabularies import (
    DATA,
    byte_level_metadata,
    byte_level_tokenizer,
    sentencepiece_data,
    sentencepiece_tokenizer,
)

# Put together as in the models' tokenizer.json files, from the library's own parts where there are some.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
DIGITS = pre_tokenizers.Digits(individual_digits=True)


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


GPT2_SPLIT = split(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)")
REFERENCES = {
    "gpt-2": GPT2,
    "smollm": pre_tokenizers.Sequence([DIGITS, GPT2]),
    "starcoder": pre_tokenizers.Sequence([DIGITS, GPT2]),
    "refact": pre_tokenizers.Sequence([DIGITS, GPT2]),
    "llama-bpe": pre_tokenizers.Sequence([split(LLAMA3), BYTES]),
    "llama3": pre_tokenizers.Sequence([split(LLAMA3), BYTES]),
    "qwen2": pre_tokenizers.Sequence([split(LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")), BYTES]),
    "tekken": pre_tokenizers.Sequence([split(TEKKEN), BYTES]),
    "default": pre_tokenizers.Sequence(
        [split(r"[\p{P}\$\+<=>\^~\|]+"), GPT2_SPLIT, split(r"\p{N}+"), split("[0-9][0-9][0-9]"), BYTES]
    ),
    "deepseek-coder": pre_tokenizers.Sequence(
        [split(r"[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-\ud7ff]+"), DIGITS, BYTES]
    ),
}
PROSE = st.text(st.sampled_from("the hello world 1234 HE'S don'T \r\n\t  é🙂½²٣你!?.,()-e\u0301"), max_size=40)


def items(name):
    return json.loads((DATA / name).read_text())["items"]


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf):
    return tokenizer_from_gguf(open_model(str(smollm2_gguf)).gguf_metadata)


@pytest.mark.parametrize("item", items("tokens_smollm2.json"), ids=lambda item: ascii(item["text"])[:30])
def test_smollm2_gives_the_ids_of_llama_cpp(smollm2, item):
    assert smollm2.encode(item["text"]) == item["token_ids"]


def test_smollm2_ends_with_im_end_and_adds_no_bos(smollm2):
    assert smollm2.eos_token_ids == {2}
    assert smollm2.decode([2], skip_special_tokens=False) == "<|im_end|>"
    assert smollm2.encode("") == []
    assert smollm2.vocab_size == smollm2.num_ids == 49152


def test_smollm2s_tokenizer_is_built_in_a_few_lines_for_each_token_and_merge(smollm2_gguf):
    metadata = open_model(str(smollm2_gguf)).gguf_metadata
    num_entries = sum(len(metadata[f"tokenizer.ggml.{name}"]) for name in ("tokens", "token_type", "merges"))
    assert num_entries > 140_000
    with counted_lines() as lines:
        tokenizer_from_gguf(metadata)
    assert lines.count < 12 * num_entries


@pytest.mark.parametrize("item", sentencepiece_data()["items"], ids=lambda item: ascii(item["text"])[:30])
def test_a_llama_vocabulary_gives_the_ids_of_sentencepiece(item):
    assert sentencepiece_tokenizer(add_bos_token=False).encode(item["text"]) == item["token_ids"]


@pytest.mark.parametrize("item", sentencepiece_data()["items"], ids=lambda item: ascii(item["text"])[:30])
def test_the_scores_of_a_llama_vocabulary_decide_and_not_the_order_of_its_ids(item):
    data = sentencepiece_data()
    backwards = {key: data[key][:3] + data[key][:2:-1] for key in ("tokens", "token_types", "scores")}
    tokenizer = sentencepiece_tokenizer(
        tokens=backwards["tokens"],
        token_type=backwards["token_types"],
        scores=backwards["scores"],
        add_bos_token=False,
    )
    last = len(data["tokens"]) - 1
    assert tokenizer.encode(item["text"]) == [last + 3 - token_id for token_id in item["token_ids"]]


@pytest.mark.parametrize("pre", REFERENCES)
@given(PROSE)
def test_a_pre_tokenizer_gives_the_ids_of_the_hugging_face_tokenizer(pre, text):
    metadata = byte_level_metadata(pre, add_bos_token=False)
    ours = CACHE.setdefault(pre, tokenizer_from_gguf(metadata))
    assert ours.encode(text) == reference(metadata, pre).encode(text).ids


CACHE = {}


def reference(metadata, pre):
    """The library's own tokenizer, put together as the models' tokenizer.json files are."""
    if ("hf", pre) not in CACHE:
        ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
        hf = Tokenizer(models.BPE(ids, merges, ignore_merges=pre in ("llama-bpe", "llama3", "tekken")))
        hf.pre_tokenizer = REFERENCES[pre]
        hf.normalizer = normalizers.NFC() if pre == "qwen2" else None
        hf.decoder = decoders.ByteLevel()
        CACHE["hf", pre] = hf
    return CACHE["hf", pre]


def test_r151_a_word_in_the_vocabulary_wins_over_the_merges_only_where_hugging_face_says_so():
    metadata = byte_level_metadata("llama-bpe", add_bos_token=False)
    tokens = [*metadata["tokenizer.ggml.tokens"], "abc"]
    changes = {"tokens": tokens, "token_type": [*metadata["tokenizer.ggml.token_type"], 1], "add_bos_token": False}
    llama3, gpt2 = byte_level_tokenizer(pre="llama-bpe", **changes), byte_level_tokenizer(pre="gpt-2", **changes)
    assert llama3.encode("abc") == [tokens.index("abc")]
    assert gpt2.encode("abc") == [tokens.index(letter) for letter in "abc"]


def test_r153_a_special_token_in_the_text_is_one_id_and_so_is_a_users_token():
    tokenizer = byte_level_tokenizer(add_bos_token=False)
    size = tokenizer.num_ids
    assert tokenizer.encode("<s></s><tool>") == [size - 3, size - 2, size - 1]
    middle = tokenizer.encode("the</s>hello")
    assert [middle[0], middle[2]] == [tokenizer.encode("the")[0], tokenizer.encode("hello")[0]]


def test_an_end_token_that_the_file_calls_normal_stays_whole_all_the_same():
    types = [1] * len(byte_level_metadata()["tokenizer.ggml.tokens"])
    tokenizer = byte_level_tokenizer(token_type=types, add_bos_token=False)
    assert tokenizer.encode("</s>") == [*tokenizer.eos_token_ids]


@pytest.mark.parametrize(("pre", "adds"), [("llama-bpe", True), ("tekken", True), ("gpt-2", False), ("qwen2", False)])
def test_bos_is_added_by_default_where_llama_cpp_does(pre, adds):
    tokenizer = byte_level_tokenizer(pre=pre)
    assert (tokenizer.encode("x")[0] == tokenizer.num_ids - 3) == adds


@pytest.mark.parametrize("add", [True, False])
def test_add_bos_token_of_the_file_decides(add):
    assert (sentencepiece_tokenizer(add_bos_token=add).encode("the")[:1] == [1]) == add


def test_add_eos_token_of_the_file_puts_eos_after_the_prompt():
    assert sentencepiece_tokenizer(add_eos_token=True).encode("the")[-1:] == [2]


def test_a_prompt_that_begins_with_bos_keeps_its_own_when_none_is_added():
    assert sentencepiece_tokenizer(add_bos_token=False).encode("<s>the")[:1] == [1]


def test_end_of_turn_and_end_of_message_end_an_answer_too():
    assert byte_level_tokenizer(eot_token_id=3, eom_token_id=4).eos_token_ids >= {3, 4}


def test_without_add_space_prefix_no_space_is_put_before_the_text():
    tokenizer = sentencepiece_tokenizer(add_space_prefix=False, add_bos_token=False)
    assert tokenizer.encode("the") != sentencepiece_tokenizer(add_bos_token=False).encode("the")
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


def test_a_tokenizer_config_given_by_path_replaces_the_files_eos(tmp_path):
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"eos_token": "<s>", "add_bos_token": True, "bos_token": "</s>"}))
    metadata = byte_level_metadata()
    tokenizer = tokenizer_from_gguf(metadata, str(path))
    bos, eos = metadata["tokenizer.ggml.bos_token_id"], metadata["tokenizer.ggml.eos_token_id"]
    assert tokenizer.eos_token_ids == {bos}
    assert tokenizer.encode("x")[0] == eos


def test_every_row_of_the_table_builds_a_tokenizer():
    for pre in PRE_TOKENIZERS:
        tokenizer = byte_level_tokenizer(pre=pre)
        assert tokenizer.decode(tokenizer.encode("the 12345 é🙂 HE'S\r\n ")) == "the 12345 é🙂 HE'S\r\n "


def test_a_file_that_names_no_pre_tokenizer_is_read_as_default_and_says_so(capsys):
    text = "the $12345+6"
    assert byte_level_tokenizer(pre=None).encode(text) == byte_level_tokenizer(pre="default").encode(text)
    assert "tokenizer.ggml.pre is missing" in capsys.readouterr().err
