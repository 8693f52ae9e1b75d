"""Tool and reasoning parsers: the formats, and that an answer in parts is read as the whole one is."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.entrypoints.openai.reasoning_parsers import REASONING_PARSERS, reasoning_format
from pyvllm.entrypoints.openai.tool_parsers import TOOL_PARSERS, tool_format, tool_schemas
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
KOELN = ("weather", '{"city": "Köln", "days": 2}')
YORK = ("weather", '{"city": "New\\nYork", "days": 3, "at": [1, null]}')


def put_together(parser, parts):
    """Content and calls, as a client of the stream adds them up."""
    content, calls = "", []
    for item in [item for part in parts for item in parser.push(part)] + list(parser.finish()):
        if isinstance(item, str):
            content += item
        elif item.name is not None:
            calls.append((item.name, item.arguments))
        else:
            calls[-1] = (calls[-1][0], calls[-1][1] + item.arguments)
    return content, calls


def extract(name, text):
    return put_together(tool_format(name).parser(SCHEMAS), [text])


@pytest.mark.parametrize("name", ["hermes", "qwen3"])
def test_json_calls_are_taken_out(name):
    assert extract(name, CALL) == ("", [KOELN])
    assert extract(name, f"Let me see.\n{CALL}\n{CALL}\n") == ("Let me see.", [KOELN, KOELN])
    assert extract(name, CALL.removesuffix("</tool_call>")) == ("", [KOELN])
    assert extract(name, 'a <tool_call>{"name": "f"}</tool_call> b') == ("ab", [("f", "{}")])


def test_a_call_in_another_order_comes_with_its_block():
    bodies = ('{"arguments": {"x": 1}, "name": "f"}', '{"name": "g", "arguments": "{}"}')
    text = "".join(f"<tool_call>{body}</tool_call>" for body in bodies)
    assert extract("hermes", text) == ("", [("f", '{"x": 1}'), ("g", "{}")])


@pytest.mark.parametrize("name", ["qwen3", "qwen3_coder"])
def test_xml_calls_are_taken_out_and_typed_by_their_schema(name):
    assert extract(name, f"Yes.\n\n{XML}") == ("Yes.", [YORK])
    unknown = "<tool_call><function=other><parameter=x>1</parameter></function></tool_call>"
    assert extract(name, unknown) == ("", [("other", '{"x": "1"}')])
    bad_number = "<tool_call><function=weather><parameter=days>many</parameter></function></tool_call>"
    assert extract(name, bad_number) == ("", [("weather", '{"days": "many"}')])
    assert extract(name, "<tool_call><function=f></function></tool_call>") == ("", [("f", "{}")])


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>no json</tool_call>",
        "<tool_call>[1]</tool_call>",
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"arguments": {"x": NaN}, "name": "f"}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a</tool_call>", "arguments": {}}',
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
     "<think>", "</think>", "<thi", "</think", "nk>", "word ", '<tool_call>{"name": "f", "arguments": {', "}", '"',
     "\\", "<function=f>", "<parameter=a>", "<parameter=days>", "</parameter>", "</function>", "<parameter=", "<"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=9).map("".join)
CUTS = st.lists(st.integers(0, 400), max_size=30)


@pytest.mark.parametrize("name", TOOL_PARSERS)
@given(text=TEXTS, cuts=CUTS)
def test_calls_in_parts_are_those_of_the_whole(name, text, cuts):
    parser = tool_format(name).parser(SCHEMAS)
    assert put_together(parser, in_parts(text, cuts)) == extract(name, text)


TAGS = ("<tool_call>", "</tool_call>", "<function=", "<parameter=", "</parameter>", "</function>")
WORDS = st.text(min_size=1, max_size=6).filter(lambda text: text.strip() == text)
NAMES = st.from_regex(r"[a-z_.-]{1,8}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(TAGS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(NAMES, VALUES, max_size=3)


def as_json(name, arguments, indent):
    inner = json.dumps(arguments, ensure_ascii=bool(indent), indent=indent)
    return f'<tool_call>\n{{"name": {json.dumps(name)}, "arguments": {inner}}}\n</tool_call>', (name, inner)


def as_xml(name, arguments, _):
    texts = {key: f"<{json.dumps(value)}" for key, value in arguments.items() if not any(t in str(value) for t in TAGS)}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in texts.items())
    written = f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"
    return written, (name, json.dumps(texts, ensure_ascii=False))


@pytest.mark.parametrize(("name", "write"), [("hermes", as_json), ("qwen3", as_json), ("qwen3", as_xml),
                                             ("qwen3_coder", as_xml)])  # fmt: skip
@given(
    said=st.lists(WORDS | st.tuples(NAMES, ARGUMENTS, st.sampled_from([None, 1])), max_size=4),
    cuts=CUTS,
)
def test_what_was_written_is_what_comes_out_in_parts(name, write, said, cuts):
    """The oracle is the list of words and calls that the text was made of."""
    written = [item if isinstance(item, str) else write(*item) for item in said]
    text = "\n".join(item if isinstance(item, str) else item[0] for item in written)
    content, calls = put_together(tool_format(name).parser({}), in_parts(text, cuts))
    assert calls == [item[1] for item in written if not isinstance(item, str)]
    if not calls:
        assert content == text
    assert not any(tag in content for tag in TAGS)
    assert "".join(content.split()) == "".join("".join(i for i in said if isinstance(i, str)).split())


@pytest.mark.parametrize(("name", "block"), [("hermes", CALL), ("qwen3", CALL), ("qwen3", XML), ("qwen3_coder", XML)])
def test_a_call_comes_name_first_and_then_as_it_is_written(name, block):
    parser = tool_format(name).parser(SCHEMAS)
    found = [(size, item) for size, character in enumerate(block) for item in parser.push(character)]
    assert found[0][1].name == "weather" and found[0][1].arguments == ""
    assert all(item.name is None for _, item in found[1:])
    assert len(found) > 12 and found[-1][0] - found[1][0] > 20


def test_a_call_that_is_cut_off_is_given_as_far_as_it_came():
    assert extract("hermes", CALL[: CALL.index("ö")]) == ("", [("weather", '{"city": "K')])
    assert extract("qwen3_coder", XML[: XML.index("York") + 2]) == ("", [("weather", '{"city": "New\\nYo"}')])
    assert extract("hermes", "a <tool_call>" + '{"name": "wea') == ('a <tool_call>{"name": "wea', [])


def test_damaged_arguments_end_with_their_call():
    text = '<tool_call>\n{"name": "f", "arguments": {"x": "say "hi"}}\n</tool_call> b ' + CALL
    assert extract("hermes", text) == ("b", [("f", '{"x": "say "hi"}}\n'), KOELN])
    number = '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>'
    assert extract("hermes", number) == ("", [("f", '{"x": NaN}')])


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


def test_arguments_of_nothing_but_beginnings_of_tags_cost_no_more_than_their_length():
    # Looking at all that follows for each of them would take hours.
    damaged = "{" + "<" * 1_000_000
    assert extract("hermes", f'<tool_call>{{"name": "f", "arguments": {damaged}') == ("", [("f", damaged[:-1])])
    begun = "<tool_call><function=f><parameter=a>x</parameter>" + "<parameter=" * 200_000
    assert extract("qwen3_coder", begun) == ("", [("f", '{"a": "x"}')])


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder"])
def test_a_long_call_in_small_parts_costs_no_more_than_its_length(name):
    long = "y" * 200_000
    text = f'<tool_call>{{"name": "f", "arguments": {{"x": "{long}"}}}}</tool_call>'
    if name == "qwen3_coder":
        text = f"<tool_call><function=f><parameter=x>{long}</parameter></function></tool_call>"
    parser = tool_format(name).parser({})
    [(name, arguments)] = put_together(parser, [text[start : start + 20] for start in range(0, len(text), 20)])[1]
    assert (name, json.loads(arguments)) == ("f", {"x": "y" * 200_000})
