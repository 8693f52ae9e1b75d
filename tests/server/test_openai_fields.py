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
