"""Requests, chat, embeddings and the server, through the C library."""

import json
import re
import signal
import subprocess

import httpx
import pytest

from pyvllm import LLM
from tests.capi.test_hosts import script
from tests.capi.toolchain import CLEAN_ENVIRONMENT, succeed
from tests.chat.models import write_chatty, write_headless


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A Llama of two layers with a chat template."""
    return write_chatty(tmp_path_factory.mktemp("chatty") / "model", num_hidden_layers=2)


def test_requests_go_on_by_themselves(program, tiny):
    assert succeed(program("requests"), tiny) == ""


def test_chat_from_c(program, chatty):
    assert succeed(program("chat"), chatty) == ""


def run(text, *arguments):
    done = script(text, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


CHAT = """
    import json, sys
    from pyvllm import clib
    request = {"messages": [{"role": "user", "content": "hello"}], "temperature": 0, "max_tokens": 9,
               "ignore_eos": True, "model": "mine"}
    chunks = []
    fields = {"device": 1, "tool_parser": "qwen3", "reasoning_parser": "deepseek_r1"}
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f"}}]
    with clib.Engine(sys.argv[1], **fields) as engine:
        whole = engine.chat({**request, "structured_outputs": {"regex": "[a-z]{9}"}})
        thought = engine.chat(request)
        engine.chat_stream({**request, "stream": True, "stream_options": {"include_usage": True}},
                           lambda chunk, finished: chunks.append([chunk, finished]) or True)
        called = engine.chat({"messages": request["messages"], "tools": tools, "max_tokens": 99,
                              "structured_outputs": {"choice": [call]}})
        measured = engine.chat({**request, "logprobs": True, "top_logprobs": 2, "logit_bias": {"64": 100}})
        plain = engine.complete("u:hello\\na:", temperature=0, max_tokens=9, ignore_eos=1)
        try:
            engine.embed(["a"])
        except clib.LibraryError as error:
            refused = [error.status, error.text]
        pieces = []
        words = call.replace("{}", json.dumps({"x": [1, "</tool_call>"]}))
        engine.chat_stream({"messages": request["messages"], "tools": tools, "max_tokens": 99,
                            "structured_outputs": {"choice": [words]}},
                           lambda chunk, finished: pieces.append(chunk) or True)
    json.dump({"whole": whole, "thought": thought, "chunks": chunks, "called": called, "plain": plain,
               "refused": refused, "pieces": pieces, "measured": measured}, sys.stdout)
"""


@pytest.fixture(scope="module")
def chat(chatty):
    return run(CHAT, chatty)


def test_the_parsers_of_the_engine_act_on_its_chat(chat):
    [thought] = chat["thought"]["choices"]
    assert thought["message"] == {"role": "assistant", "content": "", "reasoning": chat["plain"]}
    [called] = chat["called"]["choices"]
    assert called["finish_reason"] == "tool_calls"
    assert called["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}
    pieces = [call for chunk in chat["pieces"] for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
    assert pieces[0]["function"] == {"name": "f", "arguments": ""} and pieces[0]["id"].startswith("call_")
    assert all(piece.keys() == {"index", "function"} for piece in pieces[1:]) and len(pieces) > 5
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"x": [1, "</tool_call>"]}
    entries = chat["measured"]["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == ["a"] * 9
    assert all(len(entry["top_logprobs"]) == 2 and entry["logprob"] < 0 for entry in entries)
    [whole] = chat["whole"]["choices"]
    assert re.fullmatch("[a-z]{9}", whole["message"]["content"]) and "reasoning" not in whole["message"]
    assert chat["whole"]["model"] == "mine"


def test_chunks_add_up_and_exactly_the_last_is_finished(chat):
    chunks = [chunk for chunk, _ in chat["chunks"]]
    assert [finished for _, finished in chat["chunks"]] == [False] * (len(chunks) - 1) + [True]
    deltas = [choice["delta"].get("reasoning", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(deltas) == chat["plain"]
    assert chunks[-1]["usage"]["completion_tokens"] == 9


def test_a_text_engine_names_the_functions_that_it_has(chat):
    status, text = chat["refused"]
    assert status == 1 and "vllm_complete" in text


def test_a_model_without_a_template_says_so(tiny):
    text = """
        import json, sys
        from pyvllm import clib
        with clib.Engine(sys.argv[1], device=1) as engine:
            try:
                engine.chat({"messages": [{"role": "user", "content": "x"}]})
            except clib.LibraryError as error:
                json.dump([error.status, error.text], sys.stdout)
    """
    status, message = run(text, tiny)
    assert status == 1 and "the model has no chat template" in message


ORDER = """
    import json, sys, threading
    from pyvllm import clib
    greedy = {"temperature": 0, "ignore_eos": 1}

    def listener(key, started, ends):
        def hear(text, end):
            started.set()
            if end:
                ends.append(key)
            return True
        return hear

    shared = "a beginning that fills two whole blocks"
    found = {}
    for name, fields in json.loads(sys.argv[2]).items():
        ends = []
        with clib.Engine(sys.argv[1], device=1, max_num_seqs=1, block_size=16, **fields) as engine:
            engine.complete(shared, max_tokens=1, **greedy)
            texts = {"long": ("blocks the way", 200), "other": ("has nothing in common with it at all", 20),
                     "shared": (shared + "!", 20)}
            requests = []
            for key, (prompt, size) in texts.items():
                started = threading.Event()
                hear = listener(key, started, ends)
                requests.append(engine.submit(prompt, hear, max_tokens=size, **greedy))
                # The long one is in the batch before the others come: they can only wait for it.
                if key == "long":
                    started.wait(60)
            for request in requests:
                request.wait()
                request.close()
        found[name] = ends
    json.dump(found, sys.stdout)
