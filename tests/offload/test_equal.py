"""Offload changes where a weight lives, never what the model says."""

from itertools import accumulate

import pytest
import torch

from pyvllm.config.engine import EngineConfig
from pyvllm.engine.preview import plan_document
from tests.offload.engines import logits_of, run
from tests.tiny_models import ARCHITECTURES, write_tiny

GIB = 1024**3


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Tiny models of every architecture, tied and untied, written once."""
    root = tmp_path_factory.mktemp("tiny")
    made = {}

    def get(architecture: str, tied: bool = False, **overrides):
        key = (architecture, tied, tuple(sorted(overrides.items())))
        if key not in made:
            made[key] = write_tiny(architecture, root / str(len(made)), tied=tied, **overrides)
        return made[key]

    return get


def uva(budget: int, params=()) -> dict:
    return {"uva": {"cpu_offload_gb": budget / GIB, "cpu_offload_params": list(params)}}


def prefetch(group: int, num: int, step: int, params=()) -> dict:
    fields = {"offload_group_size": group, "offload_num_in_group": num, "offload_prefetch_step": step}
    return {"prefetch": {**fields, "offload_params": list(params)}}


def sizes(model) -> list[int]:
    return [item["bytes"] for item in plan_document(EngineConfig(model=str(model), device="cpu"))["placements"]]


@pytest.mark.parametrize(("architecture", "tied"), [("LlamaForCausalLM", True), ("Qwen3MoeForCausalLM", False)])
def test_uva_budgets_from_none_to_all_in_steps_of_one_parameter_give_equal_tokens(models, architecture, tied):
    model = models(architecture, tied, num_hidden_layers=2)
    expected, report = run(model)
    total = report["planned"]["device_bytes"]
    for moved in accumulate(sizes(model)):
        tokens, report = run(model, uva(moved))
        assert tokens == expected, f"budget {moved}"
        assert report["measured"]["host_bytes"] == report["planned"]["host_bytes"] == moved
        assert report["measured"]["device_bytes"] == total - moved


@pytest.mark.parametrize(("layers", "step"), [(m, step) for m in range(2, 7) for step in range(1, min(m, 6))])
def test_R33_R34_prefetch_gives_equal_tokens_for_every_count_and_step(models, layers, step):
    model = models("LlamaForCausalLM", num_hidden_layers=layers)
    expected, resident = run(model)
    tokens, report = run(model, prefetch(1, 1, step))
    assert tokens == expected
    measured = report["measured"]
    assert measured["streamed_bytes"] + measured["device_bytes"] == resident["measured"]["device_bytes"]
    assert measured["buffer_bytes"] * layers == measured["streamed_bytes"] * step


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("document", [uva(10**5), prefetch(2, 1, 1), prefetch(4, 3, 2, ["weight"])])
def test_R9_every_architecture_moves_bytes_and_keeps_its_tokens(models, architecture, document):
    model = models(architecture)
    tokens, report = run(model, document)
    assert tokens == run(model)[0]
    assert report["measured"]["host_bytes"] + report["measured"]["streamed_bytes"] > 0
    assert report["weights"]["considered"] == report["weights"]["count"]


@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "MixtralForCausalLM"])
@pytest.mark.parametrize("document", [uva(GIB, ["experts"]), prefetch(2, 1, 1, ["experts"])])
def test_targeted_experts_leave_alone_and_keep_the_tokens(models, architecture, document):
    model = models(architecture)
    tokens, report = run(model, document)
    away = [item["name"] for item in report["placements"] if item["place"] != "device"]
    assert tokens == run(model)[0]
    assert away
    assert all(".experts.w" in name for name in away)


def test_a_tied_head_on_the_host_keeps_the_tokens_and_is_counted_once(models):
    model = models("LlamaForCausalLM", tied=True)
    tokens, report = run(model, uva(GIB, ["lm_head"]))
    assert tokens == run(model)[0]
    assert [item["name"] for item in report["placements"] if item["place"] == "host"] == ["model.embed_tokens.weight"]
    assert report["measured"]["host_bytes"] == 258 * 64 * 4


@pytest.mark.parametrize("document", [uva(10**5), uva(GIB), prefetch(1, 1, 3), prefetch(2, 1, 1)])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def test_bfloat16_logits_are_bit_equal_to_the_resident_run(models, architecture, document):
    model = models(architecture)
    resident = logits_of(model, None, "bfloat16")
    offloaded = logits_of(model, document, "bfloat16")
    assert all(torch.equal(a, b) for a, b in zip(resident, offloaded, strict=True))
    assert not torch.isnan(torch.stack(resident)).any()
