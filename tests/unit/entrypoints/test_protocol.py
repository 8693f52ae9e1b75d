"""`/v1/completions` bodies: each bad field is named in `param`, everything accepted acts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.entrypoints.openai.protocol import NEUTRAL, ApiError, Choice, completion_body, parse_completion
from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams

MAX_LEN = 64


def parse(**fields):
    return parse_completion(json.dumps({"prompt": "a", **fields}).encode(), MAX_LEN)


def refusal(body):
    with pytest.raises(ApiError) as raised:
        parse_completion(body if isinstance(body, bytes) else json.dumps(body).encode(), MAX_LEN)
    return raised.value


BAD_FIELDS = [
    ("model", 1),
    ("prompt", None), ("prompt", []), ("prompt", 5), ("prompt", ["a", 1]), ("prompt", [1, -1]), ("prompt", [True]),
    ("prompt", [[]]), ("prompt", [[1], "a"]), ("prompt", [2**31]), ("prompt", ["a"] * 2049), ("prompt", {"a": 1}),
    ("max_tokens", 0), ("max_tokens", -1), ("max_tokens", MAX_LEN + 1), ("max_tokens", 1.5), ("max_tokens", "9"),
    ("max_tokens", True), ("max_tokens", 10**400),
    ("temperature", -0.1), ("temperature", "1"), ("temperature", True), ("temperature", 10**400), ("temperature", [1]),
    ("top_p", 0), ("top_p", 1.01), ("top_p", -1), ("min_p", -0.1), ("min_p", 1.1),
    ("top_k", -2), ("top_k", 2**31), ("top_k", 0.5),
    ("seed", -2), ("seed", 2**64), ("seed", 1.5), ("seed", "x"),
    ("n", 0), ("n", 17), ("n", True), ("n", 10**6), ("best_of", 2), ("best_of", 0),
    ("stop", 1), ("stop", [""]), ("stop", ""), ("stop", ["a"] * 17), ("stop", "x" * 257), ("stop", ["a", None]),
    ("ignore_eos", 1), ("ignore_eos", "true"),
    ("stream", 0), ("stream", "true"), ("stream_options", {}), ("echo", True), ("suffix", "x"),
    ("logprobs", -1), ("logprobs", 21), ("logprobs", True),
    ("logit_bias", {"1": 101}), ("logit_bias", {"-1": 1}), ("logit_bias", {"01": 1}), ("logit_bias", {"x": 1}),
    ("logit_bias", {"1": True}), ("logit_bias", {"1": None}), ("logit_bias", [1]),
    ("logit_bias", {str(i): 1 for i in range(1025)}),
    ("presence_penalty", 2.5), ("presence_penalty", False), ("frequency_penalty", -2.5),
    ("repetition_penalty", 0), ("min_tokens", 17), ("min_tokens", -1), ("prompt_logprobs", 1), ("stop_token_ids", 1),
    ("stop_token_ids", [-1]), ("stop_token_ids", ["1"]), ("stop_token_ids", [True]), ("stop_token_ids", [1] * 1025),
    ("allowed_token_ids", []), ("allowed_token_ids", [2**31]), ("allowed_token_ids", "1"),
    ("include_stop_str_in_output", 1),
    ("response_format", {"type": "xml"}), ("response_format", {"type": "json_schema"}), ("response_format", "text"),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": "x"}}), ("bad_words", ["x"]),
    ("structured_outputs", {}), ("structured_outputs", {"regex": "a", "choice": ["b"]}), ("structured_outputs", "a"),
    ("structured_outputs", {"other": 1}), ("structured_outputs", {"choice": []}), ("priority", 1), ("priority", 2**31),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS)
def test_bad_field_is_named(name, value):
    error = refusal({"prompt": "a", "temperature": 0.5, name: value})
    assert (error.status, error.kind, error.param) == (400, "BadRequestError", name)
    assert f"'{name}'" in error.message
    assert len(error.message) < 300
    assert error.body() == {"error": {"message": error.message, "type": "BadRequestError", "param": name, "code": 400}}


@pytest.mark.parametrize("name", NEUTRAL)
def test_unsupported_field_is_accepted_at_its_neutral_values_and_refused_otherwise(name):
    for value in (*NEUTRAL[name], None):
        assert parse(**{name: value}).unknown == ()
    assert refusal({"prompt": "a", name: "something"}).param == name


def test_fields_act():
    numbers = {"max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 11,
               "presence_penalty": 0.5, "frequency_penalty": -1, "repetition_penalty": 1.5,
               "min_tokens": 3}  # fmt: skip
    assert [parse(logprobs=count).params.logprobs for count in (None, 0, 20)] == [None, 0, 20]
    tokens = {"stop_token_ids": [5, 3], "allowed_token_ids": [9, 9, 2], "include_stop_str_in_output": True}
    numbers |= tokens
    request = parse(model="m", stop=["x", "yz"], ignore_eos=True, logit_bias={"7": -100, "0": 1.5}, **numbers)
    numbers["logit_bias"] = {7: -100.0, 0: 1.5}
    assert request.model == "m"
    assert request.params == SamplingParams(stop=("x", "yz"), ignore_eos=True, **numbers)
    assert (request.params.stop_token_ids, request.params.allowed_token_ids) == ((3, 5), (2, 9))


def test_every_kind_of_structured_output_is_read():
    schema = {"type": "object"}
    for own, expected in [
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
         {"json": json.dumps(schema)}),
        ({"structured_outputs": {"json": schema}}, {"json": json.dumps(schema)}),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ("a", "b")}),
        ({"structured_outputs": {"grammar": "root ::= x"}}, {"grammar": "root ::= x"}),
    ]:  # fmt: skip
        assert parse(**own).params.structured_outputs == StructuredOutputsParams(**expected)
    assert parse(response_format={"type": "text"}).params.structured_outputs is None
    both = {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}}
    assert refusal({"prompt": "a", **both}).param == "structured_outputs"


def test_stream_options_are_for_streams():
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage
    off = {"include_usage": False, "continuous_usage_stats": False}
    assert not parse(stream=True, stream_options=off).include_usage
    for options in ({"include_usage": 1}, {"x": True}, {"continuous_usage_stats": True}, "yes"):
        assert refusal({"prompt": "a", "stream": True, "stream_options": options}).param == "stream_options"


def test_priority_acts_under_its_policy_only():
    assert parse_completion(b'{"prompt": "a", "priority": -3}', MAX_LEN, "priority").priority == -3
    assert "--scheduling-policy priority" in refusal({"prompt": "a", "priority": 1}).message


def test_missing_and_null_fields_have_openais_defaults():
    names = "max_tokens temperature top_p top_k min_p seed stop ignore_eos n best_of model"
    assert parse(**dict.fromkeys(names.split())) == parse()
    assert parse().params == SamplingParams(max_tokens=16, temperature=1.0)
    assert parse_completion(b'{"prompt": "a"}', 5).params.max_tokens == 5


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("a", ("a",)), (["a", "b"], ("a", "b")), ([1, 2], ((1, 2),)), ([[1], [2, 3]], ((1,), (2, 3))), ("", ("",))],
)
def test_prompt_takes_four_forms(prompt, prompts):
    assert parse(prompt=prompt).prompts == prompts


def test_answers_of_one_prompt_have_different_seeds():
    request = parse(n=3, seed=2**64 - 1, best_of=3)
    assert [request.answer_params(index).seed for index in range(3)] == [2**64 - 1, 0, 1]
    assert [parse(n=2).answer_params(index).seed for index in range(2)] == [None, None]


def test_several_greedy_answers_are_refused():
    assert refusal({"prompt": "a", "n": 2, "temperature": 0}).param == "n"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff{}", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b'"a"', "must be a JSON object"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is not a JSON number"),
        (b'{"prompt": "a", "temperature": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"prompt": "a", "temperature": 1e999}', "'temperature' must be a finite number"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"prompt": "a", "prompt": "b"}', 'key "prompt" is given twice'),
        (b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested too deeply"),
    ],
)
def test_body_that_is_not_one_plain_object_is_refused(body, text):
    error = refusal(body)
    assert error.status == 400 and text in error.message


def test_unknown_fields_are_passed_over_and_reported():
    assert parse(user="u", usr="u", frequency="x").unknown == ("usr", "frequency")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
NAMES = sorted({name for name, _ in BAD_FIELDS} | set(NEUTRAL))


@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
def test_any_body_is_a_request_or_an_error_of_the_client(fields):
    try:
        request = parse_completion(json.dumps(fields).encode(), MAX_LEN)
    except ApiError as error:
        assert error.status == 400
    else:
        assert 1 <= request.n <= 16 and 1 <= request.params.max_tokens <= MAX_LEN and request.prompts


def test_response_is_openais_object():
    answers = (("x", "stop", 2), ("y", "length", 3))
    choices = [Choice(text=text, finish_reason=reason, num_tokens=size) for text, reason, size in answers]
    assert completion_body("cmpl-1", 9, "m", choices, 4) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 9,
        "model": "m",
        "choices": [
            {"index": 0, "text": "x", "logprobs": None, "finish_reason": "stop"},
            {"index": 1, "text": "y", "logprobs": None, "finish_reason": "length"},
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 5, "total_tokens": 9},
    }
