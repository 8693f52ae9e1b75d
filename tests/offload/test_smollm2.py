"""The real model: the recorded greedy tokens, however its weights are placed."""

import json
from pathlib import Path

import pytest

from pyvllm.sampling_params import SamplingParams
from tests.offload.engines import loaded

GOLDEN = json.loads((Path(__file__).parents[1] / "data/golden_smollm2.json").read_text())
PREFETCH = {"offload_group_size": 3, "offload_num_in_group": 1, "offload_prefetch_step": 2}


@pytest.mark.parametrize(
    ("gguf_weights", "document", "place", "away"),
    [
        ("expanded", {}, "device", 538060032),
        ("expanded", {"uva": {"cpu_offload_gb": 0.1}}, "host", 109739520),
        ("expanded", {"prefetch": PREFETCH}, "streamed", 141603840),
        ("auto", {}, "device", 96576768),
        ("auto", {"uva": {"cpu_offload_gb": 0.03}}, "host", 32689152),
        ("auto", {"prefetch": PREFETCH}, "streamed", 22164480),
    ],
    ids=["resident", "uva", "prefetch", "stored", "stored-uva", "stored-prefetch"],
)
def test_smollm2_gives_the_recorded_greedy_tokens(smollm2_gguf, gguf_weights, document, place, away):
    greedy = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    with loaded(smollm2_gguf, document, max_model_len=128, gguf_weights=gguf_weights) as engine:
        assert engine.offload_report()["measured"][f"{place}_bytes"] == away
        for item in GOLDEN["items"]:
            answer = engine.generate(item["prompt"], greedy)
            assert answer.prompt_token_ids == item["prompt_token_ids"]
            assert answer.token_ids == item["new_token_ids"]
