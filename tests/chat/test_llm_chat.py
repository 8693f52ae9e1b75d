"""`LLM.chat`, chat requests without a server, and asyncio over the engine."""

import asyncio
import json
import threading

import pytest

from pyvllm import LLM, SamplingParams
from pyvllm.engine.async_llm import AsyncLLM
from pyvllm.engine.preview import CacheSizes
from pyvllm.entrypoints.openai.chat_options import ChatOptions
from pyvllm.entrypoints.openai.chat_service import ChatService
from pyvllm.entrypoints.openai.fields import ApiError
from pyvllm.errors import FormatError, InvalidArgument
from tests.chat.models import write_chatty
from tests.tiny_models import write_tiny

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(write_chatty(tmp_path_factory.mktemp("chat") / "model"), device="cpu", threads=1) as made:
        yield made


def test_a_conversation_is_answered_as_its_rendered_prompt(llm):
    [answer] = llm.chat(HELLO, GREEDY)
    assert answer.prompt == "u:hello\na:"
    assert answer.outputs == llm.generate(["u:hello\na:"], GREEDY)[0].outputs
    assert len(answer.prompt_token_ids) == len(answer.prompt)


def test_conversations_are_answered_in_their_order(llm):
    other = [{"role": "system", "content": "x"}, *HELLO]
    answers = llm.chat([HELLO, other], [GREEDY, GREEDY], tools=[TOOL], add_generation_prompt=False)
    assert [answer.prompt for answer in answers] == ["u:hello\nclock\n", "s:x\nu:hello\nclock\n"]


def test_a_template_of_the_caller_takes_the_place_of_the_models(llm):
    assert llm.chat(HELLO, GREEDY, chat_template="{{ messages[0].content }}{{ eos_token }}")[0].prompt == "hello</s>"
    with pytest.raises(FormatError, match="--chat-template"):
        llm.chat(HELLO, chat_template="{% if %}")


def test_what_is_wrong_with_a_conversation_is_named(llm, tmp_path):
    with pytest.raises(InvalidArgument, match=r"messages\[0\].role must be one of"):
        llm.chat([{"role": "robot", "content": "x"}])
    with pytest.raises(InvalidArgument, match="two functions called 'clock'"):
        llm.chat(HELLO, tools=[TOOL, TOOL])
    plain = LLM(write_tiny("LlamaForCausalLM", tmp_path), device="cpu")
    with plain, pytest.raises(InvalidArgument, match="the model has no chat template"):
        plain.chat(HELLO)


def test_the_sizes_of_cache_and_batch_reach_the_engine(tmp_path):
    sizes = {"block_size": 16, "max_num_seqs": 2, "max_num_batched_tokens": 64, "scheduling_policy": "lpm",
             "enable_prefix_caching": False}  # fmt: skip
    model = write_tiny("LlamaForCausalLM", tmp_path)
    with LLM(model, device="cpu", num_gpu_blocks_override=20, **sizes) as llm:
        assert llm._engine.prepared.cache == CacheSizes(num_blocks=20, **sizes)
    with pytest.raises(InvalidArgument, match="block_size must be a multiple of 16"):
        LLM(model, block_size=17)


def test_a_damaged_template_refuses_conversations_and_nothing_else(tmp_path):
    directory = write_tiny("LlamaForCausalLM", tmp_path)
    (directory / "chat_template.jinja").write_text("{% if %}")
    with LLM(directory, device="cpu") as damaged:
        assert damaged.generate("a", GREEDY)
        with pytest.raises(FormatError, match="cannot be compiled"):
            damaged.chat(HELLO)


@pytest.mark.parametrize(
    ("setting", "name"), [({"tool_parser": "x"}, "tool_parser"), ({"reasoning_parser": "x"}, "reasoning_parser")]
)
def test_an_unknown_parser_is_refused_by_name(setting, name):
    with pytest.raises(InvalidArgument, match=f"{name} 'x' is not known; known are"):
        ChatOptions(**setting)


