"""Tool calls in streams, as the `openai` package hears them: the name first, then the arguments as they are written."""

import json

import openai
import pytest

from tests.server.test_openai_client import CLOCK, HELLO, WEATHER

TEXT = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC", "at": [1, {"x": "}"}]}}\n</tool_call>'


@pytest.fixture
def ai(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=1000) as client:
        yield client


def streamed_calls(stream):
    """Names and arguments, added up by index; each call begins with its id, type and name, and comes in many parts."""
    calls, sizes = {}, {}
    for chunk in stream:
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.index not in calls:
                assert call.id.startswith("call_") and call.type == "function" and call.function.name
                calls[call.index] = (call.function.name, call.function.arguments or "")
            else:
                assert call.id is None and call.function.name is None
                name, arguments = calls[call.index]
                calls[call.index] = (name, arguments + call.function.arguments)
            sizes[call.index] = sizes.get(call.index, 0) + 1
    assert all(size > 5 for size in sizes.values())
    return [calls[index] for index in range(len(calls))]


@pytest.mark.parametrize("seed", [1, 2])
def test_forced_calls_are_streamed_as_they_are_written(ai, seed):
    fields = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "tool_choice": "required", "temperature": 1,
              "seed": seed, "max_tokens": 150}  # fmt: skip
    whole = ai.chat.completions.create(**fields).choices[0]
    calls = streamed_calls(ai.chat.completions.create(stream=True, **fields))
    assert calls == [(call.function.name, call.function.arguments) for call in whole.message.tool_calls] != []


def test_the_stream_helper_of_the_package_puts_calls_together(ai):
    body = {"structured_outputs": {"choice": [f"<think>hm</think>So. {TEXT} {TEXT}"]}}
    fields = {"model": "tiny", "messages": HELLO, "tools": [CLOCK], "max_tokens": 230}
    with ai.chat.completions.stream(**fields, extra_body=body) as stream:
        kinds = [event.type for event in stream]
        message = stream.get_final_completion().choices[0].message
    assert kinds.count("tool_calls.function.arguments.delta") > 20
    assert [json.loads(call.function.arguments)["zone"] for call in message.tool_calls] == ["UTC", "UTC"]
    whole = ai.chat.completions.create(**fields, extra_body=body).choices[0]
    assert message.content == whole.message.content
    arguments = [call.function.arguments for call in whole.message.tool_calls]
    assert [call.function.arguments for call in message.tool_calls] == arguments


def test_content_comes_before_and_between_calls_and_markup_never(ai):
    body = {"structured_outputs": {"choice": [f"One. {TEXT} two {TEXT} three"]}}
    fields = {"model": "tiny", "messages": HELLO, "tools": [CLOCK], "max_tokens": 220}
    order = []
    for chunk in ai.chat.completions.create(stream=True, extra_body=body, **fields):
        for call in chunk.choices[0].delta.tool_calls or []:
            order.append(call.index)
        order += list(chunk.choices[0].delta.content or "")
    assert [item for at, item in enumerate(order) if at == 0 or isinstance(item, str) or order[at - 1] != item] == [
        *"One.", 0, *"two", 1, *"three"
    ]  # fmt: skip
