"""Decoding token by token gives the text that the `tokenizers` library gives for the whole, in whole characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from pyvllm.errors import FormatError
from pyvllm.tokenizer.decoding import byte_alphabet, decode_rule
from pyvllm.tokenizer.tokenizer import Tokenizer as OurTokenizer
from tests.unit.tokenizer.vocabularies import (
    ALPHABET,
    byte_level_backend,
    byte_level_tokenizer,
    sentencepiece_backend,
    sentencepiece_tokenizer,
)

EMOJI = "🙂👩\u200d👩\u200d👧 é你\ufffd"
WORDS = ["ab", "##cd", "▁ab", "▁▁x", "a▁b", " .", "n't", "<0x41>", "<0xE9>", "<0xG1>", "é", "Ġthe", "  y ", " "]
LIBRARY_DECODERS = {
    "none": None,
    "ByteLevel": decoders.ByteLevel(),
    "Metaspace": decoders.Metaspace(),
    "Metaspace never": decoders.Metaspace(prepend_scheme="never"),
    "WordPiece": decoders.WordPiece(),
    "WordPiece without cleanup": decoders.WordPiece(cleanup=False),
    # One end and one space: the library panics on a token shorter than what it may take off.
    "Strip at the start": decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]),
    "Strip at the end": decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 0, 1)]),
    "Llama 2": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]),
    "Gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse()]),
    "Strip 2": decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
}


def word_level(decoder):
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="ab"))
    backend.decoder = decoder
    return backend


def streamed(tokenizer, ids, continuation=False):
    detokenizer = tokenizer.detokenizer(continuation)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.finish()]


@pytest.mark.parametrize("decoder", LIBRARY_DECODERS.values(), ids=LIBRARY_DECODERS)
@given(ids=st.lists(st.integers(0, len(WORDS) - 1), max_size=8))
def test_a_decoder_gives_the_librarys_text(decoder, ids):
    backend = word_level(decoder)
    assert OurTokenizer(backend, frozenset()).decode(ids) == backend.decode(ids)


@given(ids=st.lists(st.integers(0, 300), max_size=40))
def test_byte_level_tokens_in_any_order_give_the_librarys_text(ids):
    backend = byte_level_backend()
    assert OurTokenizer(backend, frozenset()).decode(ids) == backend.decode(ids)


@given(text=st.text(alphabet=EMOJI + "ab ", max_size=20))
def test_byte_tokens_that_are_characters_give_the_librarys_text(text):
    backend = sentencepiece_backend()
    ids = backend.encode(text).ids
    assert OurTokenizer(backend, frozenset()).decode(ids) == backend.decode(ids)


BYTE_LEVEL, SENTENCEPIECE = byte_level_tokenizer(add_bos_token=False), sentencepiece_tokenizer(add_bos_token=False)


@given(text=st.text(max_size=60))
def test_byte_level_decode_undoes_encode(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text), skip_special_tokens=False) == text


SPECIAL = st.sampled_from(["<s>", "</s>", "<tool>", "<", "s>"])


@given(text=st.lists(SPECIAL | st.text(max_size=8)).map("".join))
def test_r154_any_text_encodes_special_tokens_included(text):
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text), skip_special_tokens=False) == text


@given(text=st.text(max_size=60))
def test_sentencepiece_decode_undoes_encode(text):
    # A word marker in the text becomes the space that it stands for, as in sentencepiece itself.
    plain = text.replace("▁", " ")
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(plain)) == plain


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, SENTENCEPIECE], ids=["byte level", "sentencepiece"])
@given(ids=st.lists(st.integers(0, 450), max_size=40), continuation=st.booleans())
def test_increments_are_whole_characters_and_sum_to_the_text(tokenizer, ids, continuation):
    parts = streamed(tokenizer, ids, continuation)
    for part in parts:
        part.encode("utf-8")
    whole = tokenizer.decode(ids)
    assert "".join(parts) == whole or (continuation and "".join(parts) == " " + whole)


def test_r150_a_character_of_four_tokens_comes_whole_with_the_last_of_them():
    ids = SENTENCEPIECE.encode("🙂")[-4:]
    assert streamed(SENTENCEPIECE, ids, continuation=True) == ["", "", "", "🙂", ""]


def test_a_character_cut_off_at_the_end_becomes_one_replacement_character():
    ids = SENTENCEPIECE.encode("🙂")[-4:-1]
    assert streamed(SENTENCEPIECE, ids, continuation=True) == ["", "", "", "\ufffd"]


def test_a_bad_byte_does_not_spoil_the_characters_beside_it():
    continuation_byte = SENTENCEPIECE.encode("é")[-1:]
    ids = [*SENTENCEPIECE.encode("é")[-2:], *continuation_byte, *SENTENCEPIECE.encode("é")[-2:]]
    assert SENTENCEPIECE.decode(ids) == "é\ufffdé"


def test_the_first_word_keeps_its_space_only_when_the_text_goes_on_after_another():
    ids = SENTENCEPIECE.encode("the device")
    assert "".join(streamed(SENTENCEPIECE, ids, continuation=True)) == " the device"
    assert "".join(streamed(SENTENCEPIECE, ids, continuation=False)) == "the device"


def test_special_tokens_are_no_part_of_the_text_unless_asked_for():
    ids = BYTE_LEVEL.encode("a<s>b</s><tool>")
    assert BYTE_LEVEL.decode(ids) == "ab<tool>"
    assert BYTE_LEVEL.decode(ids, skip_special_tokens=False) == "a<s>b</s><tool>"


@pytest.mark.parametrize("token_id", [-1, 10**6, 2**32, 2**70])
def test_an_id_of_no_token_has_no_text(token_id):
    assert BYTE_LEVEL.decode([token_id]) == ""


def test_a_long_answer_costs_the_same_for_each_token():
    class Counting:
        """A tokenizer that counts how often it is asked for a piece."""

        strip = ("", 0)
        asked = 0

        def piece(self, token_id, first, skip_special_tokens):
            self.asked += 1
            return b"\x80"

    source = Counting()
    detokenizer = OurTokenizer.detokenizer(source)
    lengths = {len(detokenizer.push(0)) for _ in range(5000)}
    assert (source.asked, lengths) == (5000, {1})


@pytest.mark.parametrize("decoder", [decoders.CTC(), decoders.BPEDecoder()], ids=["CTC", "BPEDecoder"])
def test_another_decoder_is_refused_with_the_list_of_the_supported(decoder):
    with pytest.raises(FormatError, match="is not supported; supported: ByteLevel, ByteFallback, Fuse, Metaspace"):
        decode_rule(decoder.__getstate__())


def test_a_strip_at_the_end_of_the_whole_text_is_refused():
    decoder = decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)])
    with pytest.raises(FormatError, match="Strip after Fuse with 'stop' above 0"):
        decode_rule(decoder.__getstate__())


def test_the_byte_alphabet_is_the_librarys():
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert set(byte_alphabet()) == set(ALPHABET)
