"""Every field of both structures acts or is refused by name and value."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capi import header

PROBE = Path(__file__).with_name("probe.py")
NOT_UTF8 = {"hex": "61ff62"}

MODEL_REFUSED = [
    ("block_size", 17, "17"),
    ("block_size", 8, "8"),
    ("max_num_seqs", 2**20, "1048576"),
    ("tool_parser", "Hermes", "known are hermes, qwen3, qwen3_coder"),
    ("reasoning_parser", "qwen", "known are deepseek_r1, qwen3"),
    ("speculative_config", '{"method": "ngram"}', "ngram"),
    ("speculative_config", "{}", "{}"),
    ("enable_prefix_caching", 3, "3"),
    ("enable_prefix_caching", -1, "-1"),
    ("scheduling_policy", "FCFS", "FCFS"),
    ("kv_transfer_config", '{"kv_connector": "X"}', "X"),
    ("offload_config", "[]", "object"),
    ("enable_jump_forward", 1, "1"),
    ("enable_jump_forward", 9, "9"),
    ("device", 3, "3"),
    ("device", -1, "-1"),
    ("gpu_memory_utilization", 1.5, "1.5"),
    ("gpu_memory_utilization", -0.1, "-0.1"),
    ("gpu_memory_utilization", float("nan"), "nan"),
    ("kv_cache_memory_bytes", -1, "-1"),
    ("language_model_only", 2, "2"),
    ("limit_mm_per_prompt", '{"image": 1}', "image"),
]
MODEL_ACCEPTED = [
    ("block_size", 32), ("block_size", -5), ("num_blocks", -1), ("max_num_seqs", 1), ("max_num_seqs", -1),
    ("tool_parser", ""), ("reasoning_parser", ""), ("tool_parser", "hermes"), ("reasoning_parser", "deepseek_r1"),
    ("speculative_config", ""), ("enable_prefix_caching", 2),
    ("max_num_batched_tokens", -1), ("scheduling_policy", ""), ("scheduling_policy", "fcfs"),
    ("block_size", 64), ("num_blocks", 100), ("max_num_seqs", 2), ("enable_prefix_caching", 1),
    ("max_num_batched_tokens", 2048), ("scheduling_policy", "priority"), ("scheduling_policy", "lpm"),
    ("kv_transfer_config", ""), ("offload_config", " "), ("enable_jump_forward", 2), ("gpu_memory_utilization", 0.0),
    ("gpu_memory_utilization", 1.0), ("kv_cache_memory_bytes", 2**40), ("language_model_only", 1),
    ("limit_mm_per_prompt", "{}"), ("device", 2), ("tokenizer_config_path", ""), ("max_model_len", -3),
    ("max_model_len", 5),
]  # fmt: skip
SAMPLING_REFUSED = [
    ("temperature", float("nan"), "nan"),
    ("temperature", float("inf"), "inf"),
    ("top_p", 0.0, "0.0"),
    ("top_p", 1.5, "1.5"),
    ("top_k", -2, "-2"),
    ("min_p", 2.0, "2.0"),
    ("max_tokens", 0, "0"),
    ("seed", 7, "7"),
    ("has_seed", 2, "2"),
    ("presence_penalty", 2.5, "2.5"),
    ("frequency_penalty", -2.5, "-2.5"),
    ("repetition_penalty", 0.0, "0.0"),
    ("min_tokens", 17, "17"),
    ("min_tokens", -1, "-1"),
    ("ignore_eos", -1, "-1"),
    ("n_stop", -1, "-1"),
    ("n_stop", 1, "NULL"),
    ("structured_json", "", "''"),
    ("structured_regex", "", "''"),
    ("structured_grammar", "", "''"),
    ("structured_choice", {"strings": ["a"]}, "n_structured_choice"),
    ("n_structured_choice", 1, "NULL"),
    ("structured_json_object", 2, "2"),
    ("logits_processor_user_data", 4096, "0x1000"),
]
SAMPLING_ACCEPTED = [
    ("temperature", -1.0), ("temperature", 0.0), ("top_p", 0.1), ("top_k", -1), ("top_k", 5), ("min_p", 1.0),
    ("max_tokens", 1), ("has_seed", 1), ("ignore_eos", 1), ("stop", {"strings": ["x"]}),
    ("presence_penalty", -2.0), ("frequency_penalty", 2.0), ("repetition_penalty", 1.5), ("min_tokens", 16),
    ("structured_json", '{"type": "integer"}'), ("structured_regex", "a"), ("structured_grammar", 'root ::= "x"'),
    ("structured_json_object", 1), ("logits_processor", None),
]  # fmt: skip


def ask(cases, *arguments):
    """Put cases to the library in a process of its own."""
    command = [sys.executable, PROBE, *arguments]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def planned():
    """Give the outcome of a plan of the configuration alone, with one field set."""
    fields = [(name, value) for name, value, _ in MODEL_REFUSED] + MODEL_ACCEPTED
    fields += [(name, NOT_UTF8) for name, kind in header.structs()["vllm_model_params"] if kind == "const char*"]
    answers = ask([{"model": {name: value}} for name, value in fields])
    return {(name, repr(value)): answer for (name, value), answer in zip(fields, answers, strict=True)}


@pytest.fixture(scope="module")
def completed(tiny):
    """Give the outcome of a completion with one sampling field set."""
    fields = [(name, value) for name, value, _ in SAMPLING_REFUSED] + SAMPLING_ACCEPTED
    answers = ask([{"sampling": {name: value}} for name, value in fields], str(tiny))
    return {(name, repr(value)): answer for (name, value), answer in zip(fields, answers, strict=True)}


@pytest.mark.parametrize(("name", "value", "shown"), MODEL_REFUSED)
def test_a_model_field_is_refused_by_name_and_value(planned, name, value, shown):
    status, text = planned[name, repr(value)]
    assert status == 1
    assert name in text
    assert shown in text


@pytest.mark.parametrize(("name", "value"), MODEL_ACCEPTED)
def test_a_default_or_acting_model_field_is_accepted(planned, name, value):
    assert planned[name, repr(value)] == [0, ""]


@pytest.mark.parametrize("name", [n for n, kind in header.structs()["vllm_model_params"] if kind == "const char*"])
def test_r132_a_string_that_is_not_utf8_is_refused_by_the_name_of_its_field(planned, name):
    assert planned[name, repr(NOT_UTF8)] == [1, f"{name} is not valid UTF-8: byte 0xff at offset 1"]


@pytest.mark.parametrize(("name", "value", "shown"), SAMPLING_REFUSED)
def test_a_sampling_field_is_refused_by_name_and_value(completed, name, value, shown):
    status, text = completed[name, repr(value)]
    assert status == 1
    assert name in text
    assert shown in text


@pytest.mark.parametrize(("name", "value"), SAMPLING_ACCEPTED)
def test_an_acting_sampling_field_is_accepted(completed, name, value):
    assert completed[name, repr(value)] == [0, ""]


def test_a_grammar_that_cannot_be_compiled_and_two_at_once_are_refused(tiny):
    two = {"structured_regex": "a", "structured_json_object": 1}
    answers = ask([{"sampling": fields} for fields in ({"structured_regex": "["}, two)], str(tiny))
    assert [status for status, _ in answers] == [1, 1]
    assert "structured output 'regex' cannot be compiled" in answers[0][1]
    assert answers[1][1] == "at most one structured output may be set; structured_regex, structured_json_object are"


def test_every_field_of_both_structures_is_among_these_cases():
    model = {name for name, *_ in [*MODEL_REFUSED, *MODEL_ACCEPTED]} | {"model_path"}
    sampling = {name for name, *_ in [*SAMPLING_REFUSED, *SAMPLING_ACCEPTED]}
    assert model == {name for name, _ in header.structs()["vllm_model_params"]}
    assert sampling == {name for name, _ in header.structs()["vllm_sampling_params"]}


def test_each_stop_string_is_read_and_named_by_its_place(tiny):
    stops = (["ok", "\xff"], ["a", None], [""])
    cases = [{"sampling": {"stop": {"strings": stop}, "n_stop": len(stop)}} for stop in stops]
    bad, null, empty = ask(cases, str(tiny))
    assert bad == [1, "stop[1] is not valid UTF-8: byte 0xff at offset 0"]
    assert null == [1, "stop[1] is NULL"]
    assert empty[0] == 1
    assert "stop" in empty[1]


OPTIONS = [
    (None, 0, ""), ("", 0, ""), ("{}", 0, ""), ('{"dtype": "float32", "threads": 2}', 0, ""),
    ('{"gguf_weights": "expanded"}', 0, ""), ("null", 1, "object"),
    ('{"threads": 2.0}', 0, ""), ('{"gguf_weights": "stored"}', 0, ""),
    ('{"cpu_kernels": "auto"}', 0, ""), ('{"cpu_kernels": "torch"}', 0, ""), ('{"cpu_kernels": "sse2"}', 1, "sse2"),
    ('{"gguf_weights": "packed"}', 1, "packed"), ('{"dtype": "int8"}', 1, "int8"),
    ('{"dtype": 7}', 1, "dtype"), ('{"threads": 0}', 1, "threads"), ('{"threads": true}', 1, "threads"),
    ('{"threads": 1.5}', 1, "1.5"), ('{"threads": null}', 1, "threads"), ('{"Dtype": "auto"}', 1, "'Dtype'"),
    ('{"dtype": "auto", "dtype": "auto"}', 1, "twice"), ("[]", 1, "object"), ('"x"', 1, "object"), ("{", 1, "JSON"),
    ('{"threads": NaN}', 1, "NaN"), ('{"threads": 1e999}', 1, "threads"), ("[" * 100_000, 1, "JSON"),
]  # fmt: skip


def test_options_act_or_are_refused_by_name():
    answers = ask([{"model": {}, "options": text} for text, _, _ in OPTIONS])
    for (text, status, part), (found, message) in zip(OPTIONS, answers, strict=True):
        assert (found, part in message) == (status, True), (text and text[:60], message)


def test_a_bad_offload_config_speaks_before_every_other_field_and_before_the_path():
    case = {"offload_config": "{", "model_path": "/no/such/model", "device": 9, "tool_parser": NOT_UTF8}
    [(status, text)] = ask([{"model": case, "options": '{"x": 1}'}])
    assert status == 1
    assert text.startswith("offload_config is not valid JSON")
