"""Batching, chunking, preemption and prefix sharing change when a token is computed, never which one."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from pyvllm.sampling_params import SamplingParams
from tests.offload.engines import loaded
from tests.tiny_models import write_tiny

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SHARED = "A common beginning that fills more than two blocks of sixteen tokens. "
PROMPTS = [(SHARED if number % 2 else "") + f"{number}: tell me about {'x' * (number % 7)}" for number in range(32)]
OFFLOADS = {
    "resident": {},
    "uva": {"uva": {"cpu_offload_gb": 0.0003}},
    "prefetch": {"prefetch": {"offload_group_size": 2, "offload_prefetch_step": 1}},
}
#: A cache of 16 blocks cannot hold the batch, so requests are preempted.
SETTINGS = {
    "plain": {"enable_prefix_caching": False},
    "chunked": {"enable_prefix_caching": False, "max_num_batched_tokens": 24},
    "shared": {"enable_prefix_caching": True, "block_size": 16},
    "preempted": {"enable_prefix_caching": True, "block_size": 16, "num_blocks": 16, "max_model_len": 128},
}


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def model(request, tmp_path_factory):
    return write_tiny(request.param, tmp_path_factory.mktemp("tiny") / "m")


@pytest.fixture(scope="module")
def alone(model):
    """Every prompt answered by itself, with nothing offloaded and nothing shared."""
    with loaded(model, enable_prefix_caching=False, max_num_seqs=1) as engine:
        return [engine.generate(prompt, GREEDY).token_ids for prompt in PROMPTS]


@pytest.mark.parametrize("offload", OFFLOADS)
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("concurrent", [8, 32])
def test_tokens_equal_those_of_each_request_alone(model, alone, offload, setting, concurrent):
    with loaded(model, OFFLOADS[offload], max_num_seqs=concurrent, **SETTINGS[setting]) as engine:
        engine.generate(PROMPTS[1], GREEDY)
        items = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        assert all(item.wait(120) for item in items)
        assert [item.request.output_token_ids for item in items] == alone
        assert (engine._core.scheduler.num_preemptions > 0) == (setting == "preempted")
        assert engine._core.scheduler.cache.usage == 0
        cached = sum(item.request.num_cached_tokens for item in items)
        assert (cached > 0) == (setting in ("shared", "preempted"))


def test_threads_that_call_generate_get_what_they_would_get_alone(model, alone):
    with loaded(model) as engine, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda prompt: engine.generate(prompt, GREEDY).token_ids, PROMPTS))
    assert answers == alone


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(model):
    params = [SamplingParams(temperature=1, max_tokens=8, seed=number, ignore_eos=True) for number in range(8)]
    with loaded(model) as engine:
        items = [engine.submit("once", each) for each in params]
        assert all(item.wait(60) for item in items)
        alone = [engine.generate("once", each).token_ids for each in params]
    assert [item.request.output_token_ids for item in items] == alone
    assert len({tuple(ids) for ids in alone}) > 1


def test_a_cancelled_request_ends_with_abort_and_the_others_go_on(model, alone):
    with loaded(model) as engine:
        long = engine.submit("never ends", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
        other = engine.submit(PROMPTS[0], GREEDY)
        engine.cancel(long)
        assert long.wait(60)
        assert other.wait(60)
        assert (long.finish_reason, other.finish_reason) == ("abort", "length")
        assert other.request.output_token_ids == alone[0]
        assert engine._core.scheduler.cache.usage == 0


def test_a_failure_inside_the_model_ends_its_requests_and_not_the_engine(model, alone, monkeypatch):
    with loaded(model) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(engine._model.runner, "execute", lambda step: 1 / 0)
            item = engine.submit(PROMPTS[0], GREEDY)
            assert item.wait(60)
        assert "generation failed after 0 tokens: division by zero" in str(item.error)
        assert engine.generate(PROMPTS[0], GREEDY).token_ids == alone[0]


def test_close_ends_what_was_submitted_with_abort(model):
    with loaded(model) as engine:
        item = engine.submit("never ends", SamplingParams(temperature=0, max_tokens=200, ignore_eos=True))
    assert item.is_done
    assert item.finish_reason == "abort"
