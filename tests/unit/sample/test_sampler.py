"""Which tokens may be drawn, and how often: against a slow sampler that sorts, in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.errors import GenerationError
from pyvllm.sample.sampler import Sampler, kept_logits
from pyvllm.sampling_params import SamplingParams

LOGITS = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])


def draws(logits, count, **params):
    sampler = Sampler(SamplingParams(**params))
    return [sampler.sample(logits) for _ in range(count)]


def softmax(logits, temperature):
    highest = max(logits)
    weights = [math.exp((logit - highest) / temperature) for logit in logits]
    return [weight / sum(weights) for weight in weights]


def without(probabilities, dropped):
    rest = [0.0 if i in dropped else p for i, p in enumerate(probabilities)]
    return [p / sum(rest) for p in rest]


def distribution(logits, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0):
    """The oracle: temperature, min_p, top_k, top_p, each on what the one before left."""
    p = softmax(logits, temperature)
    p = without(p, {i for i, x in enumerate(p) if x < min_p * max(p)})
    if 0 < top_k < len(p):
        least = sorted(p, reverse=True)[top_k - 1]
        p = without(p, {i for i, x in enumerate(p) if x < least})
    if top_p < 1:
        mass, dropped = 0.0, set()
        for i in sorted(range(len(p)), key=lambda i: p[i])[:-1]:
            mass += p[i]
            if mass > 1 - top_p:
                break
            dropped.add(i)
        p = without(p, dropped)
    return p


def chi_square(counts, expected):
    """Pearson's statistic of the tokens that can occur, and its degrees of freedom."""
    total = sum(counts)
    terms = [(count - total * p) ** 2 / (total * p) for count, p in zip(counts, expected, strict=True) if p > 0]
    return sum(terms), len(terms) - 1


CASES = {
    "plain": {},
    "hot": {"temperature": 2.0},
    "cold": {"temperature": 0.5},
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
    "all": {"temperature": 1.3, "top_k": 5, "top_p": 0.9, "min_p": 0.05},
}


@pytest.mark.parametrize("params", CASES.values(), ids=CASES)
def test_tokens_are_drawn_as_often_as_their_probability_says(params):
    expected = distribution(LOGITS.tolist(), **params)
    tokens = draws(LOGITS, 6000, seed=11, **params)
    counts = [tokens.count(i) for i in range(len(LOGITS))]
    assert [i for i, count in enumerate(counts) if count and not expected[i]] == []
    statistic, freedom = chi_square(counts, expected)
    # 99.99 % quantiles of the chi-square distribution for 1 to 5 degrees of freedom.
    assert statistic < [15.14, 18.42, 21.11, 23.51, 25.74][freedom - 1]


VALUES = st.lists(st.integers(-40, 40).map(lambda i: i / 7), min_size=1, max_size=12, unique=True)


@given(
    logits=VALUES,
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.integers(-1, 14),
    top_p=st.sampled_from([0.11, 0.5, 0.77, 0.93, 1.0]),
    min_p=st.sampled_from([0.0, 0.03, 0.37, 1.0]),
)
def test_exactly_the_tokens_of_the_sorting_reference_may_be_drawn(logits, temperature, top_k, top_p, min_p):
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    kept = kept_logits(torch.tensor(logits), params)
    expected = distribution(logits, temperature, top_k, top_p, min_p)
    torch.testing.assert_close(kept.softmax(dim=-1).tolist(), expected, rtol=1e-4, atol=1e-5)


def test_min_p_acts_before_top_p_as_in_vllm():
    # Of 0.5, 0.3, 0.1, 0.1 min_p leaves 0.625 and 0.375, of which top_p 0.6 keeps the first alone; the other way round
    # top_p would keep two tokens.
    logits = torch.tensor([0.5, 0.3, 0.1, 0.1]).log()
    kept = kept_logits(logits, SamplingParams(min_p=0.3, top_p=0.6))
    assert kept.isfinite().tolist() == [True, False, False, False]


