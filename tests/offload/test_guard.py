"""The guard over the whole path: outside architectures, defects of loaders, recounts, room and cancelling."""

import gc
import json
import subprocess
import sys
import textwrap
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.errors import Cancelled, DoesNotFit, GenerationError, InvalidArgument, LoaderDefect
from tests.offload.engines import GREEDY, PROMPTS, live_threads, loaded
from tests.tiny_models import write_tiny

OUTSIDE = """
    import torch
    from pyvllm.models.llama.model import LlamaForCausalLM
    from pyvllm.models.registry import ModelEntry

    class Deaf(torch.nn.Module):
        def __init__(self, config, weights):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.empty(4), requires_grad=False)

    class Copies(LlamaForCausalLM):
        def __init__(self, config, weights):
            super().__init__(config, weights)
            self.model.norm.weight = torch.nn.Parameter(self.model.norm.weight.clone(), requires_grad=False)

    def entry(name, model, supports):
        return ModelEntry(name, "pyvllm.models.llama.weights:weight_specs", model, supports_weight_offload=supports)

    SILENT = entry("SilentForCausalLM", "pyvllm.models.llama.model:LlamaForCausalLM", False)
    DEAF = entry("DeafForCausalLM", "outside_models:Deaf", True)
    COPIES = entry("CopiesForCausalLM", "outside_models:Copies", True)
"""
NAMES = {"SilentForCausalLM": "SILENT", "DeafForCausalLM": "DEAF", "CopiesForCausalLM": "COPIES"}


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A directory for sys.path with a package that registers three architectures from outside."""
    root = tmp_path_factory.mktemp("outside")
    (root / "outside_models.py").write_text(textwrap.dedent(OUTSIDE))
    info = root / "outside_models-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outside-models\nVersion: 1\n")
    points = "".join(f"{name} = outside_models:{attribute}\n" for name, attribute in NAMES.items())
    (info / "entry_points.txt").write_text(f"[pyvllm.models]\n{points}")
    return root


@pytest.fixture
def model_of(tmp_path):
    """Writes a tiny Llama checkpoint under another architecture's name."""

    def write(architecture: str) -> Path:
        directory = write_tiny("LlamaForCausalLM", tmp_path / architecture)
        config = json.loads((directory / "config.json").read_text())
        (directory / "config.json").write_text(json.dumps(config | {"architectures": [architecture]}))
        return directory

    return write


def engine_config(model: Path, document: dict | None = None, **settings) -> EngineConfig:
    return EngineConfig(
        model=str(model), device="cpu", threads=1, offload=OffloadConfig.from_dict(document or {}), **settings
    )


UVA = {"uva": {"cpu_offload_gb": 0.0001}}


def test_R1_an_architecture_without_support_is_refused_before_a_shard_is_opened(outside, model_of, tmp_path):
    model = model_of("SilentForCausalLM")
    (model / "model.safetensors").write_bytes(b"corrupt")
    code = "import sys; from pyvllm.entrypoints.cli import main; sys.exit(main(sys.argv[1:]))"
    trace = tmp_path / "trace"
    command = [
        "strace",
        "-f",
        "-e",
        "trace=open,openat",
        "-o",
        str(trace),
        sys.executable,
        "-c",
        code,
        "plan",
        str(model),
    ]
    done = subprocess.run(
        [*command, "--device", "cpu", "--offload-config", json.dumps(UVA)],
        capture_output=True, text=True, env={"PYTHONPATH": f"{outside}:{Path(__file__).parents[2]}"}, check=False,
    )  # fmt: skip
    assert 'architecture "SilentForCausalLM" does not support it' in done.stderr
    assert done.returncode == 1
    assert "config.json" in trace.read_text()
    assert ".safetensors" not in trace.read_text()


def test_an_outside_architecture_loads_without_offload_and_is_refused_with_it(outside, model_of, monkeypatch):
    monkeypatch.syspath_prepend(str(outside))
    model = model_of("SilentForCausalLM")
    with loaded(model) as engine:
        assert engine.generate(PROMPTS[0], GREEDY).token_ids
    with pytest.raises(InvalidArgument, match="SilentForCausalLM"):
        LLMEngine.load(engine_config(model, UVA))


def test_an_architecture_that_claims_support_and_takes_nothing_is_a_defect_of_its_loader(
    outside, model_of, monkeypatch
):
    monkeypatch.syspath_prepend(str(outside))
    with pytest.raises(LoaderDefect, match=r"defect of the loader of DeafForCausalLM: it took no parameter"):
        LLMEngine.load(engine_config(model_of("DeafForCausalLM"), UVA))


def test_R7_a_parameter_that_its_model_copied_is_named_by_the_recount(outside, model_of, monkeypatch):
    monkeypatch.syspath_prepend(str(outside))
    with pytest.raises(LoaderDefect, match=r"model\.norm\.weight \(planned device, found in no region"):
        LLMEngine.load(engine_config(model_of("CopiesForCausalLM"), UVA))


def test_R7_a_parameter_rebound_after_load_is_named_by_the_next_report(tmp_path):
    with loaded(write_tiny("LlamaForCausalLM", tmp_path / "m"), UVA) as engine:
        moved = [item["name"] for item in engine.offload_report()["placements"] if item["place"] == "host"]
        parameter = dict(engine._model.runner.model.named_parameters())[moved[0]]
        parameter.data = parameter.data.clone()
        with pytest.raises(LoaderDefect, match=moved[0]):
            engine.offload_report()


