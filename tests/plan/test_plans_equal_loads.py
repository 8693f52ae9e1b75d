"""A plan says before the load, to the byte, what a recount finds after it; a fit loads what its preview showed."""

import json

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import plan_document
from pyvllm.errors import DoesNotFit, InvalidArgument
from tests.offload.engines import GREEDY, PROMPTS, loaded
from tests.tiny_models import ARCHITECTURES, write_tiny

PLACES = ("device_bytes", "host_bytes", "streamed_bytes", "buffer_bytes")
GIB = 2**30


TIED = [("LlamaForCausalLM", True), ("Qwen3MoeForCausalLM", True)]


@pytest.fixture(scope="module", params=[*((name, False) for name in ARCHITECTURES), *TIED], ids=str)
def model(request, tmp_path_factory):
    name, tied = request.param
    return write_tiny(name, tmp_path_factory.mktemp("model") / name, tied=tied)


def preview(model, document):
    offload = OffloadConfig.from_dict(document)
    return plan_document(EngineConfig(model=str(model), device="cpu", dtype="float32", threads=1, offload=offload))


def budgets(weight_bytes):
    """One byte, odd parts of the model, all of it, and one byte around a weight's end."""
    return [1, *(weight_bytes * part // 97 for part in (9, 31, 58, 83)), weight_bytes]


def same_as_measured(model, document):
    plan = preview(model, document)
    with loaded(model, document) as engine:
        report = engine.offload_report()
    assert [report["measured"][place] for place in PLACES] == [plan["planned"][place] for place in PLACES]
    assert {**report, "measured": None} == {
        **plan, "weights": {**plan["weights"], "considered": plan["weights"]["count"]}, "capacity": report["capacity"],
    }  # fmt: skip
    return report


@pytest.mark.parametrize("params", [[], ["o_proj", "down_proj", "w2_weight"], ["embed_tokens", "qkv_proj"]], ids=str)
def test_uva_plans_equal_loads_over_a_sweep_of_budgets(model, params):
    moved = []
    for budget in budgets(preview(model, {})["weights"]["bytes"]):
        document = {"uva": {"cpu_offload_gb": budget / GIB, "cpu_offload_params": params}}
        moved.append(same_as_measured(model, document)["measured"]["host_bytes"])
    assert moved == sorted(moved) and moved[0] > 0


@pytest.mark.parametrize("pattern", [(1, 1, 1), (2, 1, 1), (4, 3, 2), (4, 2, 1)], ids=str)
def test_prefetch_plans_equal_loads_over_patterns(model, pattern):
    names = ("offload_group_size", "offload_num_in_group", "offload_prefetch_step")
    report = same_as_measured(model, {"prefetch": dict(zip(names, pattern, strict=True))})
    assert report["measured"]["streamed_bytes"] > report["measured"]["buffer_bytes"] > 0


@pytest.mark.parametrize("percent", [100, 80, 55])
def test_a_fit_loads_what_its_preview_showed_and_answers_as_without(model, percent):
    whole = preview(model, {})
    experts = sum(kind["device_bytes"] for kind in whole["by_kind"] if kind["kind"] == "experts")
    least = whole["weights"]["bytes"] - (experts or whole["weights"]["bytes"])
    room = least + (whole["weights"]["bytes"] - least) * percent // 100
    document = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": room, "auto": True}}}
    with loaded(model) as engine:
        expected = engine.generate(PROMPTS[0], GREEDY).token_ids
    report = same_as_measured(model, document)
    assert report["measured"]["device_bytes"] + report["measured"]["buffer_bytes"] <= room
    assert report["enabled"] is (percent < 100)
    with loaded(model, json.loads(report["fit"]["offload_config"])) as engine:
        again = engine.offload_report()
        assert engine.generate(PROMPTS[0], GREEDY).token_ids == expected
    assert again["placements"] == report["placements"]


def test_a_load_never_goes_on_after_a_fit_that_failed(tmp_path):
    model = write_tiny("Qwen3MoeForCausalLM", tmp_path / "m")
    document = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": 1000, "auto": True}}}
    with pytest.raises(DoesNotFit, match="can never free enough"), loaded(model, document):
        pytest.fail("it was loaded")


def test_a_fit_is_refused_beside_a_backends_value_before_the_model_is_opened(tmp_path):
    document = {"uva": {"cpu_offload_gb": 1}, "vllm_cpp": {"device_fit": {"auto": True}}}
    with pytest.raises(InvalidArgument, match=r"cannot stand beside uva\.cpu_offload_gb"):
        preview(tmp_path / "nothing here", document)
