"""The server process: keys, start and end, what it says, and that it agrees with the library."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyvllm import LLM, ModelLoadError, SamplingParams
from tests.server.commands import PYVLLM, SERVER, ServerProcess, num_requests, run, until
from tests.server.conftest import OFFLOAD
from tests.tiny_models import write_tiny

BODY = {"prompt": "hello", "temperature": 0, "max_tokens": 3}


def test_requests_need_one_of_the_keys(model):
    server = ServerProcess("--model", model, "--api-key", "first key", "second")
    with server.client() as client:
        good = ("Bearer first key", "Bearer second", "bearer second")
        keys = (*good, "Bearer", "second", "Bearer x", "Bearer secon", "")
        answers = {key: post(client, key) for key in keys}
        assert client.get("/health").status_code == 200
        refused = client.get("/v1/models")
    assert [key for key, status in answers.items() if status == 200] == list(good)
    assert {answers[key] for key in keys[3:]} == {401}
    assert refused.json()["error"] == {
        "message": "a valid API key is needed: Authorization: Bearer <key>",
        "type": "AuthenticationError", "param": None, "code": 401,
    }  # fmt: skip
    assert server.stop() == 0


def post(client, key):
    return client.post("/v1/completions", json=BODY, headers={"Authorization": key}).status_code


def test_key_may_come_from_the_environment(model):
    server = ServerProcess("--model", model, env={**os.environ, "VLLM_API_KEY": "secret"})
    with server.client() as bare, server.client("secret") as keyed:
        assert [client.get("/v1/models").status_code for client in (bare, keyed)] == [401, 200]
    server.stop()
    assert "secret" not in "".join(server.log)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_the_server_in_order(model, number):
    server = ServerProcess("--model", model)
    with server.client() as client:
        name = client.get("/v1/models").json()["data"][0]["id"]
    assert (server.stop(number), server.stdout, name) == (0, "", model)
    assert not [line for line in server.log if "Traceback" in line]


def test_signal_ends_the_server_even_while_requests_run_and_wait(model):
    server = ServerProcess("--model", model)
    body = {**BODY, "prompt": ["hello"] * 1000, "max_tokens": 200, "ignore_eos": True}
    with server.client() as client, ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(client.post, "/v1/completions", json=body) for _ in range(3)]
        with server.client() as other:
            until(lambda: num_requests(other) == 3000)
        assert server.stop() == 0
        errors = [answer.result().json()["error"] for answer in asked]
    assert {error["message"] for error in errors} == {"the request was stopped: the server is shutting down"}
    assert not [line for line in server.log if "Traceback" in line]


def test_start_says_backend_asked_and_planned_bytes(server, llm):
    report = llm.offload_report()
    planned = report["planned"]
    line = (
        f"[vllm.cpp] server: offload uva; asked {int(0.0001 * 1024**3)} bytes; planned bytes: device "
        f"{planned['device_bytes']}, host {planned['host_bytes']}, streamed 0, buffer 0\n"
    )
    assert server.log.count(line) == 1 and planned["host_bytes"] > 0


def test_unknown_field_is_ignored_and_named_once(model):
    server = ServerProcess("--model", model)
    with server.client() as client:
        for _ in range(3):
            assert client.post("/v1/completions", json={**BODY, "flavour": "me", "frequency": 1}).status_code == 200
    server.stop()
    text = "".join(server.log)
    assert text.count("unknown request field 'flavour' is ignored") == 1
    assert text.count("unknown request field 'frequency' is ignored") == 1


DOCUMENTS = [
    '{"uva": {"cpu_offload_gb": 1}}',
    '{"uva": {"cpu_offload_gb": 0.00005, "cpu_offload_params": ["mlp"]}}',
    '{"prefetch": {"offload_group_size": 2}}',
]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_one_document_gives_one_result_in_library_and_server(model, document):
    """vllm-project/vllm#15877: the same configuration works in both, with the same plan and the same text."""
    with LLM(model, offload_config=document, threads=1) as llm:
        planned = llm.offload_report()["planned"]
        expected = llm.generate("hello", SamplingParams(temperature=0, max_tokens=3))[0].outputs[0].text
    server = ServerProcess("--model", model, "--offload-config", document)
    with server.client() as client:
        assert client.post("/v1/completions", json=BODY).json()["choices"][0]["text"] == expected
    server.stop()
    places = ", ".join(f"{place} {planned[f'{place}_bytes']}" for place in ("device", "host", "streamed", "buffer"))
    assert f"planned bytes: {places}\n" in "".join(server.log)


REFUSED = [
    '{"uva": {"cpu_offload_gb": 1, "cpu_offload_params": ["q_proj"]}}',
    '{"prefetch": {"offload_group_size": 5}}',
    '{"vllm_cpp": {"device_fit": {"weight_budget_bytes": 1000}}}',
]


@pytest.mark.parametrize("document", REFUSED)
def test_document_that_the_model_cannot_honour_is_refused_alike(model, document):
    with pytest.raises(Exception) as refusal:
        LLM(model, offload_config=document)
    done = run(SERVER, "--model", model, "--port", "0", "--offload-config", document)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == f"server: fatal: {' '.join(str(refusal.value).split())}"


def test_first_error_says_what_a_model_is(tmp_path):
    """mudler/vllm.cpp#280: a directory without config.json, a file that is no model, a wrong path."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("hello")
    for name in ("empty", "notes.txt", "missing"):
        done = run(SERVER, "--model", str(tmp_path / name), "--port", "0")
        assert done.returncode == 1 and done.stderr.startswith("server: fatal: ")
        assert done.stderr.count("\n") == 1 and name in done.stderr
        assert "config.json" in done.stderr and ".gguf" in done.stderr


def test_open_address_without_a_key_is_warned_of(model):
    server = ServerProcess("--model", model, "--host", "0.0.0.0")
    server.stop()
    assert "[vllm.cpp] server: 0.0.0.0 is reachable from outside and no --api-key is set\n" in server.log


def test_run_prints_the_librarys_text(model, llm):
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True)
    flags = ("--prompt", "hello", "--max-tokens", "9", "--ignore-eos", "--offload-config", OFFLOAD)
    done = run(PYVLLM, "run", model, *flags)
    assert (done.returncode, done.stdout) == (0, llm.generate("hello", params)[0].outputs[0].text + "\n")


def test_run_with_a_bad_sampling_value_loads_nothing(model):
    done = run(PYVLLM, "run", model, "--prompt", "a", "--top-p", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pyvllm: fatal: top_p must be in (0, 1]; got 2.0\n"


def test_every_tied_family_serves_through_prefetch(tmp_path):
    path = str(write_tiny("Qwen3ForCausalLM", tmp_path, tied=True))
    with LLM(path) as resident, LLM(path, offload_group_size=2) as streamed:
        params = SamplingParams(temperature=0, max_tokens=8)
        assert resident.generate("hi", params)[0].outputs == streamed.generate("hi", params)[0].outputs


def test_model_load_error_is_a_python_exception_with_the_same_text(model):
    with pytest.raises(ModelLoadError, match="the smallest cpu_offload_gb that fits is"):
        LLM(model, offload_config={"vllm_cpp": {"device_fit": {"weight_budget_bytes": 200_000}}})
