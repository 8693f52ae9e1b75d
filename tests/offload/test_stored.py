"""Weights kept as GGUF stores them: the same bits as expanded ones, in fewer bytes, wherever they are placed."""

from dataclasses import dataclass

import gguf
import pytest
import torch

from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.errors import InvalidArgument
from pyvllm.layers.kernel_library import usable_sets
from tests.offload.engines import GREEDY, greedy_ids, loaded
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


def logits_and_report(path, document, dtype, **settings):
    """Logits after a prompt and after one more token, and the load's report."""
    with loaded(path, document, dtype, **settings) as engine:
        runner = engine._model.runner
        request = Request(0, list(range(3, 40)), GREEDY, block_ids=[0, 1])
        found = [runner.compute_logits(runner.execute([Scheduled(request, 37)]))]
        request.num_computed_tokens = 37
        request.output_token_ids.append(7)
        found.append(runner.compute_logits(runner.execute([Scheduled(request, 1)])))
        return found, engine.offload_report()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("placing", DOCUMENTS)
def test_stored_weights_give_the_logits_of_expanded_ones_bit_for_bit(cpu_kernels, model, dtype, placing):
    wanted, _ = logits_and_report(model, {}, dtype, gguf_weights="expanded", cpu_kernels=cpu_kernels)
    document = DOCUMENTS[placing]
    found, report = logits_and_report(model, document, dtype, gguf_weights="stored", cpu_kernels=cpu_kernels)
    assert placing == "resident" or report["planned"]["device_bytes"] < report["weights"]["bytes"]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_the_plan_counts_stored_bytes_under_the_fused_name(cpu_kernels, model):
    _, report = logits_and_report(model, {}, "float32", gguf_weights="stored", cpu_kernels=cpu_kernels)
    placements = {item["name"]: item for item in report["placements"]}
    qkv = placements["model.layers.0.self_attn.qkv_proj.weight"]
    # A row is whole blocks of 32 elements: 34 bytes of Q8_0, 18 of Q4_0, 24 of Q5_1.
    rows, kv_rows = (128, 64) if qkv["shape"][0] == 256 else (64, 32)
    assert qkv["dtype"] == "Q8_0+Q4_0+Q5_1"
    assert qkv["bytes"] == 2 * (rows * 34 + kv_rows * 18 + kv_rows * 24)
    experts = [item for item in report["placements"] if item["kind"] == "experts"]
    assert {item["dtype"] for item in experts} <= {"Q8_0"}
    assert report["weights"]["bytes"] == report["weights"]["file_bytes"] == report["measured"]["device_bytes"]


@dataclass
class Form:
    """In what form a load keeps quantised weights."""

    nbytes: int
    said: str

    @property
    def is_expanded(self):
        return "are expanded to" in self.said


def form_of(capfd, model, document=None, **settings):
    with loaded(model, document, "bfloat16", **settings) as engine:
        report = engine.offload_report()
    return Form(report["measured"]["device_bytes"], capfd.readouterr().err)


def test_auto_keeps_stored_weights_where_that_is_as_fast(cpu_kernels, model, capfd):
    # AVX-512 expands beside its products; four threads of AVX2 outrun memory.
    threads = {"avx512": 1, "avx2": 4}[cpu_kernels]
    found = form_of(capfd, model, cpu_kernels=cpu_kernels, threads=threads)
    stored = form_of(capfd, model, cpu_kernels=cpu_kernels, threads=threads, gguf_weights="stored")
    assert not found.is_expanded
    assert "gguf_weights" not in found.said
    assert found.nbytes == stored.nbytes


@pytest.fixture
def few():
    """Settings with which `auto` prefers expanded weights."""
    if "avx2" not in usable_sets():
        pytest.skip("the kernels are not built, or this processor lacks what they use of avx2")
    return {"cpu_kernels": "avx2", "threads": 3}


def test_auto_expands_for_few_threads_of_avx2_within_memory(few, model, capfd):
    expanded = form_of(capfd, model, **few, gguf_weights="expanded")
    found = form_of(capfd, model, **few)
    assert found.is_expanded
    assert "gguf_weights auto: expanded, faster with AVX2 on fewer than 4 threads" in found.said
    assert found.nbytes == expanded.nbytes

    budget = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": expanded.nbytes - 1}}}
    found = form_of(capfd, model, budget, **few)
    assert not found.is_expanded
    assert "gguf_weights auto: stored; expanded is faster with AVX2 on fewer than 4 threads, but its " in found.said
    assert found.nbytes < expanded.nbytes


def test_auto_does_not_pay_for_expanded_weights_with_offload(few, model, capfd):
    expanded = form_of(capfd, model, **few, gguf_weights="expanded")
    fit = {"vllm_cpp": {"device_fit": {"auto": True, "weight_budget_bytes": expanded.nbytes - 1}}}
    found = form_of(capfd, model, fit, **few)
    assert not found.is_expanded
    assert found.nbytes == form_of(capfd, model, **few, gguf_weights="stored").nbytes


def test_a_load_says_the_factor_of_what_is_expanded(cpu_kernels, model, capfd):
    _, report = logits_and_report(model, {}, "bfloat16", gguf_weights="stored", cpu_kernels=cpu_kernels)
    assert "expanded" not in capfd.readouterr().err
    _, expanded = logits_and_report(model, {}, "bfloat16", gguf_weights="expanded", cpu_kernels=cpu_kernels)
    kept = {item["name"]: item["bytes"] for item in report["placements"] if item["dtype"] != "bfloat16"}
    grown = sum(item["bytes"] for item in expanded["placements"] if item["name"] in kept)
    stored = sum(kept.values())
    text = f"tensors of {stored} bytes are expanded to {grown} bytes of bfloat16: {grown / stored:.2f} times as many"
    assert text in capfd.readouterr().err


def test_stored_is_refused_where_nothing_is_quantised(tmp_path):
    model, text = write_tiny("LlamaForCausalLM", tmp_path), "'stored' cannot be done: no tensor of the checkpoint"
    with pytest.raises(InvalidArgument, match=text), loaded(model, gguf_weights="stored"):
        pass


def test_stored_is_refused_where_torch_computes(model):
    text = "'stored' cannot be done: cpu_kernels is 'torch', which computes with numbers"
    with pytest.raises(InvalidArgument, match=text), loaded(model, gguf_weights="stored", cpu_kernels="torch"):
        pass


def test_torch_computes_the_same_tokens_when_it_is_told_to(cpu_kernels, model):
    with loaded(model, cpu_kernels=cpu_kernels) as engine:
        wanted = greedy_ids(engine)
        assert engine._model.weights.kernels.instruction_set == cpu_kernels
    with loaded(model, cpu_kernels="torch") as engine:
        assert engine._model.weights.kernels is None
        assert greedy_ids(engine) == wanted
