"""Fields of requests as the `openai` package sends them, against a real server: what each of them does."""

import openai
import pytest

from tests.server.test_openai_client import GREEDY, HELLO


@pytest.fixture
def ai(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=1000) as client:
        yield client


def chat(ai, **body):
    turns = body.pop("messages", HELLO)
    return ai.chat.completions.create(**{**GREEDY, "messages": turns, "extra_body": {"ignore_eos": True, **body}})


def test_a_prompt_may_end_where_the_caller_says(ai):
    assert chat(ai).usage.prompt_tokens == len("u:hello\na:")
    assert chat(ai, add_generation_prompt=False).usage.prompt_tokens == len("u:hello\n")
    begun = {"messages": [*HELLO, {"role": "assistant", "content": "on"}], "add_generation_prompt": False}
    assert chat(ai, **begun).usage.prompt_tokens == len("u:hello\na:on\n")
    assert chat(ai, **begun, continue_final_message=True).usage.prompt_tokens == len("u:hello\na:on")
    with pytest.raises(openai.BadRequestError, match="add_generation_prompt") as raised:
        chat(ai, continue_final_message=True)
    assert raised.value.param == "continue_final_message"


def complete(ai, **body):
    fields = {name: body.pop(name) for name in ("logit_bias", "n", "temperature", "seed", "logprobs") if name in body}
    asked = {**GREEDY, **fields, "extra_body": {"ignore_eos": True, **body}}
    return ai.completions.create(prompt="hello", **asked)


def test_a_bias_makes_tokens_come(ai, llm):
    a, b = llm._engine.tokenizer.encode("ab")
    plain = complete(ai).choices[0].text
    assert complete(ai, logit_bias={}).choices[0].text == plain != "a" * 12
    assert complete(ai, logit_bias={str(a): 100}).choices[0].text == "a" * 12
    some = complete(ai, logit_bias={str(a): 100, str(b): 100}, temperature=1, seed=1, n=2).choices
    assert all(len(choice.text) == 12 and set(choice.text) <= {"a", "b"} for choice in some)
    message = ai.chat.completions.create(messages=HELLO, logit_bias={str(b): 100}, **GREEDY).choices[0].message
    assert message.content == "b" * 12


def test_a_bias_makes_tokens_stay_away(ai, llm):
    first = complete(ai).choices[0].text[:1]
    [identifier] = llm._engine.tokenizer.encode(first)
    assert first.isascii()
    assert first not in complete(ai, logit_bias={str(identifier): -100}).choices[0].text


def test_only_allowed_tokens_come(ai, llm):
    ids = llm._engine.tokenizer.encode("abc")
    texts = [choice.text for choice in complete(ai, allowed_token_ids=ids, temperature=1, seed=2, n=2).choices]
    assert all(len(text) == 12 and set(text) <= set("abc") for text in texts) and texts[0] != texts[1]


def test_a_stop_token_ends_an_answer_and_is_not_part_of_it_unless_kept(ai, llm):
    a, b = llm._engine.tokenizer.encode("ab")
    some = {"allowed_token_ids": [a, b], "temperature": 1, "seed": 4}
    text = complete(ai, **some).choices[0].text
    assert set(text) == {"a", "b"}
    before = text[: text.index("b")]
    stopped = complete(ai, **some, stop_token_ids=[b])
    assert (stopped.choices[0].text, stopped.choices[0].finish_reason) == (before, "stop")
    assert stopped.usage.completion_tokens == len(before) + 1
    kept = complete(ai, **some, stop_token_ids=[b], include_stop_str_in_output=True)
    assert kept.choices[0].text == f"{before}b"
    by_text = complete(ai, **some, stop="b", include_stop_str_in_output=True)
    assert by_text.choices[0].text == f"{before}b"


REFUSED = [
    ({"best_of": 3}, "best_of", "send 'n'"),
    ({"echo": True}, "echo", "leave it out or send false"),
    ({"suffix": "x"}, "suffix", "leave it out"),
    ({"guided_json": {}}, "guided_json", "structured_outputs"),
    ({"bad_words": ["x"]}, "bad_words", "logit_bias"),
    ({"stop_token_ids": [258]}, "stop_token_ids", "outside the vocabulary of 258"),
    ({"allowed_token_ids": [999]}, "allowed_token_ids", "outside the vocabulary of 258"),
    ({"logit_bias": {"300": 1}}, "logit_bias", "outside the vocabulary of 258"),
    ({"n": 2}, "n", "temperature"),
    ({"store": True}, "store", "leave it out or send false"),
]


@pytest.mark.parametrize(("body", "param", "advice"), REFUSED, ids=[param for _, param, _ in REFUSED])
def test_what_does_not_act_is_refused_with_what_to_do(ai, body, param, advice):
    with pytest.raises(openai.BadRequestError, match=advice) as raised:
        complete(ai, **body)
    assert raised.value.param == param and param in raised.value.message


def test_every_sampling_field_acts_on_a_seeded_answer(ai):
    """One field at a time changes the text of the same seed, and two askings of one request have one text."""
    some = {"temperature": 1.0, "seed": 11}
    plain = complete(ai, **some).choices[0].text
    assert complete(ai, **some, user="me").choices[0].text == plain
    changes = [{"top_k": 1}, {"min_p": 1.0}, {"repetition_penalty": 0.01}, {"seed": 12}, {"temperature": 1e4}]
    for change in changes:
        found = [complete(ai, **{**some, **change}).choices[0].text for _ in range(2)]
        assert found[0] == found[1] != plain, change
