"""A real server on 127.0.0.1: its answers are the library's, its errors name the field."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pyvllm import SamplingParams
from tests.server.commands import endless, num_requests, until

GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def complete(client, **fields):
    return client.post("/v1/completions", json={"model": "tiny", "prompt": "hello", **GREEDY, **fields})


def test_greedy_answer_is_the_librarys(client, llm):
    expected = llm.generate("hello", SamplingParams(**GREEDY))[0]
    answer = complete(client).json()
    assert answer["object"] == "text_completion" and answer["model"] == "tiny" and answer["id"].startswith("cmpl-")
    assert answer["choices"] == [
        {"index": 0, "text": expected.outputs[0].text, "logprobs": None, "finish_reason": "length"}
    ]
    assert answer["usage"] == {"prompt_tokens": len(expected.prompt_token_ids), "completion_tokens": 12,
                               "total_tokens": len(expected.prompt_token_ids) + 12}  # fmt: skip


@pytest.mark.parametrize("prompt", ["hello", ["hello", "b", "c d"], [72, 101, 108], [[1, 2], [3], [4, 5, 6]]])
def test_each_form_of_prompt_is_answered_as_the_library_does(client, llm, prompt):
    outputs = llm.generate(prompt, SamplingParams(**GREEDY))
    answer = complete(client, prompt=prompt).json()
    assert [choice["text"] for choice in answer["choices"]] == [output.outputs[0].text for output in outputs]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(outputs)))
    assert answer["usage"]["prompt_tokens"] == sum(len(output.prompt_token_ids) for output in outputs)


def test_seeded_sampling_is_the_librarys(client, llm):
    sampling = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "seed": 7, "max_tokens": 12}
    expected = llm.generate("hello", SamplingParams(**sampling))[0].outputs[0]
    choice = complete(client, ignore_eos=False, **sampling).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, expected.finish_reason)


def test_n_answers_use_consecutive_seeds(client):
    sampling = {"temperature": 1, "seed": 3}
    several = [choice["text"] for choice in complete(client, n=3, **sampling).json()["choices"]]
    single = [complete(client, **{**sampling, "seed": seed}).json()["choices"][0]["text"] for seed in (3, 4, 5)]
    assert several == single and len(set(several)) == 3


def test_stop_string_ends_the_text(client, llm):
    text = llm.generate("hello", SamplingParams(**GREEDY))[0].outputs[0].text
    stop = text[len(text) // 2 :][:3]
    choice = complete(client, stop=[stop]).json()["choices"][0]
    assert choice == {"index": 0, "text": text[: text.index(stop)], "logprobs": None, "finish_reason": "stop"}


def test_health_and_models(client):
    assert client.get("/health").status_code == 200
    body = client.get("/v1/models").json()
    assert [entry["id"] for entry in body["data"]] == ["tiny", "small"]
    assert body["object"] == "list" and body["data"][0]["max_model_len"] == 256


def test_every_served_name_is_answered_and_echoed(client):
    answers = [complete(client, model=name).json()["model"] for name in ("tiny", "small", None)]
    assert answers == ["tiny", "small", "tiny"]


def assert_error(response, status, kind, param):
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    return error["message"]


def test_unknown_model_is_not_found(client):
    message = assert_error(complete(client, model="other"), 404, "NotFoundError", "model")
    assert message == "the model 'other' does not exist; served: tiny, small"


BAD = [
    ("temperature", -1), ("max_tokens", 257), ("stream", "yes"), ("logprobs", 21), ("n", 17), ("prompt", []),
    ("stop", [1]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD)
def test_bad_field_is_named(client, name, value):
    """vllm-project/vllm#31870."""
    assert f"'{name}'" in assert_error(complete(client, **{name: value}), 400, "BadRequestError", name)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("x" * 300, "max_model_len is 256"), ([258], "prompt token id 258"), ("", "the prompt has no tokens")],
)
def test_prompt_that_the_model_cannot_take_is_named_and_the_next_request_works(client, prompt, text):
    assert text in assert_error(complete(client, prompt=prompt), 400, "BadRequestError", "prompt")
    assert complete(client).status_code == 200


def test_unknown_path_and_method_are_openais_errors(client):
    assert_error(client.get("/v1/nothing"), 404, "NotFoundError", None)
    assert_error(client.get("/v1/completions"), 405, "MethodNotAllowedError", None)


@pytest.mark.parametrize("kind", ["text/plain", "", "application/x-www-form-urlencoded"])
def test_body_that_a_web_page_could_send_is_refused(client, kind):
    response = client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": kind})
    assert "Content-Type must be application/json" in assert_error(response, 400, "BadRequestError", None)


def test_body_over_16_mib_is_refused_and_the_next_request_works(server, client):
    """Chunked, so that no length announces it."""
    chunks = (b" " * 2**20 for _ in range(17))
    with server.client() as other:
        response = other.post("/v1/completions", content=chunks, headers={"content-type": "application/json"})
    message = assert_error(response, 413, "RequestEntityTooLargeError", None)
    assert message == "the body may have at most 16777216 bytes"
    assert complete(client).status_code == 200


def test_requests_at_once_are_answered_as_alone(server, client):
    prompts = [f"prompt {index}" for index in range(12)]
    alone = [complete(client, prompt=prompt).json()["choices"][0]["text"] for prompt in prompts]

    def ask(prompt):
        with server.client() as own:
            return complete(own, prompt=prompt).json()["choices"][0]["text"]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, prompts)) == alone


def test_health_answers_while_the_model_is_busy(server, client):
    """A generation on the event loop would hold it back until the end."""
    with server.client() as other, endless(other):
        for _ in range(5):
            assert client.get("/health").status_code == 200
            assert num_requests(client) > 0


def test_client_that_leaves_frees_the_model(server, client):
    with server.client() as other:
        with endless(other):
            assert num_requests(client) > 1000
        until(lambda: num_requests(client) == 0)
    assert complete(client).status_code == 200


def test_error_answers_hold_no_path_and_no_trace(client, model):
    bodies = [complete(client, **{name: value}).text for name, value in BAD]
    bodies += [complete(client, prompt="x" * 300).text, client.get("/v1/nothing").text]
    assert not [body for body in bodies if "Traceback" in body or model in body or ".py" in body]
