"""What the engine says that its steps read of offloaded weights, against what their tokens can reach."""

from fractions import Fraction

import pytest

from pyvllm.sampling_params import SamplingParams
from tests.offload.engines import loaded
from tests.tiny_models import write_tiny

PROMPT, NUM_NEW = [5, 6, 7], 9
UVA, PREFETCH = {"uva": {"cpu_offload_gb": 1}}, {"prefetch": {"offload_group_size": 2}}


def reachable(spec, num_tokens):
    """Bytes of a weight that a step reads: of so many tokens, each with its own experts and row of the embedding."""
    if spec.num_experts:
        return spec.nbytes * min(Fraction(num_tokens * spec.experts_per_token, spec.num_experts), 1)
    if spec.name == "model.embed_tokens.weight" and not spec.aliases:
        return spec.nbytes * Fraction(num_tokens, spec.shape[0])
    return spec.nbytes


def bus_bytes(model, document):
    """Bytes that one answer counts, and the plan of its load."""
    with loaded(model, document) as engine:
        engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=NUM_NEW, ignore_eos=True))
        return engine.stats().bus_bytes, engine.prepared.plan


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "Qwen3MoeForCausalLM", "MixtralForCausalLM"])
def test_steps_that_read_in_place_count_what_their_tokens_can_reach(architecture, tied, tmp_path):
    found, plan = bus_bytes(write_tiny(architecture, tmp_path, tied=tied), UVA)
    specs = [item.spec for item in plan.placements if item.place == "host"]
    steps = [len(PROMPT)] + [1] * (NUM_NEW - 1)
    assert specs and found == sum(reachable(spec, num_tokens) for spec in specs for num_tokens in steps)
    if architecture != "LlamaForCausalLM":
        assert found < NUM_NEW * sum(spec.nbytes for spec in specs)


def test_streamed_weights_count_whole_in_every_step(tmp_path):
    found, plan = bus_bytes(write_tiny("Qwen3MoeForCausalLM", tmp_path), PREFETCH)
    streamed = sum(item.nbytes for item in plan.placements if item.place == "streamed")
    # The next step's first layers may be on their way already.
    assert NUM_NEW * streamed <= found <= (NUM_NEW + 1) * streamed
