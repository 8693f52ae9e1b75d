"""Every recorded case of the real vLLM offloaders, as its `expected` says."""

import json
from pathlib import Path

import pytest

from pyvllm.errors import InvalidArgument
from pyvllm.offloader.base import Place
from pyvllm.offloader.guard import check_plan
from tests.unit.offloader.plans import layer_specs, plan_of, prefetch, uva

CASES = [
    json.loads(line) for line in (Path(__file__).parents[2] / "data/offloader_cases.jsonl").read_text().splitlines()
]
BLOCK = {"self_attn.qkv_proj.weight": 384, "mlp.down_proj.weight": 256}


def of_kind(kind: str) -> list:
    cases = [case for case in CASES if case["kind"] == kind]
    return [pytest.param(case, id=f"{kind}-{number}") for number, case in enumerate(cases)]


def test_every_recorded_kind_has_a_test_here():
    kinds = {"prefetch_select", "prefetch_params", "prefetch_run", "uva_budget", "uva_params"}
    assert {case["kind"] for case in CASES} == kinds
    assert len(CASES) == 50


def offloaded_layers(plan) -> list[int]:
    return sorted({spec.layer for spec in plan.at(Place.STREAMED)})


@pytest.mark.parametrize("case", of_kind("prefetch_select"))
def test_prefetch_selects_the_recorded_layers(case):
    specs = layer_specs(BLOCK, case["n_layers"])
    plan = plan_of(specs, prefetch(case["group_size"], case["num_in_group"]))
    assert offloaded_layers(plan) == case["offloaded"]
    if case["expected"] != "same":
        with pytest.raises(InvalidArgument, match="would free nothing"):
            check_plan(plan)


@pytest.mark.parametrize("case", of_kind("prefetch_params"))
def test_prefetch_selectors_take_the_recorded_weights(case):
    document = prefetch(case["group_size"], case["num_in_group"], case["prefetch_step"], case["params"])
    plan = plan_of(layer_specs(case["sizes"], case["n_layers"]), document)
    if case["expected"].startswith("differs"):
        assert offloaded_layers(plan) == [1, 3]
        return
    assert offloaded_layers(plan) == case["offloaded"]
    assert sorted({spec.name_in_layer for spec in plan.at(Place.STREAMED)}) == case["names"]
    if case["expected"].startswith("refused"):
        with pytest.raises(InvalidArgument, match="would free nothing"):
            check_plan(plan)


@pytest.mark.parametrize("case", of_kind("prefetch_run"))
def test_prefetch_runs_the_recorded_sequence(case):
    document = prefetch(case["group_size"], case["num_in_group"], case["prefetch_step"])
    plan = plan_of(layer_specs(case["sizes"], case["n_layers"]), document)
    assert (offloaded_layers(plan), plan.buffer_bytes) == (case["offloaded"], case["pool_bytes"])
    assert plan.bytes_at(Place.STREAMED) == case["saved"]
    if case["expected"] != "same":
        with pytest.raises(InvalidArgument, match=rf"needs {case['pool_bytes']} bytes .* for {case['saved']} bytes"):
            check_plan(plan)
        return
    check_plan(plan)
    schedule = plan.schedule
    assert list(schedule.initial()) == case["initial"]
    assert [schedule.following(j) for j in range(len(schedule.layers))] * 2 == case["prefetch_seq"]


@pytest.mark.parametrize("case", of_kind("uva_budget"))
def test_uva_budget_moves_the_recorded_weights(case):
    plan = plan_of(layer_specs(case["sizes"], case["n_layers"]), uva(case["budget"]))
    moved = [f"{spec.layer}:{spec.name_in_layer}" for spec in plan.at(Place.HOST)]
    assert (moved, plan.bytes_at(Place.HOST)) == (case["offloaded"], case["offloaded_bytes"])


@pytest.mark.parametrize("case", of_kind("uva_params"))
def test_uva_selectors_take_the_recorded_weights(case):
    plan = plan_of(layer_specs(case["sizes"], case["n_layers"]), uva(case["budget"], case["params"]))
    layer0 = [spec.name_in_layer for spec in plan.at(Place.HOST) if spec.layer == 0]
    if case["expected"].startswith("differs"):
        assert layer0 == list(case["sizes"])
        return
    assert (layer0, plan.bytes_at(Place.HOST)) == (case["layer0"], case["offloaded_bytes"])
    if case["expected"].startswith("refused"):
        with pytest.raises(InvalidArgument, match="would free nothing"):
            check_plan(plan)
