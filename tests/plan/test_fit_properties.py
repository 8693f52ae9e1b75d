"""What a fit promises, over random models and devices: it fits, is not larger than needed, and more room never costs.

The oracle places weights and adds up by itself; of the code under test it takes only the choice.
"""

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pyvllm.config.model import WeightSpec, single
from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import DoesNotFit, InvalidArgument
from pyvllm.memory.pinning import DeviceAttributes, Environment, HostAccess
from pyvllm.offloader.base import Place
from pyvllm.offloader.fit import choose_fit, plan_fit
from pyvllm.offloader.guard import check_plan
from pyvllm.offloader.plan import Capacity, Demand, make_plan

AUTO = OffloadConfig.from_dict({"vllm_cpp": {"device_fit": {"auto": True}}})
# A busy machine makes slow data, and a mixture may not fit at all: neither is a fault of a test.
TEST = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
CARD = HostAccess(DeviceAttributes(False, True, True, False, False), Environment())


def dense(layers: list[list[int]], embedding: int) -> list[WeightSpec]:
    """Layers of weights of given elements (2 bytes each) and an untied embedding of two rows."""
    specs = [
        single(f"model.layers.{layer}.mlp.w{index}", layer, "bfloat16", (size,), kind="dense")
        for layer, sizes in enumerate(layers)
        for index, size in enumerate(sizes)
    ]
    return [*specs, single("model.embed_tokens.weight", None, "bfloat16", (2, embedding), kind="embedding")]


def mixture(layers: list[list[int]], embedding: int) -> list[WeightSpec]:
    """The same, where the last weight of a layer is a stack of four experts of which a token uses one."""
    last = {f"model.layers.{layer}.mlp.w{len(sizes) - 1}" for layer, sizes in enumerate(layers)}
    return [
        replace(spec, name=f"model.layers.{spec.layer}.mlp.experts.w2_weight", shape=(4, *spec.shape), kind="experts",
                num_experts=4, experts_per_token=1) if spec.name in last else spec
        for spec in dense(layers, embedding)
    ]  # fmt: skip


layers_of_sizes = st.lists(st.lists(st.integers(1, 10**6), min_size=1, max_size=4), min_size=1, max_size=12)
models = st.builds(lambda make, layers, size: make(layers, size), st.sampled_from([dense, mixture]), layers_of_sizes,
                   st.integers(1, 10**7))  # fmt: skip
demands = st.builds(Demand, st.integers(0, 10**6), st.just(1), st.integers(0, 10**6), st.just(0))
# uva in place, uva through staging buffers, no uva
percents = st.integers(0, 110)
ways = st.sampled_from([{}, {"host_access": CARD}, {"uva_refusal": "the device cannot map host memory"}])


def device(nbytes: int, fraction: float = 0.92, **way) -> Capacity:
    return Capacity(nbytes, 2**60, "a device", "a test", "a test", False, fraction, **way)


def total(specs: list[WeightSpec]) -> int:
    return sum(spec.nbytes for spec in specs)


