"""Tool and reasoning parsers: the formats, and that an answer in parts is read as the whole one is."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.entrypoints.openai.reasoning_parsers import REASONING_PARSERS, reasoning_format
from pyvllm.entrypoints.openai.tool_parsers import TOOL_PARSERS, ToolCall, tool_format, tool_schemas
from pyvllm.errors import InvalidArgument

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "at": {"type": ["array", "null"]}},
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
SCHEMAS = tool_schemas(TOOLS)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": 2}}\n</tool_call>'
XML = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
    "<parameter=at>\n[1, null]\n</parameter>\n</function>\n</tool_call>"
)
KOELN = ToolCall("weather", '{"city": "Köln", "days": 2}')
YORK = ToolCall("weather", '{"city": "New\\nYork", "days": 3, "at": [1, null]}')


def extract(name, text):
    return tool_format(name).extract(text, SCHEMAS)


@pytest.mark.parametrize("name", ["hermes", "qwen3"])
def test_json_calls_are_taken_out(name):
    assert extract(name, CALL) == ("", [KOELN])
    assert extract(name, f"Let me see.\n{CALL}\n{CALL}\n") == ("Let me see.", [KOELN, KOELN])
    assert extract(name, CALL.removesuffix("</tool_call>")) == ("", [KOELN])
    assert extract(name, 'a <tool_call>{"name": "f"}</tool_call> b') == ("ab", [ToolCall("f", "{}")])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_coder"])
def test_xml_calls_are_taken_out_and_typed_by_their_schema(name):
    assert extract(name, f"Yes.\n\n{XML}") == ("Yes.", [YORK])
    unknown = "<tool_call><function=other><parameter=x>1</parameter></function></tool_call>"
    assert extract(name, unknown) == ("", [ToolCall("other", '{"x": "1"}')])
    bad_number = "<tool_call><function=weather><parameter=days>many</parameter></function></tool_call>"
    assert extract(name, bad_number) == ("", [ToolCall("weather", '{"days": "many"}')])
    assert extract(name, "<tool_call><function=f></function></tool_call>") == ("", [ToolCall("f", "{}")])


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>no json</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        "<tool_call>" + "[" * 100_000,
        "<tool_call><function=f>stray</function></tool_call>",
    ],
)
@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_what_is_no_call_stays_content(name, block):
    assert extract(name, f"a {block} b ") == (f"a {block} b ", [])


@pytest.mark.parametrize("find", [tool_format, reasoning_format])
def test_an_unknown_name_is_refused_with_those_that_are_known(find):
    assert find(None) is None and find("") is None
    with pytest.raises(InvalidArgument, match=r"'Hermes' is not known; known are .*qwen3"):
        find("Hermes")


def in_parts(text, cuts):
    bounds = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(bounds)]


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", CALL, XML, "<tool", "_call>", "</tool_call", "{", '"name"', "\n", " ", "x",
     "<think>", "</think>", "<thi", "</think", "nk>", "word "]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=9).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=30)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(text=TEXTS, cuts=CUTS)
def test_calls_in_parts_are_those_of_the_whole(name, text, cuts):
    parser = tool_format(name).parser(SCHEMAS)
    found = [item for part in in_parts(text, cuts) for item in parser.push(part)] + list(parser.finish())
    content = "".join(item for item in found if isinstance(item, str))
    assert (content, [item for item in found if isinstance(item, ToolCall)]) == extract(name, text)


PROMPTS = ["", "<|assistant|>", "<think>\n", "<think>\n\n</think>\n\n", "<think>old</think>new<|end|>",
           "</think><think>"]  # fmt: skip


@pytest.mark.parametrize("name", REASONING_PARSERS)
@pytest.mark.parametrize("prompt", PROMPTS)
@given(text=TEXTS, cuts=CUTS)
def test_reasoning_in_parts_is_that_of_the_whole(name, prompt, text, cuts):
    chosen = reasoning_format(name)
    parser = chosen.parser(prompt)
    pieces = [parser.push(part) for part in in_parts(text, cuts)] + [parser.finish()]
    whole = chosen.split(text, prompt)
    assert "".join(piece.reasoning for piece in pieces) == whole.reasoning
    assert "".join(piece.content for piece in pieces) == whole.content


def split(name, text, prompt=""):
    found = reasoning_format(name).split(text, prompt)
    return found.reasoning, found.content


@pytest.mark.parametrize("name", REASONING_PARSERS)
def test_a_thought_between_its_tags_is_reasoning(name):
    assert split(name, "<think>\nHm.\n</think>\n\nFour.") == ("\nHm.\n", "\n\nFour.")
    assert split(name, "<think>never ends") == ("never ends", "")
    assert split(name, "Hm.</think>Four.", "<|assistant|><think>\n") == ("Hm.", "Four.")
    assert split(name, "Four.", "<|assistant|><think>\n\n</think>\n\n") == ("", "Four.")


def test_without_a_tag_deepseek_r1_thinks_and_qwen3_speaks():
    assert split("deepseek_r1", "Hm.</think>Four.") == ("Hm.", "Four.")
    assert split("deepseek_r1", "Hm.") == ("Hm.", "")
    assert split("qwen3", "Four.") == ("", "Four.")


def test_a_tag_of_an_earlier_message_says_nothing_about_the_answer():
    assert split("qwen3", "Four.", "<|user|>what is <think>?<|assistant|>\n") == ("", "Four.")


@pytest.mark.parametrize("name", TOOL_PARSERS)
def test_long_white_space_costs_no_more_than_its_length(name):
    # A search that begins again at every blank would take hours and end in the timeout of the suite.
    space = " \n" * 2_000_000
    for body in (f"<function=f>{space}x", f"{space}<function=f>{space}<parameter=a>{space}</parameter>{space}", space):
        content, calls = extract(name, f"{space}<tool_call>{body}</tool_call>{space}x{space}")
        assert content.strip().endswith("x") and len(calls) <= 1
    assert split("qwen3", space + "x")[1].strip() == "x"


def test_a_long_call_in_small_parts_costs_no_more_than_its_length():
    text = f'<tool_call>{{"name": "f", "arguments": {{"x": "{"y" * 200_000}"}}}}</tool_call>'
    parser = tool_format("hermes").parser({})
    found = [item for start in range(0, len(text), 20) for item in parser.push(text[start : start + 20])]
    assert json.loads(found[0].arguments) == {"x": "y" * 200_000}