def body(**fields):
    return json.dumps({"messages": HELLO, "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}).encode()


def test_without_a_limit_an_answer_may_fill_the_models_length(llm):
    answer = ChatService(llm._engine).complete(body(max_tokens=None), "m")
    assert answer["usage"]["total_tokens"] == llm._engine.max_model_len
    assert answer["choices"][0]["finish_reason"] == "length"


def test_chunks_add_up_and_the_last_is_marked(llm):
    service = ChatService(llm._engine, ChatOptions(reasoning_parser="deepseek_r1"))
    chunks = list(service.stream(body(stream_options={"include_usage": True}, stream=True), "m"))
    assert [is_last for _, is_last in chunks] == [False] * (len(chunks) - 1) + [True]
    thought = "".join(choice["delta"].get("reasoning", "") for chunk, _ in chunks for choice in chunk["choices"])
    assert thought == service.complete(body(), "m")["choices"][0]["message"]["reasoning"]


def test_a_stream_that_is_closed_early_frees_the_engine(llm):
    stream = ChatService(llm._engine).stream(body(max_tokens=200), "m")
    next(stream)
    stream.close()
    assert llm.generate("a", GREEDY)
    assert llm._engine.stats().num_running == 0


def test_a_reply_that_was_cut_off_is_text_and_no_call(llm):
    fields = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 5}
    [choice] = ChatService(llm._engine).complete(body(**fields), "m")["choices"]
    assert choice["finish_reason"] == "length" and "tool_calls" not in choice["message"]
    assert choice["message"]["content"].startswith('[{"na')


def test_definitions_of_tools_are_kept_apart(llm):
    def tool(name, kind):
        parameters = {"type": "object", "properties": {"x": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"type": kind}},
                      "required": ["x"], "additionalProperties": False}  # fmt: skip
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    service = ChatService(llm._engine)
    fields = {"tool_choice": "required", "max_tokens": 120, "parallel_tool_calls": False}
    [choice] = service.complete(body(tools=[tool("a", "boolean"), tool("b", "boolean")], **fields), "m")["choices"]
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"])["x"] in (True, False)
    with pytest.raises(ApiError, match="two different definitions called 'X'"):
        service.complete(body(tools=[tool("a", "boolean"), tool("b", "null")], **fields), "m")


async def _texts(engine, prompt, size):
    params = SamplingParams(temperature=0, max_tokens=size, ignore_eos=True)
    return [news async for news in AsyncLLM(engine).generate(prompt, params)]


def test_asyncio_hears_every_text_and_one_end(llm):
    async def many():
        return await asyncio.gather(*(_texts(llm._engine, f"prompt {number}", 6) for number in range(8)))

    for number, found in enumerate(asyncio.run(many())):
        assert [news.finished for news in found] == [False] * (len(found) - 1) + [True]
        params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
        assert "".join(news.text for news in found) == llm.generate(f"prompt {number}", params)[0].outputs[0].text


class Gates:
    """A logits processor that lets its request go on at some tokens only once something has happened."""

    def __init__(self):
        self.num_tokens, self.at = 0, {number: threading.Event() for number in (1, 100, 200)}

    def __call__(self, token_ids, logits):
        self.num_tokens += 1
        if gate := self.at.get(self.num_tokens):
            assert gate.wait(120)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def test_a_task_that_is_cancelled_stops_its_request(llm):
    long, gates, stats = SamplingParams(temperature=0, max_tokens=240, ignore_eos=True), Gates(), llm._engine.stats
    other = llm._engine.submit("other", long, logits_processors=[gates])

    async def leave():
        task = asyncio.create_task(_texts(llm._engine, "never ends", 240))
        await until(lambda: stats().num_waiting == 1)
        gates.at[1].set()
        await until(lambda: stats().num_running == 2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The other waits at its 100th token until here and at its 200th until the end: it is not over before.
        gates.at[100].set()
        await until(lambda: stats().num_running == 1)
        assert not other.is_done

    asyncio.run(leave())
    llm._engine.cancel(other)
    gates.at[200].set()
    assert other.wait(120)


def test_asyncio_raises_what_the_engine_refuses(llm):
    with pytest.raises(InvalidArgument, match="max_model_len"):
        asyncio.run(_texts(llm._engine, "x" * 300, 5))


def test_a_logits_processor_cannot_wait_for_its_own_engine(llm):
    refused = []

    def call(token_ids, logits):
        with pytest.raises(InvalidArgument, match="logits processor"):
            llm._engine.generate("a", GREEDY)
        refused.append(threading.current_thread().name)

    llm._engine.generate("a", SamplingParams(temperature=0, max_tokens=2, ignore_eos=True), logits_processors=[call])
    assert refused == ["vllm-engine"] * 2


def test_a_logits_processor_that_raises_ends_its_own_request_and_no_other(llm):
    def fail(token_ids, logits):
        raise KeyError("mine")

    good = llm._engine.submit("a", GREEDY)
    bad = llm._engine.submit("a", GREEDY, logits_processors=[fail])
    other = llm._engine.submit("a", GREEDY)
    assert all(item.wait(60) for item in (good, bad, other))
    assert "a logits processor raised KeyError: 'mine'" in str(bad.error)
    assert good.output.text == other.output.text == llm.generate("a", GREEDY)[0].outputs[0].text