"""


def test_policy_prefix_cache_and_batch_size_decide_the_order(tiny):
    """With one request in a step, and a long one in it, the others wait; lpm takes the cached prefix first."""
    cases = {"lpm": {"scheduling_policy": "lpm"}, "fcfs": {"scheduling_policy": "fcfs"},
             "lpm without a cache": {"scheduling_policy": "lpm", "enable_prefix_caching": 2}}  # fmt: skip
    found = run(ORDER, tiny, json.dumps(cases))
    assert found["lpm"] == ["long", "shared", "other"]
    assert found["fcfs"] == found["lpm without a cache"] == ["long", "other", "shared"]


PLANS = """
    import json, sys
    from pyvllm import clib
    library = clib.Library()
    plans = [library.offload_plan(sys.argv[1], device=1, **fields)["planned"] for fields in json.loads(sys.argv[2])]
    json.dump(plans, sys.stdout)
"""


def test_the_sizes_of_cache_and_batch_are_in_the_plan(tiny):
    cases = [
        {}, {"num_blocks": 20}, {"num_blocks": 20, "block_size": 64}, {"max_num_seqs": 3},
        {"max_num_batched_tokens": 64}, {"kv_cache_memory_bytes": 2**20},
    ]  # fmt: skip
    plain, blocks, wide, few, small, asked = run(PLANS, tiny, json.dumps(cases))
    token_bytes = 2 * 2 * 2 * 16 * 4
    assert plain["kv_cache_bytes"] == 8 * 256 * token_bytes and few["kv_cache_bytes"] == 3 * 256 * token_bytes
    assert blocks["kv_cache_bytes"] == 20 * 32 * token_bytes
    assert wide["kv_cache_bytes"] == 20 * 64 * token_bytes
    assert small["workspace_bytes"] < plain["workspace_bytes"]
    assert asked["kv_cache_bytes"] == 2**20


SAMPLING = """
    import json, math, sys
    from pyvllm import clib
    greedy = {"temperature": 0, "max_tokens": 24, "ignore_eos": 1}
    heard = []

    def only_x(token_ids, n_token_ids, logits, vocab_size, user_data):
        heard.append([[token_ids[i] for i in range(n_token_ids)], vocab_size, user_data])
        for i in range(vocab_size):
            logits[i] = 1.0 if i == n_token_ids else -math.inf

    def end(token_ids, n_token_ids, logits, vocab_size, user_data):
        logits[257] = 1e6

    keep = [clib.LogitsProcessor(only_x), clib.LogitsProcessor(end)]
    with clib.Engine(sys.argv[1], device=1) as engine:
        tokens = lambda **more: engine.complete_tokens([65, 66], **{**greedy, **more})
        text = lambda **more: engine.complete("A", seed=3, max_tokens=99, **more)
        found = {
            "plain": tokens(),
            "repetition": tokens(repetition_penalty=1e6),
            "presence": tokens(presence_penalty=2.0),
            "frequency": tokens(frequency_penalty=2.0),
            "min": tokens(min_tokens=7, ignore_eos=0, logits_processor=keep[1]),
            "processor": tokens(max_tokens=5, logits_processor=keep[0], logits_processor_user_data=77),
            "regex": text(structured_regex="[ab]{4}"),
            "choice": text(structured_choice=["one", "two"]),
            "grammar": text(structured_grammar='root ::= "yes" | "no"'),
            "json": text(structured_json='{"enum": [17]}'),
            "object": text(structured_json_object=1),
        }
    json.dump({**found, "heard": heard}, sys.stdout)
