"""A GGUF file says what its safetensors twin says: names, expert stacks and rotary order over the whole path."""

import gguf
import pytest
import torch

from tests.offload.engines import greedy_ids, loaded, logits_of
from tests.tiny_gguf import GGUF_ARCHITECTURES, write_gguf
from tests.tiny_models import write_tiny


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("architecture", GGUF_ARCHITECTURES)
def test_float32_logits_are_bit_equal_to_the_safetensors_twins(tmp_path, architecture, tied):
    directory = write_tiny(architecture, tmp_path / "m", tied=tied)
    twin = write_gguf(directory, tmp_path / "m.gguf")
    ours, theirs = (logits_of(model, None, "float32") for model in (twin, directory))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_the_twin_offloads_like_its_directory(tmp_path, kind):
    directory = write_tiny("MixtralForCausalLM", tmp_path / "m")
    twin = write_gguf(directory, tmp_path / "m.gguf", lambda name: gguf.GGMLQuantizationType[kind])
    document = {"uva": {"cpu_offload_gb": 1, "cpu_offload_params": ["experts"]}}
    with loaded(twin, document, gguf_weights="expanded") as engine:
        moved = {item["name"] for item in engine.offload_report()["placements"] if item["place"] == "host"}
        assert moved == {
            f"model.layers.{i}.block_sparse_moe.experts.{w}" for i in range(4) for w in ("w13_weight", "w2_weight")
        }
        tokens = greedy_ids(engine)
    with loaded(twin, gguf_weights="expanded") as engine:
        assert greedy_ids(engine) == tokens
