"""Penalties, minimum length and processors, held to plain arithmetic."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.errors import InvalidArgument
from pyvllm.sample.adjust import LogitsAdjuster
from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams

VOCAB = 6


def adjusted(params: SamplingParams, logits: list[float], prompt=(), output=(), eos=(), processors=()) -> list[float]:
    adjuster = LogitsAdjuster(params, prompt, eos, processors)
    return adjuster.adjust(torch.tensor(logits), list(output)).tolist()


def reference(params: SamplingParams, logits: list[float], prompt, output) -> list[float]:
    """The penalties as their definitions read, one token at a time."""
    found = []
    for token, value in enumerate(logits):
        if token in prompt or token in output:
            value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
        value -= params.frequency_penalty * output.count(token) + params.presence_penalty * (token in output)
        found.append(value)
    return found


TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=8)


@given(
    st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB), TOKENS, TOKENS,
    st.floats(-2, 2), st.floats(-2, 2), st.floats(0.5, 3),
)  # fmt: skip
def test_penalties_equal_their_definitions(logits, prompt, output, presence, frequency, repetition):
    params = SamplingParams(
        presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=repetition, max_tokens=9
    )
    expected = reference(params, logits, prompt, output)
    assert adjusted(params, logits, prompt, output) == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_an_end_token_is_impossible_before_min_tokens_and_possible_after():
    params = SamplingParams(min_tokens=2, max_tokens=4)
    assert adjusted(params, [1.0] * VOCAB, output=[3], eos=[5])[5] == float("-inf")
    assert adjusted(params, [1.0] * VOCAB, output=[3, 3], eos=[5])[5] == 1.0


def test_a_bias_is_added_before_the_penalties():
    params = SamplingParams(logit_bias={1: 2.5, 4: -100}, presence_penalty=1.0, repetition_penalty=2.0)
    found = adjusted(params, [1.0] * VOCAB, prompt=[2], output=[1])
    assert found == pytest.approx([1.0, (1.0 + 2.5) / 2 - 1, 0.5, 1.0, -99.0, 1.0])


def test_tokens_that_are_not_allowed_are_impossible():
    low = float("-inf")
    params = SamplingParams(allowed_token_ids=(1, 5), logit_bias={0: 100, 1: 1})
    assert adjusted(params, [0.5] * VOCAB) == [low, 1.5, low, low, low, 0.5]
    with pytest.raises(InvalidArgument, match="allowed_token_ids are all end tokens"):
        adjusted(SamplingParams(allowed_token_ids=(5,), min_tokens=1), [0.5] * VOCAB, eos=[5])


def test_a_stop_token_is_impossible_before_min_tokens():
    params = SamplingParams(min_tokens=1, stop_token_ids=(2,))
    assert adjusted(params, [1.0] * VOCAB, eos=[5])[2] == float("-inf")
    assert adjusted(params, [1.0] * VOCAB, output=[0], eos=[5])[2] == 1.0


@pytest.mark.parametrize("field", ["logit_bias", "allowed_token_ids", "stop_token_ids"])
def test_a_token_that_the_model_does_not_have_is_refused_by_name(field):
    params = SamplingParams(**{field: {9: 1.0, 0: 1.0} if field == "logit_bias" else [0, 9]})
    params.check_vocabulary(10)
    with pytest.raises(InvalidArgument, match=f"{field} has token id 9, outside the vocabulary of 9"):
        params.check_vocabulary(9)


def test_a_processor_sees_the_answer_and_changes_a_copy():
    seen = []

    def only_two(token_ids, logits):
        seen.append(list(token_ids))
        logits.fill_(float("-inf"))
        logits[2] = 0

    logits = torch.zeros(VOCAB)
    adjuster = LogitsAdjuster(SamplingParams(), [1], [], [only_two])
    assert int(adjuster.adjust(logits, [4]).argmax()) == 2
    assert seen == [[4]]
    assert torch.equal(logits, torch.zeros(VOCAB))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("presence_penalty", 2.1),
        ("frequency_penalty", -2.1),
        ("repetition_penalty", 0.0),
        ("min_tokens", 17),
        ("logit_bias", {1: 101}),
        ("logit_bias", {-1: 1}),
        ("logit_bias", {"1": 1}),
        ("logit_bias", {1: float("nan")}),
        ("allowed_token_ids", ["1"]),
        ("allowed_token_ids", []),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", "12"),
        ("include_stop_str_in_output", 1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name_and_value(field, value):
    shown = str(value).strip("{}")
    with pytest.raises(InvalidArgument, match=rf"{field} .*{re.escape(shown)}"):
        SamplingParams(**{field: value})


def test_exactly_one_structured_output_may_be_given():
    with pytest.raises(InvalidArgument, match="exactly one structured output may be given, got json, regex"):
        StructuredOutputsParams(json="{}", regex="a")
    with pytest.raises(InvalidArgument, match="got none"):
        StructuredOutputsParams()
    with pytest.raises(InvalidArgument, match="'choice' must be a list of non-empty strings"):
        StructuredOutputsParams(choice=("a", ""))
