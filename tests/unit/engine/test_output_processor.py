"""What an answer's text is: whole characters, no special tokens, cut before a stop string, however it streams."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pyvllm.engine.output_processor import OutputProcessor
from pyvllm.errors import GenerationError
from pyvllm.sampling_params import SamplingParams
from tests.counting import counted_lines
from tests.unit.tokenizer.vocabularies import byte_level_tokenizer, sentencepiece_tokenizer

BYTE_LEVEL, SENTENCEPIECE = byte_level_tokenizer(add_bos_token=False), sentencepiece_tokenizer(add_bos_token=False)
TOKENIZERS = {"byte level": BYTE_LEVEL, "sentencepiece": SENTENCEPIECE}
EOS = min(BYTE_LEVEL.eos_token_ids)
IDS = st.lists(st.integers(0, 430), max_size=40)


def processor(tokenizer=BYTE_LEVEL, prompt=None, max_tokens=1000, **params):
    params = SamplingParams(max_tokens=max_tokens, **params)
    return OutputProcessor(tokenizer, params, tokenizer.eos_token_ids, prompt)


def deltas(output, ids):
    """Push until the answer ends, then flush; return every part."""
    parts = []
    for token_id in ids:
        parts.append(output.push(token_id))
        if output.finish_reason:
            break
    return [*parts, output.flush()]


def before_stop(text, stops):
    """The oracle: read more and more of the whole text; the first stop string that is complete ends it."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return text[: min(starts)], True
    return text, False


@pytest.mark.parametrize("tokenizer", TOKENIZERS.values(), ids=TOKENIZERS)
@given(ids=IDS)
def test_the_parts_are_well_formed_and_sum_to_the_whole_text(tokenizer, ids):
    output = processor(tokenizer, prompt=(), ignore_eos=True)
    parts = deltas(output, ids)
    for part in parts:
        part.encode("utf-8")
    assert "".join(parts) == output.text == tokenizer.decode(ids)
    assert output.token_ids == ids


TEXTS = st.text("abc é🙂", max_size=30)
STOPS = st.lists(st.text("abc é🙂", min_size=1, max_size=4), min_size=1, max_size=3)


@given(text=TEXTS, stops=STOPS)
@example("aab", ["ab"])
@example("abab abac", ["abac"])
@example("aaaaab", ["aaab", "b"])
@example("abcb", ["abcd", "bc"])
def test_a_stop_string_cuts_as_the_whole_text_says_however_the_tokens_fall(text, stops):
    id_of_byte = {BYTE_LEVEL.piece(token_id): token_id for token_id in range(256)}
    expected, stopped = before_stop(text, stops)
    for ids in ([id_of_byte[bytes([byte])] for byte in text.encode()], BYTE_LEVEL.encode(text)):
        output = processor(stop=tuple(stops))
        assert ("".join(deltas(output, ids)), output.finish_reason) == (expected, "stop" if stopped else None)


@given(text=TEXTS, stops=STOPS)
def test_a_stop_string_that_is_kept_ends_the_text(text, stops):
    expected, stopped = before_stop(text, stops)
    kept = next(stop for stop in sorted(stops, key=len) if text.startswith(expected + stop)) if stopped else ""
    output = processor(stop=tuple(stops), include_stop_str_in_output=True)
    assert "".join(deltas(output, BYTE_LEVEL.encode(text))) == output.text == expected + kept
    assert output.finish_reason == ("stop" if stopped else None)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_a_stop_token_ends_the_text_and_is_part_of_it_only_where_it_is_kept(keeps, ignore_eos):
    ids = BYTE_LEVEL.encode("ab")
    output = processor(stop_token_ids=[ids[-1]], include_stop_str_in_output=keeps, ignore_eos=ignore_eos)
    whole = BYTE_LEVEL.decode(ids)
    assert "".join(deltas(output, [*ids, *ids])) == (whole if keeps else BYTE_LEVEL.decode(ids[:-1]))
    assert (output.token_ids, output.finish_reason) == (ids, "stop")


FEW_STOPS = st.lists(st.text("ab\ufffd e", min_size=1, max_size=3), max_size=3)


@given(ids=IDS, stops=FEW_STOPS, max_tokens=st.integers(1, 45))
def test_any_tokens_stop_where_the_decoded_text_does(ids, stops, max_tokens):
    output = processor(SENTENCEPIECE, prompt=(), stop=tuple(stops), max_tokens=max_tokens, ignore_eos=True)
    text = "".join(deltas(output, ids))
    expected, stopped = before_stop(SENTENCEPIECE.decode(ids[:max_tokens]), stops)
    assert text == output.text == expected
    if stopped:
        assert output.finish_reason == "stop"
    else:
        assert output.finish_reason == ("length" if len(ids) >= max_tokens else None)


