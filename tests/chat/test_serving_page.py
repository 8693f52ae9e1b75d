"""`docs/serving.md` says of every field whether it acts: held to what the parsers of requests do with it."""

import json
import re
from pathlib import Path

import pytest

from pyvllm.entrypoints.openai import chat_request, fields, protocol
from pyvllm.entrypoints.openai.chat_request import ChatLimits, parse_chat
from pyvllm.entrypoints.openai.fields import ApiError
from pyvllm.entrypoints.openai.protocol import parse_completion

PAGE = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
NAME = re.compile(r"`([a-z_]+)`")
_, ACTING, AFTER = PAGE.partition("| field | what it does |")
TABLE, _, AFTER = AFTER.partition("\n\n")
ACTING = [name for row in TABLE.splitlines()[2:] for name in NAME.findall(row.split("|")[1])]
REFUSED = NAME.findall(AFTER.partition(" A name that")[0].partition("instead where there is something:")[2])
HELLO = [{"role": "user", "content": "x"}]


def refusals(name, value):
    """What chat and completions say to a field; None where they pass it over or take it."""
    said = []
    for parse, rest in (
        (lambda body: parse_chat(body, ChatLimits(max_model_len=9)), {"messages": HELLO}),
        (lambda body: parse_completion(body, 9), {"prompt": "x"}),
    ):
        try:
            found = parse(json.dumps({**rest, name: value}).encode())
            said.append("unknown" if name in found.unknown else None)
        except ApiError as error:
            said.append(error.param)
    return said


@pytest.mark.parametrize("name", ACTING)
def test_a_field_that_the_page_says_acts_is_read(name):
    known = {*fields.SAMPLING, *fields.LABELS, *chat_request._ACTING, *protocol._ACTING}
    assert name in known and len(ACTING) > 20
    assert "unknown" not in refusals(name, None)[: 1 if name == "max_completion_tokens" else 2]


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_the_page_says_is_refused_is(name):
    assert name in refusals(name, "something else") and len(REFUSED) > 18


def test_every_field_that_is_refused_is_on_the_page():
    assert {*fields.NEUTRAL, *chat_request.NEUTRAL, *protocol.NEUTRAL} - set(NAME.findall(PAGE)) == set()