"""


@pytest.fixture(scope="module")
def sampled(tiny):
    return run(SAMPLING, tiny)


def test_penalties_and_a_minimum_length_act(sampled):
    plain, repetition = sampled["plain"], sampled["repetition"]
    assert len(set(repetition)) == len(repetition) and not {65, 66} & set(repetition)
    assert plain != repetition
    for name in ("presence", "frequency"):
        assert len(set(sampled[name])) >= len(set(plain))
    assert sampled["min"][7:] == [257] and 257 not in sampled["min"][:7]


def test_structured_outputs_act(sampled):
    assert re.fullmatch("[ab]{4}", sampled["regex"])
    assert sampled["choice"] in ("one", "two") and sampled["grammar"] in ("yes", "no")
    assert sampled["json"] == "17" and sampled["object"].lstrip().startswith("{")


def test_a_logits_processor_sees_the_answer_so_far_and_decides(sampled):
    assert sampled["processor"] == [0, 1, 2, 3, 4]
    assert sampled["heard"] == [[list(range(number)), 258, 77] for number in range(5)]


def test_the_server_runs_inside_another_program_and_ends_in_order(program, chatty, tmp_path):
    command = [program("server"), "--model", chatty, "--device", "cpu", "--port", "0", "--served-model-name", "tiny"]
    process = subprocess.Popen(list(map(str, command)), env=CLEAN_ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(r"at (http://\S+)$", line):
            break
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "stream": True}
    with httpx.stream("POST", f"{found[1]}/v1/chat/completions", json=body, timeout=1000) as stream:
        events = [line for line in stream.iter_lines() if line]
    assert events[-1] == "data: [DONE]"
    process.send_signal(signal.SIGTERM)
    _, rest = process.communicate(timeout=1000)
    assert process.returncode == 0, "".join([*lines, rest])


def test_the_server_says_what_is_wrong_with_a_flag(program):
    done = subprocess.run(
        [program("server"), "--no-such-flag"], env=CLEAN_ENVIRONMENT, capture_output=True, text=True, timeout=1000
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("server: fatal: unknown argument '--no-such-flag'")


def test_embeddings_from_c_are_those_of_pyvllm(tmp_path):
    directory = write_headless("Qwen3Model", tmp_path / "model")
    text = """
        import json, sys
        from pyvllm import clib
        with clib.Engine(sys.argv[1], device=1) as engine:
            vectors = engine.embed(["a text", "another"])
            refused = []
            for call in (lambda: engine.complete("a"), lambda: engine.embed([]), lambda: engine.embed(["x" * 999])):
                try:
                    call()
                except clib.LibraryError as error:
                    refused.append([error.status, error.text])
        json.dump([vectors, refused], sys.stdout)
    """
    vectors, refused = run(text, directory)
    with LLM(directory, device="cpu") as llm:
        expected = [output.outputs.embedding for output in llm.embed(["a text", "another"])]
    assert vectors == [pytest.approx(vector, abs=1e-6) for vector in expected]
    assert [status for status, _ in refused] == [1, 1, 1]
    for (_, message), part in zip(refused, ("use vllm_embed", "n_texts", "max_model_len"), strict=True):
        assert part in message
