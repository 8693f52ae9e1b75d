"""The `openai` package, as its users call it, against a real server: conversation, stream, tools, schema, errors."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from pyvllm import SamplingParams
from tests.server.commands import ServerProcess, metric, num_requests, until

GREEDY = {"model": "tiny", "temperature": 0, "max_tokens": 12, "extra_body": {"ignore_eos": True}}
HELLO = [{"role": "user", "content": "hello"}]
PROMPT = "u:hello\na:"
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
JSON = {"content-type": "application/json"}
CLOCK = {"type": "function", "function": {"name": "clock"}}


@pytest.fixture
def ai(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=1000) as client:
        yield client


def greedy_text(llm, max_tokens=12):
    ids = llm._engine.tokenizer.encode(PROMPT, add_special_tokens=False)
    params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
    return llm.generate([ids], params)[0].outputs[0].text


def test_a_conversation_is_the_librarys_answer_to_the_rendered_prompt(ai, llm):
    answer = ai.chat.completions.create(messages=HELLO, **GREEDY)
    assert (answer.object, answer.model, answer.id[:9]) == ("chat.completion", "tiny", "chatcmpl-")
    [choice] = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", greedy_text(llm))
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(PROMPT), 12)


def test_a_second_turn_takes_the_first_answer_back(ai):
    first = ai.chat.completions.create(messages=HELLO, **GREEDY).choices[0].message
    turns = [*HELLO, first.model_dump(exclude_none=True), {"role": "user", "content": [{"type": "text", "text": "x"}]}]
    second = ai.chat.completions.create(messages=turns, **GREEDY)
    assert second.usage.prompt_tokens == len(f"u:hello\na:{first.content}\nu:x\na:".encode()) or "�" in first.content


def test_a_stream_adds_up_to_the_whole_and_ends_with_its_usage(ai, llm):
    options = {"include_usage": True}
    chunks = list(ai.chat.completions.create(messages=HELLO, stream=True, stream_options=options, **GREEDY))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == greedy_text(llm)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 12
    assert len(chunks) > 5


def test_a_streamed_completion_adds_up_to_the_whole(ai):
    whole = ai.completions.create(prompt=["ab", "c"], **GREEDY)
    texts = ["", ""]
    for chunk in ai.completions.create(prompt=["ab", "c"], stream=True, **GREEDY):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]


def test_several_answers_have_their_own_text_whole_and_streamed(ai):
    fields = {**GREEDY, "temperature": 1, "seed": 5, "n": 3}
    whole = [choice.message.content for choice in ai.chat.completions.create(messages=HELLO, **fields).choices]
    texts = ["", "", ""]
    for chunk in ai.chat.completions.create(messages=HELLO, stream=True, **fields):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == whole and len(set(whole)) == 3


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "age": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
    # A random model would write white space until its tokens run out.
    "x-guidance": {"whitespace_flexible": False},
}


@pytest.mark.parametrize("seed", [1, 2])
def test_a_json_schema_is_kept(ai, seed):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}}
    sampling = {"model": "tiny", "temperature": 1, "seed": seed}
    answer = ai.chat.completions.create(messages=HELLO, response_format=form, **sampling)
    found = json.loads(answer.choices[0].message.content)
    assert found["name"] in ("Ada", "Bob") and 10 <= found["age"] <= 99
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("parallel", [True, False])
def test_a_required_tool_is_called_by_its_schema(ai, seed, parallel):
    answer = ai.chat.completions.create(
        model="tiny", messages=HELLO, tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=parallel,
        temperature=1, seed=seed, max_tokens=150,
    )  # fmt: skip
    [choice] = answer.choices
    if choice.finish_reason == "length":
        assert parallel
        return
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    for call in choice.message.tool_calls:
        check_call(call)
    assert parallel or len(choice.message.tool_calls) == 1


def check_call(call):
    arguments = json.loads(call.function.arguments)
    assert call.type == "function" and call.id.startswith("call_")
    if call.function.name == "weather":
        assert arguments["city"] in ("Oslo", "Rome") and 1 <= arguments["days"] <= 9
    else:
        assert call.function.name == "clock"


def test_a_named_tool_is_called_whole_and_streamed(ai):
    choice = {"type": "function", "function": {"name": "weather"}}
    fields = {"model": "tiny", "messages": HELLO, "tools": [WEATHER], "tool_choice": choice, "seed": 3}
    whole = ai.chat.completions.create(**fields).choices[0]
    check_call(whole.message.tool_calls[0])
    assert (whole.message.tool_calls[0].function.name, whole.finish_reason) == ("weather", "stop")
    calls = [
        call
        for chunk in ai.chat.completions.create(stream=True, **fields)
        for call in chunk.choices[0].delta.tool_calls or []
    ]
    assert [call.index for call in calls] == [0] * len(calls)
    assert calls[0].function.name == "weather"
    arguments = "".join(call.function.arguments for call in calls)
    assert arguments == whole.message.tool_calls[0].function.arguments


def test_a_call_that_the_model_chooses_is_parsed(ai):
    """The grammar stands in for a model that has learnt to call."""
    text = '<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'
    fields = {"model": "tiny", "messages": HELLO, "tools": [CLOCK], "max_tokens": 150}
    body = {"structured_outputs": {"choice": [f"Let me see. {text}"]}}
    whole = ai.chat.completions.create(**fields, extra_body=body).choices[0]
    assert (whole.message.content, whole.finish_reason) == ("Let me see.", "tool_calls")
    assert [call.function.name for call in whole.message.tool_calls] == ["clock"]
    assert json.loads(whole.message.tool_calls[0].function.arguments) == {"zone": "UTC"}
    chunks = list(ai.chat.completions.create(**fields, extra_body=body, stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert [call.function.name for delta in deltas for call in delta.tool_calls or []][:2] == ["clock", None]


def test_the_answer_to_a_call_goes_into_the_next_turn(ai):
    call = {"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "UTC"}'}}
    turns = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    answer = ai.chat.completions.create(messages=turns, tools=[CLOCK], tool_choice="none", **GREEDY)
    assert answer.usage.prompt_tokens == len("u:hello\na:\nt:noon\na:")


BAD = [
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logit_bias": {"258": 2}}, "logit_bias"),
    ({"n": 10**6}, "n"),
    ({"max_tokens": 10**9}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": 3}, "max_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"presence_penalty": 9}, "presence_penalty"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no"}}}},
     "response_format"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
    ({"tools": [CLOCK, CLOCK]}, "tools"),
    ({"tools": [CLOCK] * 129}, "tools"),
    ({"tools": [CLOCK], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"extra_body": {"chat_template": "x"}}, "chat_template"),
    ({"extra_body": {"chat_template_kwargs": {"x": 1}}}, "chat_template_kwargs"),
    ({"extra_body": {"priority": 3}}, "priority"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[f"{param}-{index}" for index, (_, param) in enumerate(BAD)])
def test_a_bad_request_is_named_and_the_next_one_works(ai, fields, param):
    with pytest.raises(openai.BadRequestError) as raised:
        ai.chat.completions.create(**{**GREEDY, "messages": HELLO, **fields})
    assert raised.value.param == param
    assert raised.value.code == 400 or raised.value.status_code == 400
    assert ai.chat.completions.create(messages=HELLO, **GREEDY).choices[0].finish_reason == "length"


def test_half_a_character_in_a_request_or_a_call_breaks_no_answer(client):
    turns = [{"role": "user", "content": "\ud800"}]
    refused = client.post("/v1/chat/completions", content=json.dumps({"messages": turns}), headers=JSON)
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "messages"
    call = '<tool_call>{"name": "clock", "arguments": {"x": "\\ud800"}}</tool_call>'
    body = {"messages": HELLO, "tools": [CLOCK], "structured_outputs": {"choice": [call]}, "max_tokens": 150}
    found = client.post("/v1/chat/completions", content=json.dumps(body), headers=JSON).json()["choices"][0]
    assert found["message"]["tool_calls"][0]["function"]["arguments"] == '{"x": "\\ud800"}'


def test_an_unknown_model_and_a_bad_stream_are_errors_with_their_status(ai):
    with pytest.raises(openai.NotFoundError):
        ai.chat.completions.create(**{**GREEDY, "model": "other"}, messages=HELLO)
    with pytest.raises(openai.BadRequestError):
        ai.chat.completions.create(**{**GREEDY, "temperature": 3e40}, messages=[], stream=True)


def test_conversations_at_once_are_answered_as_alone(ai):
    def ask(number):
        turns = [{"role": "user", "content": f"number {number}"}]
        if number % 3 == 2:
            with pytest.raises(openai.BadRequestError):
                ai.chat.completions.create(**{**GREEDY, "n": -1}, messages=turns)
            return None
        if number % 3:
            return ai.chat.completions.create(messages=turns, **GREEDY).choices[0].message.content
        stream = ai.chat.completions.create(messages=turns, stream=True, **GREEDY)
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)

    alone = [ask(number) for number in range(12)]
    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(12))) == alone


def test_streams_that_are_left_free_the_model(ai, client):
    before = metric(client, "vllm:num_steps_total")
    # 128 answers of 240 tokens, 8 in a step: 3840 steps if they were all given.
    long = {**GREEDY, "temperature": 1, "stream": True, "n": 16, "max_tokens": 240}
    streams = [ai.chat.completions.create(messages=HELLO, **long) for _ in range(8)]
    next(iter(streams[0]))
    for stream in streams:
        stream.close()
    until(lambda: num_requests(client) == 0)
    assert metric(client, "vllm:num_steps_total") - before < 3000


def test_metrics_count_what_was_asked_and_where_the_weights_are(ai, client, llm):
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count",
             "vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_count")  # fmt: skip
    before = [metric(client, name) for name in names]
    steps = metric(client, "vllm:num_steps_total")
    crossed = metric(client, "vllm:offload_bus_bytes_total")
    list(ai.chat.completions.create(messages=HELLO, stream=True, **GREEDY))
    after = [metric(client, name) for name in names]
    prompt, generation, first, between, whole = (new - old for new, old in zip(after, before, strict=True))
    assert (prompt, generation, first, whole) == (len(PROMPT), 12, 1, 1)
    assert 0 < between <= 11
    planned = llm.offload_report()["planned"]
    for place in ("device", "host", "streamed"):
        assert metric(client, "vllm:offload_bytes", place=place) == planned[f"{place}_bytes"]
    steps = metric(client, "vllm:num_steps_total") - steps
    assert metric(client, "vllm:offload_bus_bytes_total") - crossed == steps * planned["host_bytes"] > 0
    assert metric(client, "vllm:num_requests_waiting") == 0
    assert metric(client, "vllm:request_success_total", finished_reason="length") > 0


def test_embeddings_of_a_text_model_are_refused(ai):
    with pytest.raises(openai.BadRequestError, match="embedding"):
        ai.embeddings.create(model="tiny", input="hello")


def test_priority_and_prefetch_act_on_a_server_that_has_them(model):
    flags = ("--scheduling-policy", "priority", "--offload-group-size", "2", "--max-num-seqs", "1",
             "--block-size", "16", "--num-gpu-blocks-override", "40", "--max-num-batched-tokens", "64",
             "--no-enable-prefix-caching")  # fmt: skip
    server = ServerProcess("--model", model, "--served-model-name", "tiny", *flags)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as ai, server.client() as client:
        body = {"ignore_eos": True, "priority": -1}
        answer = ai.chat.completions.create(**{**GREEDY, "extra_body": body}, messages=HELLO)
        assert answer.usage.completion_tokens == 12
        assert metric(client, "vllm:offload_prefetch_waits_total") > 12
        assert metric(client, "vllm:offload_bytes", place="buffer") > 0
        copied = metric(client, "vllm:offload_bus_bytes_total")
        assert copied >= metric(client, "vllm:offload_bytes", place="streamed") * 12
        with pytest.raises(openai.BadRequestError) as raised:
            ai.chat.completions.create(**GREEDY, messages=HELLO, tools=[CLOCK])
        assert raised.value.param == "tool_choice" and "--tool-call-parser" in str(raised.value)
    assert server.stop() == 0


def test_smollm2_holds_a_conversation(smollm2_gguf):
    flags = ("--served-model-name", "smol", "--max-model-len", "512", "--dtype", "float32")
    server = ServerProcess("--model", str(smollm2_gguf), *flags)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=1000) as ai:
        turns = [{"role": "user", "content": "What is the capital of France?"}]
        first = ai.chat.completions.create(model="smol", messages=turns, temperature=0, max_tokens=24)
        assert "Paris" in first.choices[0].message.content
        turns += [first.choices[0].message, {"role": "user", "content": "And of Italy?"}]
        second = ai.chat.completions.create(model="smol", messages=turns, temperature=0, max_tokens=24)
        assert second.usage.prompt_tokens > first.usage.prompt_tokens
        assert "Rome" in second.choices[0].message.content
    assert server.stop() == 0
