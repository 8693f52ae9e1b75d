"""Variables of a template, and prompts that end inside the last message: what transformers renders, or a refusal."""

import json

import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pyvllm import LLM, SamplingParams
from pyvllm.entrypoints.openai.chat_service import ChatService
from pyvllm.entrypoints.openai.fields import ApiError
from pyvllm.errors import InvalidArgument
from pyvllm.tokenizer.chat_template import RESERVED, ChatTemplate
from tests.chat.models import change
from tests.tiny_models import write_tiny

#: As Qwen3's, in short: a variable that closes the thought, and contents that are trimmed for one role only.
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content if m.role == 'user' else m.content | trim }}</end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{{ style | default('') }}"
    "{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("options"))
    change(made / "tokenizer_config.json", chat_template=TEMPLATE)
    return made


@pytest.fixture(scope="module")
def llm(directory):
    with LLM(directory, device="cpu", threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def oracle(directory):
    return transformers.AutoTokenizer.from_pretrained(directory)


def ask(llm, **fields):
    body = {"messages": HELLO, "temperature": 0, "max_tokens": 5, "ignore_eos": True, **fields}
    service = ChatService(llm._engine)
    return service.prepare(service.parse(json.dumps(body).encode()))


@pytest.mark.parametrize(
    "variables", [{}, {"enable_thinking": False}, {"enable_thinking": True}, {"style": "x{{ messages }}"}]
)
def test_variables_reach_the_template_as_in_transformers(llm, oracle, variables):
    expected = oracle.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=True, **variables)
    assert ask(llm, chat_template_kwargs=variables).prompt == expected
    assert llm.chat(HELLO, GREEDY, chat_template_kwargs=variables)[0].prompt == expected


def test_a_prompt_without_the_beginning_of_an_answer(llm, oracle):
    expected = oracle.apply_chat_template(HELLO, tokenize=False, add_generation_prompt=False)
    assert ask(llm, add_generation_prompt=False).prompt == expected != ask(llm).prompt


@settings(max_examples=60, deadline=None)
@given(role=st.sampled_from(["user", "assistant"]), content=st.text(alphabet="ab </end>\n", max_size=12))
def test_the_last_message_is_gone_on_with_as_in_transformers(llm, oracle, role, content):
    turns = [*HELLO, {"role": role, "content": content}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    prompt = ask(llm, messages=turns, **options).prompt
    assert prompt == oracle.apply_chat_template(turns, tokenize=False, **options)
    assert prompt.rstrip().endswith(content.strip())


def test_the_answer_goes_on_with_the_last_message(llm):
    turns = [*HELLO, {"role": "assistant", "content": "once"}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    [answer] = llm.chat(turns, GREEDY, **options)
    assert answer.prompt == "<user>hello</end>\n<assistant>once"
    assert answer.outputs == llm.generate([list(answer.prompt_token_ids)], GREEDY)[0].outputs


REFUSED = [
    ({name: 1}, f"'{name}' is a name that templates know already") for name in sorted(RESERVED)
] + [
    ({"enable_thinkin": False}, "reads no variable 'enable_thinkin', so .* it reads: enable_thinking, style"),
    ({"style": "x" * 10_000}, "more than 4096 characters"),
    ({"style": json.loads("[" * 70 + "]" * 70)}, "64 levels"),
]  # fmt: skip


@pytest.mark.parametrize(("variables", "text"), REFUSED, ids=[next(iter(given)) for given, _ in REFUSED])
def test_a_variable_that_means_nothing_or_too_much_is_refused_by_name(llm, variables, text):
    with pytest.raises(InvalidArgument, match=text):
        llm.chat(HELLO, GREEDY, chat_template_kwargs=variables)
    with pytest.raises(ApiError, match=text) as raised:
        ask(llm, chat_template_kwargs=variables)
    assert raised.value.param in ("chat_template_kwargs", "messages")
    assert ask(llm).prompt == "<user>hello</end>\n<assistant>"


def test_a_variable_cannot_be_code_of_the_sandbox():
    template = ChatTemplate("{{ style }}{{ style.__class__ }}{{ range(2) | list }}", {})
    template.check_variables(["style"])
    assert template.render(HELLO, 99, variables={"style": "{{ 9 }}"}) == "{{ 9 }}[0, 1]"
    with pytest.raises(InvalidArgument, match="plain values, found builtin"):
        template.render(HELLO, 99, variables={"style": print})


def test_a_message_that_the_template_hides_cannot_be_gone_on_with(llm):
    options = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(InvalidArgument, match="continue_final_message: the chat template does not show"):
        llm.chat(HELLO, GREEDY, chat_template="{{ messages | length }}", **options)
    with pytest.raises(InvalidArgument, match="send 'add_generation_prompt' false too"):
        llm.chat(HELLO, GREEDY, continue_final_message=True)
