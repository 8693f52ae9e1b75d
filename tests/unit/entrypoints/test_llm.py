"""`LLM` with a model: vLLM's attribute names, every form of prompt, an end that is safe to repeat."""

import subprocess
import sys

import pytest

from pyvllm import LLM, Cancelled, InvalidArgument, ModelLoadError, SamplingParams
from tests.tiny_models import write_tiny

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def llm(model):
    with LLM(model, threads=1) as llm:
        yield llm


def test_outputs_have_vllms_attributes(llm):
    (output,) = llm.generate("hello", GREEDY)
    assert output.prompt == "hello" and output.finished
    assert [llm.generate(list(output.prompt_token_ids), GREEDY)[0].outputs] == [output.outputs]
    (answer,) = output.outputs
    assert answer.index == 0 and answer.finish_reason == "length" and len(answer.token_ids) == 6
    assert isinstance(answer.text, str) and answer.text


@pytest.mark.parametrize(
    "prompts",
    [
        "hello",
        ["hello"],
        [104, 101, 108],
        [[104, 101, 108], [1]],
        {"prompt": "hello"},
        [{"prompt_token_ids": [104, 101]}, {"prompt": "x"}, "y", (1, 2)],
    ],
)
def test_every_form_of_prompt_gives_one_output_each(llm, prompts):
    outputs = llm.generate(prompts, GREEDY)
    is_one = isinstance(prompts, str | dict) or isinstance(prompts[0], int)
    assert len(outputs) == (1 if is_one else len(prompts))
    assert [output.prompt is None for output in outputs] == [
        not isinstance(prompt, str) and "prompt" not in prompt for prompt in ([prompts] if is_one else prompts)
    ]
    assert len({output.request_id for output in outputs}) == len(outputs)


def test_batch_gives_what_single_calls_give_in_order(llm):
    prompts = ["a", "bc", "hello there"]
    single = [llm.generate(prompt, GREEDY)[0].outputs for prompt in prompts]
    assert [output.outputs for output in llm.generate(prompts, GREEDY)] == single
    assert llm.generate([], GREEDY) == []


def test_each_prompt_may_have_its_own_params(llm):
    params = [SamplingParams(temperature=0, max_tokens=size, ignore_eos=True) for size in (1, 3, 2)]
    assert [len(output.outputs[0].token_ids) for output in llm.generate(["a", "b", "c"], params)] == [1, 3, 2]


@pytest.mark.parametrize(
    ("prompts", "params", "text"),
    [
        (5, None, "prompts must be text, token ids or a list of them, got int"),
        (["a", 1], None, "prompts[1] must be text or a non-empty list of token ids, got 1"),
        ([[]], None, "prompts[0] must be text or a non-empty list of token ids, got []"),
        ([[True]], None, "prompts[0] must be text or a non-empty list of token ids, got [True]"),
        ({"prompt": "a", "prompt_token_ids": [1]}, None, "prompts[0] must have exactly one key"),
        ([{"multi_modal_data": 1}], None, "prompts[0] must have exactly one key"),
        (["a", "b"], [GREEDY], "sampling_params has 1 entries for 2 prompts"),
        ("a", [5], "sampling_params[0] must be a SamplingParams, got int"),
        ("a", 5, "sampling_params must be a SamplingParams or a list of them, got int"),
        ("x" * 256, None, "max_model_len is 256"),
        ([258], None, "prompt token id 258 is outside the vocabulary"),
    ],
)
def test_bad_call_is_refused_by_name_and_the_next_one_works(llm, prompts, params, text):
    with pytest.raises(InvalidArgument) as refusal:
        llm.generate(prompts, params)
    assert text in str(refusal.value)
    assert llm.generate("hello", GREEDY)


def test_closed_model_refuses_calls_and_a_second_close_does_nothing(model):
    llm = LLM(str(model), threads=1)
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("a", GREEDY), llm.offload_report):
        with pytest.raises(InvalidArgument, match="the engine is closed"):
            call()


def test_progress_hears_the_load_and_may_cancel_it(model):
    heard = []
    LLM(model, progress=lambda done, planned, name: heard.append((done, planned)) or True).close()
    assert heard[-1][0] == heard[-1][1] > 0
    with pytest.raises(Cancelled):
        LLM(model, progress=lambda *_: False)


def test_report_of_a_load_is_the_plan_with_what_was_measured(model):
    with LLM(model, cpu_offload_gb=0.0001) as llm:
        report = llm.offload_report()
    assert report["resolved_backend"] == "uva"
    assert report["measured"]["host_bytes"] == report["planned"]["host_bytes"] > 0


def test_dtype_may_be_torchs(model):
    program = (
        "import sys, torch\nfrom pyvllm import LLM\n"
        "print({item['dtype'] for item in LLM(sys.argv[1], dtype=torch.bfloat16).offload_report()['placements']})"
    )
    done = subprocess.run([sys.executable, "-c", program, str(model)], capture_output=True, text=True, check=True)
    assert done.stdout == "{'bfloat16'}\n"


def test_missing_model_is_a_model_load_error_that_names_it(tmp_path):
    with pytest.raises(ModelLoadError, match="nowhere"):
        LLM(tmp_path / "nowhere")