def test_neutral_settings_leave_the_plain_softmax():
    for top_k in (0, -1, len(LOGITS), 10**9):
        kept = kept_logits(LOGITS, SamplingParams(top_k=top_k, top_p=1.0, min_p=0.0))
        torch.testing.assert_close(kept.softmax(-1), LOGITS.softmax(-1))


def test_equals_of_the_kth_token_stay():
    kept = kept_logits(torch.tensor([1.0, 0.0, 0.0, -1.0]), SamplingParams(top_k=2))
    assert kept.isfinite().tolist() == [True, True, True, False]


NARROW = [{"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}, {"temperature": 1e-38}, {"temperature": 1e-320}]


@pytest.mark.parametrize("params", NARROW, ids=str)
def test_the_narrowest_settings_leave_the_most_probable_token(params):
    assert set(draws(LOGITS.flip(0) * 1e10, 30, **params)) == {5}


@pytest.mark.parametrize("temperature", [0, 0.0, -1.0])
def test_a_temperature_of_zero_or_less_is_greedy(temperature):
    assert draws(LOGITS.flip(0), 3, temperature=temperature, top_k=2, top_p=0.1) == [5, 5, 5]


def test_greedy_takes_the_first_of_equals():
    assert draws(torch.tensor([0.0, 7.0, 7.0]), 1, temperature=0) == [1]


def test_the_same_seed_draws_the_same_tokens_whatever_else_draws():
    expected = draws(LOGITS, 50, seed=5)
    sampler, tokens = Sampler(SamplingParams(seed=5)), []
    for _ in range(50):
        torch.rand(3)
        draws(LOGITS, 1, seed=5)
        tokens.append(sampler.sample(LOGITS))
    assert tokens == expected


def test_the_global_random_state_is_left_alone():
    state = torch.get_rng_state()
    draws(LOGITS, 5)
    assert torch.equal(torch.get_rng_state(), state)


def test_every_bit_of_a_seed_counts_and_no_seed_draws_a_new_one():
    seeds = [0, *(2**bit for bit in range(64)), 2**64 - 1, None, None]
    assert len({tuple(draws(torch.zeros(1000), 8, seed=seed)) for seed in seeds}) == len(seeds)


@pytest.mark.parametrize("size", [1, 2, 49152, 300_000])
def test_any_vocabulary_size_is_sampled_within_its_range(size):
    tokens = draws(torch.zeros(size), 4, seed=1, top_p=0.9, top_k=50, min_p=0.01)
    assert all(0 <= token < size for token in tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_computation_is_float32_for_any_dtype_of_the_logits(dtype):
    logits = torch.randn(500, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert draws(logits, 20, seed=3, top_p=0.9) == draws(logits.float(), 20, seed=3, top_p=0.9)


def test_the_logits_are_not_changed():
    logits = LOGITS.clone()
    draws(logits, 2, top_k=2, top_p=0.5, min_p=0.1, temperature=0.5)
    assert torch.equal(logits, LOGITS)


def test_a_masked_token_is_never_drawn():
    masked = LOGITS.clone()
    masked[0] = -math.inf
    assert 0 not in draws(masked, 200, seed=2, temperature=5.0)


BAD = {
    "NaN": ([0.0, math.nan], "logits hold NaN"),
    "infinite": ([0.0, math.inf], "highest logit is inf"),
    "all masked": ([-math.inf, -math.inf], "highest logit is -inf"),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "random"])
@pytest.mark.parametrize(("logits", "text"), BAD.values(), ids=BAD)
def test_logits_that_are_no_numbers_fail_the_generation(logits, text, temperature):
    with pytest.raises(GenerationError, match=text):
        draws(torch.tensor(logits), 1, temperature=temperature)


@pytest.mark.parametrize("shape", [(0,), (1, 4), ()])
def test_anything_but_the_logits_of_one_position_is_refused(shape):
    with pytest.raises(GenerationError, match="logits of one position, got shape"):
        draws(torch.zeros(shape), 1)
