"""Deltas of a streamed answer: however its text is cut, they add up to the message of the same answer unstreamed."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.entrypoints.openai.chat_answer import ChoiceStream, ListedCalls, NamedCall
from pyvllm.entrypoints.openai.reasoning_parsers import REASONING_PARSERS, reasoning_format
from pyvllm.entrypoints.openai.tool_parsers import TOOL_PARSERS, tool_format
from tests.chat.test_parsers import CUTS, SCHEMAS, TEXTS, in_parts

LISTED = '[{"name": "weather", "parameters": {"city": "a\\"}]", "x": [1, {}]}}, {"name": "f", "parameters": 5}]'


def summed(deltas):
    """The message that a client puts together, as the `openai` package documents it: call pieces go by their index."""
    message, calls = {"role": "assistant", "content": ""}, []
    for delta in deltas:
        assert len(delta) == 1
        for name in ("content", "reasoning"):
            if name in delta:
                message[name] = message.get(name, "") + delta[name]
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                assert piece["index"] == len(calls) and piece["id"].startswith("call_") and piece["function"]["name"]
                calls.append({"type": piece["type"], "function": {**piece["function"]}})
            else:
                assert piece.keys() == {"index", "function"} and piece["index"] == len(calls) - 1
                calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
    return message, calls


def of_message(message):
    calls = [{key: call[key] for key in ("type", "function")} for call in message.pop("tool_calls", [])]
    return {**message, "content": message["content"] or ""}, calls


def streamed(stream, parts):
    return summed([delta for part in parts for delta in stream.push(part)] + list(stream.finish()))


def whole(stream, text):
    for _ in (*stream.push(text), *stream.finish()):
        pass
    return of_message(stream.message())


@pytest.mark.parametrize("tools", TOOL_PARSERS)
@pytest.mark.parametrize("reasoning", [None, *REASONING_PARSERS])
@given(text=TEXTS, cuts=CUTS, is_parallel=st.booleans(), prompt=st.sampled_from(["", "<think>\n"]))
def test_deltas_add_up_to_the_message(tools, reasoning, text, cuts, is_parallel, prompt):
    def make():
        thought = None if reasoning is None else reasoning_format(reasoning).parser(prompt)
        return ChoiceStream(thought, tool_format(tools).parser(SCHEMAS), is_parallel=is_parallel)

    found = streamed(make(), in_parts(text, cuts))
    assert found == whole(make(), text)
    assert is_parallel or len(found[1]) <= 1


@given(cuts=CUTS, end=st.integers(0, len(LISTED)))
def test_forced_calls_add_up_to_the_list(cuts, end):
    text = LISTED[:end]
    message, calls = streamed(ChoiceStream(None, ListedCalls()), in_parts(text, cuts))
    assert (message, calls) == whole(ChoiceStream(None, ListedCalls()), text)
    listed = json.loads(LISTED)
    names = [call["function"]["name"] for call in calls]
    assert names == [call["name"] for call in listed][: len(names)]
    assert message["content"] == ("" if calls else text)
    if end == len(LISTED):
        assert [json.loads(call["function"]["arguments"]) for call in calls] == [one["parameters"] for one in listed]


@given(text=st.text(min_size=1), cuts=CUTS)
def test_a_named_call_is_all_of_the_answer(text, cuts):
    message, calls = streamed(ChoiceStream(None, NamedCall("f")), in_parts(text, cuts))
    assert calls == [{"type": "function", "function": {"name": "f", "arguments": text}}]
    assert message == {"role": "assistant", "content": ""}
