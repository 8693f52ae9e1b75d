"""Memory that runs out after the plan was allowed: the text says what offload did, what it freed, what would fit."""

import re

import pytest
import torch

from pyvllm.config.model import single
from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import DoesNotFit, GenerationError
from pyvllm.offloader.guard import explain_failure, is_out_of_memory
from pyvllm.offloader.plan import Capacity, Demand, make_plan
from pyvllm.worker.kv_cache import KVCache
from pyvllm.worker.model_runner import ModelRunner
from tests.offload.engines import GREEDY, PROMPTS, loaded
from tests.tiny_models import write_tiny

MIB = 2**20
CARD = Capacity(100 * MIB, 2**40, "a card", "cudaMemGetInfo", "MemAvailable", is_one_pool=False)
SPECS = [single(f"model.layers.{layer}.mlp.down_proj.weight", layer, "bfloat16", (8 * MIB,)) for layer in range(4)]


def plan_of(document, capacity=CARD):
    return make_plan("T", SPECS, OffloadConfig.from_dict(document), Demand(3, 1, 5, 0), capacity)


def torch_refusal():
    """The error of an allocation that no machine can give."""
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**62, dtype=torch.uint8)
    return refused.value


@pytest.mark.parametrize("error", [torch_refusal(), MemoryError(), torch.OutOfMemoryError("CUDA out of memory. ...")])
def test_the_refusals_of_python_and_of_torch_are_recognised(error):
    assert is_out_of_memory(error)


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory"), DoesNotFit("too large")])
def test_other_errors_keep_their_text(error):
    assert not is_out_of_memory(error)
    assert explain_failure(plan_of({}), error) == str(error)


def test_text_says_what_was_configured_what_it_freed_and_which_budget_frees_as_much_as_was_missing():
    plan = plan_of({"uva": {"cpu_offload_gb": 16 / 1024}})
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has ...")
    text = explain_failure(plan, error)
    assert text.startswith("a card is out of memory: CUDA out of memory. Tried to allocate 20.00 MiB.")
    assert 'offload is uva with {"uva": {"cpu_offload_gb": 0.015625}}' in text
    assert f"took {16 * MIB} of {64 * MIB} bytes of weights off the device, where {48 * MIB}" in text
    assert "workspace 5 and key-value cache 3 were planned" in text
    # 48 MiB are on the device, 28 may stay: three of the four weights have to go.
    gb = float(re.search(r"cpu_offload_gb (\S+) would free 20971520 bytes more", text)[1])
    assert plan_of({"uva": {"cpu_offload_gb": gb}}).asked_host_bytes in range(32 * MIB + 1, 48 * MIB + 1)


def test_R2_text_without_offload_says_that_it_is_off_and_that_none_would_be_enough():
    text = explain_failure(plan_of({}), torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB."))
    assert f"offload is off: all {64 * MIB} bytes of weights are on the device" in text
    assert f"no cpu_offload_gb frees {9 * 2**30} bytes more" in text
    assert "max_model_len needs less" in text


def test_text_of_one_pool_does_not_promise_that_more_offload_helps():
    pool = Capacity(100 * MIB, 2**40, "cpu", "MemAvailable", "MemAvailable", is_one_pool=True)
    text = explain_failure(plan_of({"uva": {"cpu_offload_gb": 0.01}}, pool), torch_refusal())
    assert "one memory pool, so more offload frees nothing" in text and "would free" not in text


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("m"))


UVA = {"uva": {"cpu_offload_gb": 0.0001}}


def test_generation_that_runs_out_of_memory_fails_with_that_text_and_the_engine_goes_on(model, monkeypatch):
    with loaded(model, UVA) as engine:
        expected = engine.generate(PROMPTS[0], GREEDY).token_ids
        with monkeypatch.context() as patch:
            patch.setattr(ModelRunner, "execute", lambda *_: torch.empty(2**62, dtype=torch.uint8))
            with pytest.raises(GenerationError, match=r"out of memory: .*offload is uva with .* one memory pool"):
                engine.generate(PROMPTS[0], GREEDY)
        assert engine.generate(PROMPTS[0], GREEDY).token_ids == expected


def test_a_cache_that_the_system_refuses_at_load_is_explained_too(model, monkeypatch):
    init = KVCache.__init__
    monkeypatch.setattr(KVCache, "__init__", lambda self, config, blocks, *rest: init(self, config, 2**44, *rest))
    with pytest.raises(DoesNotFit, match=r"key-value cache .*offload is uva with"), loaded(model, UVA):
        pytest.fail("it was loaded")
