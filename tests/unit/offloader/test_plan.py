"""What a plan says: order, ties, selectors, sums, and the document."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyvllm.config.model import single
from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import DoesNotFit, InvalidArgument
from pyvllm.offloader.base import Place
from pyvllm.offloader.budget import shortest_gb, smallest_cpu_offload_gb
from pyvllm.offloader.guard import check_architecture, check_plan
from pyvllm.offloader.plan import Capacity, Demand, make_plan
from tests.unit.offloader.plans import ROOMY, layer_specs, plan_of, prefetch, uva

BLOCK = {"self_attn.qkv_proj.weight": 384, "mlp.gate_up_proj.weight": 512, "mlp.down_proj.weight": 256}
GIB = 1024**3


def outside(tied: bool = False):
    aliases = ("lm_head.weight",) if tied else ()
    return [single("model.embed_tokens.weight", None, "bfloat16", (64, 16), aliases=aliases, kind="embedding")]


def test_what_is_outside_the_layers_is_considered_last_even_if_registered_first():
    plan = plan_of([*outside(), *layer_specs(BLOCK, 2)], uva(2 * sum(BLOCK.values()) + 1))
    assert plan.placements[-1].spec.name == "model.embed_tokens.weight"
    assert plan.placements[-1].place is Place.HOST


def test_an_alias_selects_a_tied_weight_and_the_plan_lists_it():
    plan = plan_of([*layer_specs(BLOCK, 2), *outside(tied=True)], uva(10**6, ["lm_head"]))
    assert [spec.name for spec in plan.at(Place.HOST)] == ["model.embed_tokens.weight"]
    assert plan.to_document()["placements"][-1]["aliases"] == ["lm_head.weight"]


@pytest.mark.parametrize(
    ("entry", "is_match"),
    [("experts", True), ("experts.w2_weight", True), ("expert", False), ("w2", False), ("w2_weight", True)],
)
def test_a_selector_matches_whole_dotted_segments(entry, is_match):
    specs = [single("model.layers.0.mlp.experts.w2_weight", 0, "bfloat16", (8,))]
    assert bool(plan_of(specs, uva(10**6, [entry])).at(Place.HOST)) is is_match


def test_w2_weight_never_selects_w2_weight_scale():
    specs = [single("model.layers.0.mlp.experts.w2_weight_scale", 0, "bfloat16", (8,))]
    assert not plan_of(specs, uva(10**6, ["w2_weight"])).at(Place.HOST)


def test_R107_a_selector_without_a_match_is_warned_about_with_the_nearest_segment():
    plan = plan_of(layer_specs(BLOCK, 2), uva(10**6, ["q_proj", "mlp"]))
    check_plan(plan)
    assert plan.unmatched == ("q_proj",)
    assert any("'q_proj' matches no weight" in text and "'qkv_proj'" in text for text in plan.warnings)


def test_R6_selectors_that_all_match_nothing_are_refused_by_name():
    with pytest.raises(InvalidArgument, match=r"free nothing: no weight of TestForCausalLM matches 'nope'"):
        check_plan(plan_of(layer_specs(BLOCK, 2), uva(10**6, ["nope"])))


def test_a_budget_that_truncates_to_zero_bytes_is_refused():
    document = {"uva": {"cpu_offload_gb": 4.6e-10}}
    with pytest.raises(InvalidArgument, match=r"cpu_offload_gb 4\.6e-10 is 0 bytes"):
        check_plan(plan_of(layer_specs(BLOCK, 2), document))


def test_R91_a_budget_beyond_the_model_moves_all_and_says_so():
    plan = plan_of(layer_specs(BLOCK, 2), uva(10**6))
    check_plan(plan)
    assert plan.bytes_at(Place.DEVICE) == 0
    assert any("all weights it may take are 2304 bytes" in text for text in plan.warnings)


def test_R4_selectors_without_a_budget_say_why_offload_is_off():
    plan = plan_of(layer_specs(BLOCK, 2), {"uva": {"cpu_offload_params": ["mlp"]}})
    check_plan(plan)
    assert [text for text in plan.warnings if "offload is off: cpu_offload_gb is 0" in text]
    assert not plan.at(Place.HOST)


def test_a_streamed_tie_between_layers_is_refused_by_name():
    specs = layer_specs(BLOCK, 4)
    name = "model.layers.1.mlp.down_proj.weight"
    specs = [replace(s, aliases=("model.layers.3.mlp.down_proj.weight",)) if s.name == name else s for s in specs]
    with pytest.raises(InvalidArgument, match=r"layers\.1\.mlp\.down_proj\.weight' is tied to 'model\.layers\.3"):
        check_plan(plan_of(specs, prefetch(2)))


def test_a_tie_inside_one_streamed_layer_is_fine():
    specs = layer_specs(BLOCK, 4)
    specs = [replace(s, aliases=("model.layers.1.twin",)) if s.name.startswith("model.layers.1.") else s for s in specs]
    plan = plan_of(specs, prefetch(2))
    check_plan(plan)
    assert {spec.layer for spec in plan.at(Place.STREAMED)} == {1, 3}


def test_layers_of_unlike_shapes_get_buffers_for_each_shape():
    wide = [single("model.layers.4.mlp.down_proj.weight", 4, "bfloat16", (512,))]
    plan = plan_of([*layer_specs(BLOCK, 4), *wide], prefetch(1, params=["down_proj"]))
    assert plan.buffer_bytes == 256 + 1024
    assert len({buffer.name for buffer in plan.buffers}) == 2


def test_R35_a_step_below_the_streamed_layers_of_a_group_is_hinted_at():
    plan = plan_of(layer_specs(BLOCK, 8), prefetch(4, 2, 1))
    assert any("stall inside each group" in text for text in plan.warnings)


def test_streamed_experts_warn_with_the_ratio_of_copied_to_needed():
    shape = {"num_experts": 8, "experts_per_token": 2, "kind": "experts"}
    specs = [single(f"model.layers.{i}.mlp.experts.w2_weight", i, "bfloat16", (8, 4, 4), **shape) for i in range(4)]
    plan = plan_of(specs, prefetch(2))
    assert any("(4.0 times as many)" in text for text in plan.warnings)
    assert plan_of(specs, uva(10**6)).to_document()["bus_bytes_per_token"] == {"worst": 1024, "expected": 256}


def test_one_pool_is_accepted_with_one_warning():
    plan = plan_of(layer_specs(BLOCK, 2), uva(1), replace(ROOMY, is_one_pool=True))
    check_plan(plan)
    assert len([text for text in plan.warnings if "one memory pool" in text]) == 1


def test_guard_text_is_the_contract_word_for_word():
    offload = plan_of(layer_specs(BLOCK, 2), uva(1)).offload
    with pytest.raises(InvalidArgument) as caught:
        check_architecture("X", False, offload)
    assert str(caught.value) == (
        'weight offload is configured but architecture "X" does not support it: its loader does not consult the weight '
        "offloader, so every weight would stay on the device and the budget would free nothing (ENG-WEIGHT-OFFLOAD "
        "W2c). "
        "Remove --offload-config, or wire this model's loader."
    )


def budget_of(nbytes: int) -> Capacity:
    return replace(ROOMY, device_bytes=nbytes, source="weight_budget_bytes")


def test_too_small_a_device_names_the_numbers_and_the_smallest_budget():
    specs = layer_specs(BLOCK, 2)
    with pytest.raises(DoesNotFit) as caught:
        check_plan(plan_of(specs, {}, budget_of(2000)))
    assert "needs 2304 bytes (weights 2304)" in str(caught.value)
    assert "has 2000 by weight_budget_bytes" in str(caught.value)
    gb = float(str(caught.value).rpartition("fits is ")[2])
    plan = plan_of(specs, {"uva": {"cpu_offload_gb": gb}}, budget_of(2000))
    check_plan(plan)
    assert plan.bytes_at(Place.HOST) == 384


def refusal_of(capacity: Capacity, num_tokens: int) -> str | None:
    """Why a model of 2304 bytes does not fit beside 200 bytes of workspace and 10 for each token; None if it does."""
    demand = Demand(10 * num_tokens, 10, 200, 0)
    plan = make_plan("TestForCausalLM", layer_specs(BLOCK, 2), OffloadConfig(), demand, capacity)
    try:
        check_plan(plan)
    except DoesNotFit as error:
        return str(error)
    return None


def test_the_largest_max_model_len_that_is_named_fits_and_one_token_more_does_not():
    device = replace(ROOMY, device_bytes=3000, source="cudaMemGetInfo")
    text = refusal_of(device, 100)
    assert "needs 3504 bytes (weights 2304, workspace 200, key-value cache 1000)" in text
    assert "the smallest cpu_offload_gb that fits is " in text
    assert text.endswith("the largest max_model_len that fits is 49")
    assert refusal_of(device, 49) is None
    assert refusal_of(device, 50) is not None
    assert refusal_of(replace(device, device_bytes=2504), 1).endswith("no max_model_len would make it fit")


def test_no_budget_is_promised_to_help_where_there_is_one_memory_pool():
    text = refusal_of(replace(ROOMY, device_bytes=3000, source="MemAvailable", is_one_pool=True), 100)
    assert "no cpu_offload_gb would make it fit, because there is one memory pool; the largest max_model_len" in text


def test_selectors_that_can_never_free_enough_are_told_so():
    document = uva(1, ["down_proj"])
    with pytest.raises(DoesNotFit, match=r"no cpu_offload_gb with cpu_offload_params .* would make it fit"):
        check_plan(plan_of(layer_specs(BLOCK, 2), document, budget_of(100)))


def test_host_without_room_names_the_limit_that_spoke():
    small = replace(ROOMY, host_bytes=500, host_source="RLIMIT_AS")
    with pytest.raises(DoesNotFit, match=r"needs 896 bytes \(.* in flight is 512\) and RLIMIT_AS leaves 500"):
        check_plan(plan_of(layer_specs(BLOCK, 2), uva(384), small))


@given(st.lists(st.integers(1, 2**40), min_size=1, max_size=12), st.data())
def test_the_smallest_budget_fits_and_one_weight_less_does_not(sizes, data):
    specs = [single(f"model.layers.{i}.w", i, "bfloat16", (size,)) for i, size in enumerate(sizes)]
    total = 2 * sum(sizes)
    device = data.draw(st.integers(0, total - 1))
    text = smallest_cpu_offload_gb(specs, (), device)
    plan = plan_of(specs, {"uva": {"cpu_offload_gb": float(text)}})
    moved = plan.at(Place.HOST)
    assert total - sum(spec.nbytes for spec in moved) <= device
    assert total - sum(spec.nbytes for spec in moved[:-1]) > device


@given(st.integers(0, 2**45), st.integers(1, 2**40))
def test_a_suggested_budget_lies_in_its_interval_and_no_shorter_decimal_does(low, width):
    text = shortest_gb(low, low + width)
    assert low < int(float(text) * GIB) <= low + width
    digits = len(text.partition(".")[2])
    if digits > 1:
        step = 10 ** (digits - 1)
        first = -(-(low + 1) * step // GIB)
        assert not low < int(first / step * GIB) <= low + width


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20), st.integers(1, 30_000))
def test_R94_planned_bytes_lie_between_the_budget_and_one_weight_more(sizes, budget):
    specs = [single(f"model.layers.{i}.w", i, "bfloat16", (size,)) for i, size in enumerate(sizes)]
    plan = plan_of(specs, uva(budget))
    moved, asked = plan.bytes_at(Place.HOST), plan.asked_host_bytes
    assert asked == budget
    if plan.at(Place.DEVICE):
        assert asked <= moved < asked + plan.at(Place.HOST)[-1].nbytes
