"""Weights kept as GGUF stores them: the same bits as expanded ones, in fewer bytes, wherever they are placed."""

import gguf
import pytest
import torch

from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.errors import InvalidArgument
from tests.offload.engines import GREEDY, loaded
from tests.tiny_gguf import write_gguf
from tests.tiny_models import ARCHITECTURES, write_tiny

TYPES = gguf.GGMLQuantizationType
UNLIKE = {"attn_q": TYPES.Q8_0, "attn_k": TYPES.Q4_0, "attn_v": TYPES.Q5_1, "ffn_up": TYPES.Q4_1, "output": TYPES.Q5_0}
DOCUMENTS = {
    "resident": {},
    "uva": {"uva": {"cpu_offload_gb": 0.00004}},
    "prefetch": {"prefetch": {"offload_group_size": 2, "offload_num_in_group": 1, "offload_prefetch_step": 1}},
}


def unlike_types(name):
    """The parts of fused weights in types of their own, the router in numbers, everything else in Q8_0."""
    if "ffn_gate_inp" in name:
        return TYPES.F32
    return next((kind for part, kind in UNLIKE.items() if part in name.split(".")), TYPES.Q8_0)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("stored")
    write_tiny(request.param, directory / "tiny")
    return write_gguf(directory / "tiny", directory / "tiny.gguf", unlike_types)


def logits_and_report(path, document, dtype, gguf_weights):
    """Logits after a prompt and after one more token, and the load's report."""
    with loaded(path, document, dtype, gguf_weights=gguf_weights) as engine:
        runner = engine._model.runner
        request = Request(0, list(range(3, 40)), GREEDY, block_ids=[0, 1])
        found = [runner.compute_logits(runner.execute([Scheduled(request, 37)]))]
        request.num_computed_tokens = 37
        request.output_token_ids.append(7)
        found.append(runner.compute_logits(runner.execute([Scheduled(request, 1)])))
        return found, engine.offload_report()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("placing", DOCUMENTS)
def test_stored_weights_give_the_logits_of_expanded_ones_bit_for_bit(kernels, model, dtype, placing):
    wanted, _ = logits_and_report(model, {}, dtype, "expanded")
    found, report = logits_and_report(model, DOCUMENTS[placing], dtype, "stored")
    assert placing == "resident" or report["planned"]["device_bytes"] < report["weights"]["bytes"]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_the_plan_counts_stored_bytes_under_the_fused_name(kernels, model):
    _, report = logits_and_report(model, {}, "float32", "stored")
    placements = {item["name"]: item for item in report["placements"]}
    qkv = placements["model.layers.0.self_attn.qkv_proj.weight"]
    # A row is whole blocks of 32 elements: 34 bytes of Q8_0, 18 of Q4_0, 24 of Q5_1.
    rows, kv_rows = (128, 64) if qkv["shape"][0] == 256 else (64, 32)
    assert qkv["dtype"] == "Q8_0+Q4_0+Q5_1"
    assert qkv["bytes"] == 2 * (rows * 34 + kv_rows * 18 + kv_rows * 24)
    experts = [item for item in report["placements"] if item["kind"] == "experts"]
    assert {item["dtype"] for item in experts} <= {"Q8_0"}
    assert report["weights"]["bytes"] == report["weights"]["file_bytes"] == report["measured"]["device_bytes"]


def test_auto_keeps_what_is_stored_and_says_the_factor_of_what_is_expanded(kernels, model, capfd):
    _, report = logits_and_report(model, {}, "bfloat16", "auto")
    assert "expanded" not in capfd.readouterr().err
    _, expanded = logits_and_report(model, {}, "bfloat16", "expanded")
    kept = {item["name"]: item["bytes"] for item in report["placements"] if item["dtype"] != "bfloat16"}
    grown = sum(item["bytes"] for item in expanded["placements"] if item["name"] in kept)
    stored = sum(kept.values())
    text = f"tensors of {stored} bytes are expanded to {grown} bytes of bfloat16: {grown / stored:.2f} times as many"
    assert text in capfd.readouterr().err


def test_stored_is_refused_where_nothing_is_quantised(tmp_path):
    model, text = write_tiny("LlamaForCausalLM", tmp_path), "'stored' cannot be done: no tensor of the checkpoint"
    with pytest.raises(InvalidArgument, match=text), loaded(model, gguf_weights="stored"):
        pass