def test_R51_a_model_larger_than_its_device_loads_only_with_enough_offload(tmp_path):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    fit = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": 200_000}}}
    with pytest.raises(DoesNotFit) as refused:
        LLMEngine.load(engine_config(model, fit))
    gb = str(refused.value).partition("smallest cpu_offload_gb that fits is ")[2]
    with loaded(model, {**fit, "uva": {"cpu_offload_gb": float(gb)}}) as engine:
        assert engine.offload_report()["measured"]["device_bytes"] <= 200_000
        assert engine.generate(PROMPTS[0], GREEDY).token_ids


@pytest.mark.parametrize(
    ("document", "who"),
    [("", "on the device"), ('{"vllm_cpp": {"device_fit": {"weight_budget_bytes": 1000000000}}}', "the host has not")],
)
def test_a_host_without_the_room_is_refused_with_the_limit_that_spoke(tmp_path, document, who):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    code = f"""
        import resource
        from pyvllm.config.engine import EngineConfig
        from pyvllm.config.offload import OffloadConfig
        from pyvllm.engine.preview import prepare
        from pyvllm.errors import DoesNotFit
        used = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmSize")) * 1024
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**20, resource.RLIM_INFINITY))
        try:
            offload = OffloadConfig.from_json({document!r})
            prepare(EngineConfig(model={str(model)!r}, device="cpu", offload=offload))
        except DoesNotFit as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "RLIMIT_AS" in done.stdout
    assert "needs" in done.stdout and who in done.stdout


def test_a_cancelled_load_says_so_and_gives_everything_back(tmp_path):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    calls = []

    def stop_at_the_third(done, planned, name):
        calls.append((done, planned, name))
        return len(calls) < 3

    before = mappings()
    with pytest.raises(Cancelled, match=r"cancelled after \d+ of \d+ bytes"):
        LLMEngine.load(engine_config(model, UVA), stop_at_the_third)
    assert calls[0][2] == ""
    assert mappings() == before


def test_progress_ends_with_all_bytes_and_names_every_weight(tmp_path):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    calls = []
    engine = LLMEngine.load(engine_config(model), lambda *call: calls.append(call) or True)
    engine.close()
    assert calls[-1][0] == calls[-1][1] == engine.prepared.plan.weight_bytes
    assert {name for _, _, name in calls[1:]} == {item.spec.name for item in engine.prepared.plan.placements}


def test_an_exception_inside_a_layer_leaves_everything_reusable(tmp_path, monkeypatch):
    document = {"prefetch": {"offload_group_size": 1, "offload_prefetch_step": 3}}
    with loaded(write_tiny("LlamaForCausalLM", tmp_path / "m"), document) as engine:
        expected = engine.generate(PROMPTS[0], GREEDY).token_ids
        for broken in range(4):
            with monkeypatch.context() as patch:
                patch.setattr(engine._model.runner, "scope", _Planted(engine._model.runner.scope, broken))
                with pytest.raises(GenerationError, match="planted"):
                    engine.generate(PROMPTS[1], GREEDY)
            assert engine.generate(PROMPTS[0], GREEDY).token_ids == expected


class _Planted:
    """A layer scope with a fault inside one layer."""

    def __init__(self, scope, broken: int) -> None:
        self.scope, self.broken = scope, broken

    def is_streamed(self, index: int) -> bool:
        return True

    @contextmanager
    def layer(self, index: int):
        with self.scope.layer(index):
            if index == self.broken:
                raise RuntimeError("planted")
            yield


def test_close_gives_memory_and_the_reader_thread_back(tmp_path):
    document = {"prefetch": {"offload_group_size": 2}}
    before = mappings()
    with loaded(write_tiny("LlamaForCausalLM", tmp_path / "m"), document) as engine:
        engine.generate(PROMPTS[0], GREEDY)
        assert "vllm-reader" in live_threads()
    assert "vllm-reader" not in live_threads()
    assert mappings() == before
    with pytest.raises(InvalidArgument, match="closed"):
        engine.generate(PROMPTS[0], GREEDY)


def test_measured_bytes_are_those_of_the_process_map(tmp_path):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m", hidden_size=256, intermediate_size=512)
    document = {"uva": {"cpu_offload_gb": 0.002}}
    before = {pool: resident(pool) for pool in ("device", "host")}
    with loaded(model, document) as engine:
        measured = engine.offload_report()["measured"]
        for pool in before:
            found = resident(pool) - before[pool]
            assert 0 <= found - measured[f"{pool}_bytes"] <= 3 * 4096 + measured["overhead_bytes"]
    assert torch.is_inference_mode_enabled() is False


def mappings() -> int:
    """How many regions of any engine are mapped, once what is unreachable is gone."""
    gc.collect()
    return Path("/proc/self/maps").read_text().count("vllm:")


def resident(pool: str) -> int:
    """Resident bytes of a pool's mappings, from the kernel's own count."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0] and not line.split()[0].endswith(":"):
            inside = f"vllm:{pool}" in line
        elif inside and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total
