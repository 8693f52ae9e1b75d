"""The mixture of experts that is made for the tables is one model in three forms."""

import pytest
import torch
from models import TINY_MOE, MoeShape, make_moe, moe_tensors
from transformers import AutoModelForCausalLM

from pyvllm.config.engine import EngineConfig
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.sampling_params import SamplingParams

PROMPT = [1000, 2000, 3000, 4000, 777]
VOCAB_SIZE = 49152


@pytest.fixture(scope="module")
def folder(smollm2_gguf, tmp_path_factory):
    folder = tmp_path_factory.mktemp("moe")
    make_moe(str(smollm2_gguf), str(folder), TINY_MOE, with_gguf=True)
    return folder


def answer(model, new=12):
    engine = LLMEngine.load(EngineConfig(model=str(model), device="cpu", dtype="float32"))
    try:
        return engine.generate(PROMPT, SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)).token_ids
    finally:
        engine.close()


def test_directory_and_gguf_say_what_transformers_says(folder):
    model = AutoModelForCausalLM.from_pretrained(folder / "moe", dtype=torch.float32)
    ids = torch.tensor([PROMPT])
    expected = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
    expected = expected[0, len(PROMPT) :].tolist()
    assert len(set(expected)) > 6
    assert answer(folder / "moe") == expected
    assert answer(folder / "moe-bf16.gguf") == expected


def test_the_q8_0_file_is_half_as_large_and_begins_as_the_model_does(folder):
    # Its weights are rounded, so that its later tokens may be others.
    assert answer(folder / "moe-q8_0.gguf", new=3) == answer(folder / "moe", new=3)
    sizes = [(folder / f"moe-{kind}.gguf").stat().st_size for kind in ("q8_0", "bf16")]
    assert 0.5 < sizes[0] / sizes[1] < 0.65


def test_active_weights_are_what_one_token_multiplies():
    tensors = moe_tensors(TINY_MOE, 100)
    matrices = {name: tensor.numel() for name, tensor in tensors.items() if tensor.dim() == 2}
    del matrices["model.embed_tokens.weight"]
    experts = sum(count for name, count in matrices.items() if ".experts." in name)
    others = sum(matrices.values()) - experts
    share = TINY_MOE.num_experts_per_tok / TINY_MOE.num_experts
    assert TINY_MOE.active_weights(100) == others + experts * share


def test_the_tables_model_has_two_gigabytes():
    shape = MoeShape()
    experts = 3 * shape.num_experts * shape.hidden_size * shape.moe_intermediate_size * shape.num_hidden_layers
    assert 2.0e9 < 2 * (experts + 2 * VOCAB_SIZE * shape.hidden_size) < 2.4e9
    assert shape.num_experts == 128 and shape.num_experts_per_tok == 8
