"""Log probabilities as the `openai` package reads them: whole and streamed alike, in both forms."""

import openai
import pytest

from pyvllm import SamplingParams
from tests.server.test_openai_client import CLOCK, GREEDY, HELLO, PROMPT

COUNT = 12


@pytest.fixture
def ai(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=1000) as client:
        yield client


@pytest.fixture(scope="module")
def expected(llm):
    """What the library gives for the same prompt."""
    params = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True, logprobs=3)
    ids = llm._engine.tokenizer.encode(PROMPT, add_special_tokens=False)
    return llm.generate([ids], params)[0].outputs[0]


def close(logprob):
    """A number that another batch may round otherwise."""
    return pytest.approx(logprob, abs=1e-3)


def alike(entries, others):
    """Whether two lists say the same of the same tokens."""
    one, other = ([named for entry in listed for named in (entry, *entry.top_logprobs)] for listed in (entries, others))
    values = close([named.logprob for named in other])
    return [named.bytes for named in one] == [named.bytes for named in other] and values == [n.logprob for n in one]


def test_chat_gives_every_token_with_its_alternatives(ai, expected):
    [choice] = ai.chat.completions.create(messages=HELLO, logprobs=True, top_logprobs=3, **GREEDY).choices
    entries = choice.logprobs.content
    assert len(entries) == COUNT
    for entry, token_id, named in zip(entries, expected.token_ids, expected.logprobs, strict=True):
        assert (entry.token, entry.logprob) == (named[token_id].decoded_token, close(named[token_id].logprob))
        values = sorted((one.logprob for one in named.values()), reverse=True)
        assert [top.logprob for top in entry.top_logprobs] == close(values[:3])
        assert all(bytes(top.bytes).decode(errors="replace") == top.token for top in entry.top_logprobs)
    written = b"".join(bytes(entry.bytes) for entry in entries)
    assert written.decode(errors="replace") == choice.message.content


def test_chat_streams_what_it_gives_whole(ai):
    fields = {**GREEDY, "temperature": 1, "seed": 8, "n": 2, "logprobs": True, "top_logprobs": 2, "messages": HELLO}
    whole = ai.chat.completions.create(**fields)
    found = {0: [], 1: []}
    for chunk in ai.chat.completions.create(stream=True, **fields):
        for choice in chunk.choices:
            found[choice.index] += choice.logprobs.content if choice.logprobs else []
    for choice in whole.choices:
        assert alike(found[choice.index], choice.logprobs.content) and len(choice.logprobs.content) == COUNT


def test_tokens_of_calls_and_thoughts_have_them_too(ai):
    text = '<think>hm</think>So. <tool_call>{"name": "clock", "arguments": {"x": 1}}</tool_call>'
    body = {"structured_outputs": {"choice": [text]}}
    fields = {"model": "tiny", "messages": HELLO, "tools": [CLOCK], "max_tokens": 150, "logprobs": True}
    whole = ai.chat.completions.create(**fields, extra_body=body).choices[0]
    chunks = list(ai.chat.completions.create(**fields, extra_body=body, stream=True))
    entries = [entry for chunk in chunks for entry in (chunk.choices[0].logprobs or whole.logprobs).content
               if chunk.choices[0].logprobs]  # fmt: skip
    assert alike(entries, whole.logprobs.content)
    assert b"".join(bytes(entry.bytes) for entry in entries).decode().removesuffix("</s>") == text
    assert all(entry.top_logprobs == [] for entry in entries)


@pytest.mark.parametrize("count", [0, 3])
def test_completions_give_lists_side_by_side(ai, expected, count):
    [choice] = ai.completions.create(prompt=PROMPT, logprobs=count, **GREEDY).choices
    found = choice.logprobs
    chosen = [named[i] for i, named in zip(expected.token_ids, expected.logprobs, strict=True)]
    assert found.token_logprobs == close([one.logprob for one in chosen])
    assert found.tokens == [one.decoded_token for one in chosen]
    assert found.text_offset == [sum(map(len, found.tokens[:place])) for place in range(COUNT)]
    for top, token_id, named in zip(found.top_logprobs, expected.token_ids, expected.logprobs, strict=True):
        wanted = {}
        for other in [token_id, *(named if count else ())]:
            wanted.setdefault(named[other].decoded_token, named[other].logprob)
        assert top == close(wanted)


def test_completions_stream_what_they_give_whole(ai):
    fields = {**GREEDY, "prompt": ["ab", "c"], "logprobs": 2}
    whole = ai.completions.create(**fields)
    found = [{"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []} for _ in range(2)]
    for chunk in ai.completions.create(stream=True, **fields):
        for choice in chunk.choices:
            for name, values in (choice.logprobs.model_dump() if choice.logprobs else {}).items():
                found[choice.index][name] += values
    for one, choice in zip(found, whole.choices, strict=True):
        wanted = choice.logprobs.model_dump()
        assert (one["tokens"], one["text_offset"]) == (wanted["tokens"], wanted["text_offset"])
        assert one["token_logprobs"] == close(wanted["token_logprobs"])
        assert [dict(top) for top in one["top_logprobs"]] == [close(top) for top in wanted["top_logprobs"]]


def test_who_does_not_ask_gets_none(ai):
    assert ai.chat.completions.create(messages=HELLO, **GREEDY).choices[0].logprobs is None
    assert ai.completions.create(prompt="a", **GREEDY).choices[0].logprobs is None
    with pytest.raises(openai.BadRequestError, match="needs 'logprobs' true"):
        ai.chat.completions.create(messages=HELLO, top_logprobs=2, **GREEDY)
