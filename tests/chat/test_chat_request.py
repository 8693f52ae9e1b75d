"""Chat requests: every bad field is named in `param`, everything accepted acts; any body is a request or an error."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.entrypoints.openai.chat_request import NEUTRAL, ChatLimits, PromptOptions, parse_chat
from pyvllm.entrypoints.openai.fields import ApiError
from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams

LIMITS = ChatLimits(max_model_len=64, has_tool_parser=True)
HELLO = [{"role": "user", "content": "hello"}]
CLOCK = {"type": "function", "function": {"name": "clock", "description": "time", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "clock"}}


def parse(limits=LIMITS, **fields):
    return parse_chat(json.dumps({"messages": HELLO, **fields}).encode(), limits)


def refusal(limits=LIMITS, **fields):
    with pytest.raises(ApiError) as raised:
        parse(limits, **fields)
    return raised.value


def message(**fields):
    return [{"role": "user", "content": "x", **fields}]


def called(**function):
    return [{"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}]


BAD_MESSAGES = [
    None, 5, [], {}, "hello", ["hello"], [{}], [{"role": "user"}], [{"role": "robot", "content": "x"}],
    message(content=5), [*message(content=[]), 5], message(content=["x"]), message(content=[{"type": "text"}]),
    message(content=[{"type": "image_url", "image_url": {"url": "x"}}]), message(role="tool", content=None),
    message(surprise=1), message(tool_calls=[1]), message(name=5), message(role="tool", tool_call_id=5),
    [{"role": "assistant", "tool_calls": "x"}], [{"role": "assistant", "tool_calls": [{}]}],
    called(name=5), called(name="f", arguments="{"), called(name="f", arguments="[1]"), called(arguments="{}"),
    HELLO * 1025,
]  # fmt: skip


@pytest.mark.parametrize("value", BAD_MESSAGES, ids=range(len(BAD_MESSAGES)))
def test_a_bad_message_is_named(value):
    error = refusal(messages=value)
    assert (error.status, error.kind, error.param) == (400, "BadRequestError", "messages")
    assert "messages" in error.message and len(error.message) < 300


BAD_FIELDS = [
    ("tools", 5), ("tools", [5]), ("tools", [{"type": "function"}]), ("tools", [CLOCK, CLOCK]),
    ("tools", [CLOCK] * 129),
    ("tools", [{"type": "function", "function": {"name": "a b"}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "parameters": 5}}]),
    ("tools", [{"type": "function", "function": {"name": "f", "description": 5}}]),
    ("tool_choice", "sometimes"), ("tool_choice", {"type": "function"}), ("tool_choice", "required"),
    ("tool_choice", {"type": "function", "function": {"name": "other"}}), ("parallel_tool_calls", 1),
    ("max_tokens", 0), ("max_tokens", 65), ("max_completion_tokens", -1), ("max_completion_tokens", "9"),
    ("n", 17), ("stream", 1), ("stream_options", {}), ("temperature", -1), ("top_p", 0), ("stop", [1]),
    ("presence_penalty", 3), ("frequency_penalty", -3), ("repetition_penalty", 0), ("min_tokens", 65),
    ("response_format", {"type": "xml"}), ("structured_outputs", {"x": 1}), ("priority", 1), ("model", 5),
    ("logprobs", 1), ("top_logprobs", 2), ("top_logprobs", 21),
    ("chat_template", "x"), ("chat_template_kwargs", {"_a": 1}),
    ("chat_template_kwargs", [1]), ("chat_template_kwargs", {f"a{i}": 1 for i in range(33)}),
    ("chat_template_kwargs", {"a" * 65: 1}), ("add_generation_prompt", 1),
    ("functions", [{}]), ("store", True), ("continue_final_message", True), ("reasoning_effort", "low"), ("seed", -2),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD_FIELDS)
def test_a_bad_field_is_named(name, value):
    error = refusal(**{name: value})
    assert (error.status, error.param) == (400, name)
    assert name in error.message and len(error.message) < 300


@pytest.mark.parametrize("name", NEUTRAL)
def test_an_unsupported_field_is_accepted_at_its_neutral_values(name):
    for value in (*NEUTRAL[name], None):
        assert parse(**{name: value}).unknown == ()


def test_the_fields_act():
    numbers = {"temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "seed": 11, "presence_penalty": 1.0,
               "frequency_penalty": 0.5, "repetition_penalty": 1.5, "min_tokens": 2}  # fmt: skip
    request = parse(model="m", stop="x", ignore_eos=True, max_completion_tokens=7, n=2, user="u", surprise=1, **numbers)
    assert request.params == SamplingParams(stop=("x",), ignore_eos=True, max_tokens=7, **numbers)
    assert (request.model, request.n, request.max_tokens, request.unknown) == ("m", 2, 7, ("surprise",))
    assert parse(max_tokens=7, max_completion_tokens=7).max_tokens == 7
    assert [parse(**asked).params.logprobs for asked in ({}, {"logprobs": False, "top_logprobs": 0},
            {"logprobs": True}, {"logprobs": True, "top_logprobs": 20})] == [None, None, 0, 20]  # fmt: skip
    options = {"add_generation_prompt": False, "continue_final_message": True}
    asked = PromptOptions(**options, variables={"a": [1]})
    assert parse(**options, chat_template_kwargs={"a": [1]}).prompt == asked
    assert parse(chat_template_kwargs=None).prompt == PromptOptions()
    assert parse().max_tokens is None and parse().params.max_tokens == 64
    limits = ChatLimits(max_model_len=64, scheduling_policy="priority")
    assert parse(limits, priority=-3).priority == -3


def test_messages_take_the_form_that_templates_read():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    found = parse(
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": parts, "name": "me"},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm", "refusal": None},
            {"role": "tool", "content": "3", "tool_call_id": "1"},
        ]
    ).messages
    function = {"name": "f", "arguments": {"x": 1}}
    assert found == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "a\nb", "name": "me"},
        {"role": "assistant", "content": "", "reasoning": "hm", "reasoning_content": "hm",
         "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {"role": "tool", "content": "3", "tool_call_id": "1"},
    ]  # fmt: skip


def test_the_tool_choice_decides_what_the_model_sees_and_must_write():
    assert (parse().tool_choice, parse(tools=[CLOCK]).tool_choice) == ("none", "auto")
    assert parse(tools=[CLOCK], tool_choice="none").tools == []
    named = parse(tools=[CLOCK], tool_choice=NAMED)
    assert (named.tool_choice, named.function, named.is_structured) == ("named", "clock", True)
    required = parse(tools=[CLOCK], tool_choice="required", parallel_tool_calls=False)
    schema = json.loads(required.params.structured_outputs.json)
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert schema["items"]["anyOf"][0]["properties"]["name"] == {"const": "clock"}
    assert parse(tools=[CLOCK]).params.structured_outputs is None


def test_a_choice_of_the_model_needs_a_parser_and_a_forced_one_does_not():
    none = ChatLimits(max_model_len=64)
    error = refusal(none, tools=[CLOCK])
    assert error.param == "tool_choice" and "--tool-call-parser" in error.message
    assert parse(none, tools=[CLOCK], tool_choice="none").tools == []
    assert parse(none, tools=[CLOCK], tool_choice=NAMED).tools


def test_two_forms_of_one_answer_are_refused():
    form = {"type": "json_object"}
    assert parse(response_format=form).params.structured_outputs == StructuredOutputsParams(json_object=True)
    assert refusal(tools=[CLOCK], tool_choice="required", response_format=form).param == "tool_choice"
    assert refusal(max_tokens=3, max_completion_tokens=4).param == "max_tokens"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
MESSAGE_KEYS = ["role", "content", "name", "tool_calls", "tool_call_id", "reasoning", "x"]
VALUES = JSON | st.sampled_from(["user", "tool", "assistant"])
MESSAGES = st.lists(st.dictionaries(st.sampled_from(MESSAGE_KEYS), VALUES), max_size=3)
NAMES = sorted({name for name, _ in BAD_FIELDS} | set(NEUTRAL))


@given(fields=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), messages=MESSAGES | JSON)
def test_any_body_is_a_request_or_an_error_of_the_client(fields, messages):
    try:
        request = parse_chat(json.dumps({**fields, "messages": messages}).encode(), LIMITS)
    except ApiError as error:
        assert error.status == 400
    else:
        assert 1 <= request.n <= 16 and request.messages