def sized(specs, demand, percent: int, **way) -> Capacity:
    """A device whose usable bytes hold cache, workspace and a percentage of the weights."""
    usable = total(specs) * percent // 100 + demand.workspace_bytes + demand.kv_cache_bytes
    return device(-(-usable * 100 // 92), **way)


def fitted(specs, demand, capacity):
    """The plan of a fit, or None where nothing fits."""
    try:
        return plan_fit("T", True, specs, AUTO, demand, capacity)
    except DoesNotFit:
        return None


@given(models, demands, ways, percents)
@TEST
def test_R111_weights_buffers_workspace_cache_and_margin_never_exceed_the_capacity(specs, demand, way, percent):
    capacity = sized(specs, demand, percent, **way)
    nbytes, plan = capacity.device_bytes, fitted(specs, demand, capacity)
    assume(plan is not None)
    check_plan(plan)
    away = sum(item.spec.nbytes for item in plan.placements if item.place is not Place.DEVICE)
    held = total(specs) - away + sum(buffer.nbytes for buffer in plan.buffers)
    assert held + demand.workspace_bytes + demand.kv_cache_bytes + 0.08 * nbytes <= nbytes + 1


@given(models, demands, percents)
@TEST
def test_a_budget_is_never_larger_than_needed_by_more_than_one_weight(specs, demand, percent):
    capacity = sized(specs, demand, percent)
    nbytes, plan = capacity.device_bytes, fitted(specs, demand, capacity)
    assume(plan is not None and plan.offload.resolved_backend == "uva")
    moved = [item.spec.nbytes for item in plan.placements if item.place is Place.HOST]
    room = int(nbytes * 0.92) - demand.workspace_bytes - demand.kv_cache_bytes
    needed = total(specs) - room
    assert sum(moved[:-1]) < needed <= sum(moved)
    assert sum(moved[:-1]) < plan.offload.uva_max_bytes <= sum(moved)


@given(models, demands, ways, st.lists(percents, min_size=2, max_size=6))
@TEST
def test_more_capacity_never_moves_more_bytes_a_token(specs, demand, way, sizes):
    costs = []
    for percent in sorted(sizes):
        plan = fitted(specs, demand, sized(specs, demand, percent, **way))
        crossing = float("inf")
        if plan is not None:
            crossing = plan.to_document()["bus_bytes_per_token"]["expected"]
        costs.append(crossing)
    assert costs == sorted(costs, reverse=True)


@given(models, demands, ways, percents)
@TEST
def test_the_printed_configuration_parses_back_to_the_same_plan(specs, demand, way, percent):
    capacity = sized(specs, demand, percent, **way)
    plan = fitted(specs, demand, capacity)
    assume(plan is not None)
    text = plan.to_document()["fit"]["offload_config"]
    again = make_plan("T", specs, OffloadConfig.from_json(text), demand, capacity)
    assert again.placements == plan.placements and again.buffers == plan.buffers
    assert again.offload == plan.offload


@given(models, demands, percents)
@TEST
def test_a_model_that_fits_is_left_alone_and_one_that_does_not_is_not(specs, demand, percent):
    capacity = sized(specs, demand, percent)
    room = int(capacity.device_bytes * 0.92) - demand.workspace_bytes - demand.kv_cache_bytes
    plan = fitted(specs, demand, capacity)
    if total(specs) <= room:
        assert not plan.offload.is_offloading_enabled
    else:
        assert plan is None or plan.offload.is_offloading_enabled


@given(layers_of_sizes, st.integers(1, 10**7), st.integers(0, 99))
@TEST
def test_a_mixture_of_experts_moves_experts_in_walk_order_and_nothing_else(layers, embedding, percent):
    specs = mixture(layers, embedding)
    experts = sum(spec.nbytes for spec in specs if spec.num_experts)
    capacity = device(total(specs) - experts + experts * percent // 100, fraction=1.0)
    plan = plan_fit("T", True, specs, AUTO, Demand(0, 1, 0, 0), capacity)
    assert plan.offload.uva.cpu_offload_params == ("experts",)
    places = [item.place for item in plan.placements if item.spec.num_experts]
    count = places.count(Place.HOST)
    assert places[:count] == [Place.HOST] * count
    assert all(item.spec.num_experts for item in plan.placements if item.place is not Place.DEVICE)


@given(layers_of_sizes, st.integers(1, 10**7), demands, percents)
@TEST
def test_no_group_pattern_moves_fewer_bytes_than_the_choice_for_a_dense_model(layers, embedding, demand, percent):
    specs = dense(layers, embedding)
    capacity = sized(specs, demand, percent)
    plan = fitted(specs, demand, capacity)
    assume(plan is None or plan.offload.is_offloading_enabled)
    best = plan.to_document()["bus_bytes_per_token"]["expected"] if plan else float("inf")
    for group in range(1, len(layers) + 1):
        for num in range(1, group + 1):
            prefetch = {"offload_group_size": group, "offload_num_in_group": num, "offload_prefetch_step": 1}
            other = make_plan("T", specs, OffloadConfig.from_dict({"prefetch": prefetch}), demand, capacity)
            try:
                check_plan(other)
            except (DoesNotFit, InvalidArgument):
                continue
            assert best <= other.bytes_at(Place.STREAMED)


def test_where_uva_cannot_be_used_a_dense_model_gets_the_most_even_pattern():
    specs = dense([[500]] * 12, 1)
    capacity = device(total(specs) - 2000, 1.0, uva_refusal="pinning is disabled")
    fit = choose_fit("T", True, specs, AUTO, Demand(0, 1, 0, 0), capacity)
    # Three layers of 1000 bytes leave, one comes back as a buffer: every fourth of the twelve.
    assert json.loads(fit.offload.to_short_json()) == {"prefetch": {"offload_group_size": 4}}


@pytest.mark.parametrize(
    ("nbytes", "refusal", "text"),
    [(29, "", "too little before any weight"), (60, "off", "uva cannot be used (off) and no group pattern")],
)
def test_a_fit_that_is_impossible_is_refused_with_the_numbers(nbytes, refusal, text):
    specs = [single("model.norm.weight", None, "bfloat16", (50,))]
    with pytest.raises(DoesNotFit) as refused:
        choose_fit("T", True, specs, AUTO, Demand(10, 1, 20, 0), device(nbytes, 1.0, uva_refusal=refusal))
    message = str(refused.value)
    assert "needs 130 bytes (weights 100, workspace 20, key-value cache 10)" in message
    assert f"a device has {nbytes} by a test" in message and text in message


def test_selectors_that_can_never_free_enough_are_told_so_and_no_budget_is_named():
    specs = mixture([[50, 100]] * 2, 40)
    with pytest.raises(DoesNotFit) as refused:
        choose_fit("T", True, specs, AUTO, Demand(0, 1, 0, 0), device(200, fraction=1.0))
    # Experts 2 * 800, the rest 2 * 100 and the embedding 160.
    assert "all 1600 bytes of them on the host 360 bytes of weights remain where 200 have room" in str(refused.value)
    assert "can never free enough" in str(refused.value)
    assert "cpu_offload_gb" not in str(refused.value)


def test_one_memory_pool_cannot_be_fitted_by_moving_weights():
    specs = dense([[500]], 1)
    pool = replace(device(500, fraction=1.0), is_one_pool=True)
    with pytest.raises(DoesNotFit, match="one memory pool, so moving weights frees nothing"):
        choose_fit("T", True, specs, AUTO, Demand(0, 1, 0, 0), pool)


def test_an_architecture_without_support_gets_the_guards_refusal_only_when_it_must_offload():
    specs = dense([[500]] * 4, 1)
    assert choose_fit("X", False, specs, AUTO, Demand(0, 1, 0, 0), device(10**6)).offload == OffloadConfig()
    with pytest.raises(InvalidArgument, match=r'architecture "X" does not support it: .*ENG-WEIGHT-OFFLOAD W2c'):
        choose_fit("X", False, specs, AUTO, Demand(0, 1, 0, 0), device(1000))
