"""Log probabilities: those of transformers' logits whatever sampling does to them, and none unless asked for."""

import pytest
import torch

from pyvllm import LLM, SamplingParams
from pyvllm.errors import InvalidArgument
from tests.tiny_models import tiny_model, write_tiny

PROMPT = list(b"once upon")
SAMPLINGS = [
    {"temperature": 0},
    {"temperature": 1.7, "seed": 3, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.8, "seed": 4, "repetition_penalty": 1.8, "presence_penalty": 1.5, "min_tokens": 12},
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    with LLM(write_tiny("Qwen3ForCausalLM", tmp_path_factory.mktemp("qwen")), device="cpu", threads=1) as made:
        yield made


@pytest.fixture(scope="module")
def oracle():
    return tiny_model("Qwen3ForCausalLM")


def expected(oracle, answer):
    """[T, V]: for each new token, the logarithms of all probabilities that transformers gives."""
    ids = [*answer.prompt_token_ids, *answer.outputs[0].token_ids]
    with torch.inference_mode():
        logits = oracle(torch.tensor([ids])).logits[0].float()
    return logits[len(answer.prompt_token_ids) - 1 : -1].log_softmax(dim=-1)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "penalised"])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_they_are_those_of_transformers_logits(llm, oracle, sampling, count):
    params = SamplingParams(**sampling, max_tokens=12, ignore_eos=True, logprobs=count)
    [answer] = llm.generate([PROMPT], params)
    values = expected(oracle, answer)
    found = answer.outputs[0].logprobs
    assert len(found) == 12
    for row, token_id, named in zip(values, answer.outputs[0].token_ids, found, strict=True):
        top = row.topk(count).indices.tolist()
        assert list(named) == [token_id, *(other for other in top if other != token_id)]
        for other, one in named.items():
            assert one.logprob == pytest.approx(float(row[other]), abs=2e-4)
            assert one.rank == int((row > row[other]).sum()) + 1


def test_a_request_that_asks_changes_no_answer_and_touches_no_other(llm):
    alone = SamplingParams(temperature=0.9, seed=5, max_tokens=9, ignore_eos=True)
    asking = SamplingParams(temperature=0.9, seed=5, max_tokens=9, ignore_eos=True, logprobs=4)
    [expected] = llm.generate([PROMPT], alone)
    together = llm.generate([PROMPT] * 4, [alone, asking, alone, asking])
    assert {answer.outputs[0].token_ids for answer in together} == {expected.outputs[0].token_ids}
    assert [answer.outputs[0].logprobs is None for answer in together] == [True, False, True, False]
    for one, other in zip(together[1].outputs[0].logprobs, together[3].outputs[0].logprobs, strict=True):
        assert {i: named.logprob for i, named in one.items()} == pytest.approx(
            {i: named.logprob for i, named in other.items()}, abs=1e-4
        )


def test_nothing_is_computed_for_those_who_do_not_ask(llm):
    params = [SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, logprobs=count) for count in (None, 2)]
    items = [llm._engine.submit(PROMPT, one) for one in params]
    assert all(item.wait(60) for item in items)
    assert [len(item.logprobs) for item in items] == [0, 3]
    assert [len(token.top) for token in items[1].logprobs] == [2] * 3


@pytest.mark.parametrize("value", [-1, 21, True, 1.5, "3"])
def test_a_count_out_of_bounds_is_refused_by_name(value):
    with pytest.raises(InvalidArgument, match="logprobs must be an integer from 0 to 20"):
        SamplingParams(logprobs=value)