@given(text=TEXTS, stops=STOPS)
def test_exactly_the_text_that_may_begin_a_stop_string_is_held_back(text, stops):
    output = processor(stop=tuple(stops))
    read = before_stop(text, stops)[0]
    for end, character in enumerate(read, 1):
        for token_id in BYTE_LEVEL.encode(character):
            output.push(token_id)
        if output.finish_reason:
            break
        beginnings = [stop[:n] for stop in stops for n in range(len(stop))]
        longest = max(len(beginning) for beginning in beginnings if read[:end].endswith(beginning))
        assert output.text == read[: end - longest]


def test_eos_ends_the_answer_and_is_no_part_of_its_text():
    output = processor()
    parts = deltas(output, [*BYTE_LEVEL.encode("the"), EOS, *BYTE_LEVEL.encode("more")])
    assert ("".join(parts), output.finish_reason) == ("the", "stop")
    assert output.token_ids == [*BYTE_LEVEL.encode("the"), EOS]


def test_eos_that_is_ignored_is_counted_and_has_no_text():
    output = processor(ignore_eos=True, max_tokens=3)
    a, b = BYTE_LEVEL.encode("a") + BYTE_LEVEL.encode("b")
    assert "".join(deltas(output, [a, EOS, b])) == "ab"
    assert (output.finish_reason, output.token_ids) == ("length", [a, EOS, b])


def test_an_end_token_that_is_ordinary_text_is_not_shown():
    letter = BYTE_LEVEL.encode("z")[0]
    output = OutputProcessor(BYTE_LEVEL, SamplingParams(), frozenset({letter}))
    assert output.push(letter) == ""
    assert (output.finish_reason, output.text) == ("stop", "")


def test_eos_with_the_last_allowed_token_is_a_stop():
    output = processor(max_tokens=1)
    output.push(EOS)
    assert output.finish_reason == "stop"


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop():
    output = processor(max_tokens=2, stop=("ab",))
    assert "".join(deltas(output, BYTE_LEVEL.encode("ab")[:2])) == ""
    assert output.finish_reason == "stop"


def test_max_tokens_ends_with_length_and_gives_all_that_was_held_back():
    output = processor(max_tokens=2, stop=("abc",))
    assert [output.push(token_id) for token_id in BYTE_LEVEL.encode("ab")] == ["", "ab"]
    assert (output.finish_reason, output.flush()) == ("length", "")


def test_a_character_begun_at_the_end_is_one_replacement_character():
    output = processor(max_tokens=3)
    first_byte = next(i for i in range(256) if BYTE_LEVEL.piece(i) == b"\xf0")
    assert output.push(first_byte) == ""
    assert output.flush() == "\ufffd"
    assert output.flush() == ""


def test_a_stop_string_may_be_completed_by_the_replacement_character_at_the_end():
    output = processor(stop=("a\ufffd",), max_tokens=2)
    first_byte = next(i for i in range(256) if BYTE_LEVEL.piece(i) == b"\xf0")
    assert deltas(output, [BYTE_LEVEL.encode("a")[0], first_byte]) == ["", "", ""]
    assert output.finish_reason == "stop"


def test_r150_an_emoji_of_four_tokens_streams_as_one_character():
    ids = SENTENCEPIECE.encode("🙂")[-4:]
    assert deltas(processor(SENTENCEPIECE), ids) == ["", "", "", "🙂", ""]


def test_a_sentencepiece_answer_keeps_the_space_after_its_prompt():
    ids = SENTENCEPIECE.encode("the host")
    assert "".join(deltas(processor(SENTENCEPIECE, prompt=SENTENCEPIECE.encode("of")), ids)) == " the host"
    assert "".join(deltas(processor(SENTENCEPIECE), ids)) == " the host"


def test_an_answer_to_a_prompt_of_special_tokens_alone_begins_the_text():
    ids = SENTENCEPIECE.encode("the host")
    assert "".join(deltas(processor(SENTENCEPIECE, prompt=[1]), ids)) == "the host"


def test_a_token_after_the_end_is_refused():
    output = processor(max_tokens=1)
    output.push(0)
    with pytest.raises(GenerationError, match=r"token 5 came after the answer had ended \(length\)"):
        output.push(5)


def test_the_cost_of_a_token_does_not_grow_with_the_answer_or_a_long_stop_string():
    letter = BYTE_LEVEL.encode("a")[0]
    lines = []
    for length in (500, 4_000):
        output = processor(max_tokens=10**6, stop=("a" * 50_000 + "b",))
        with counted_lines() as counted:
            deltas(output, [letter] * length)
        lines.append(counted.count)
        assert output.text == "a" * length
    assert lines[1] < 8.1 * lines[0]
