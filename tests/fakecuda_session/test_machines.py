"""Kinds of machines, described by what the device and the environment answer."""

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import plan_document
from pyvllm.errors import DoesNotFit, GenerationError, InvalidArgument, ModelLoadError
from pyvllm.memory.base import Room
from pyvllm.memory.pinning import Environment
from tests.fakecuda_session.engines import GIB, loaded, on_cpu, prefetch, run, tokens_of, uva

WSL = "5.15.153.1-microsoft-standard-WSL2"


@pytest.fixture
def planned(machine, models, monkeypatch):
    """Plan a load on this machine in an environment; gives the document."""

    def plan(document, environment=None, **settings):
        monkeypatch.setattr("pyvllm.engine.preview.read_environment", lambda: environment or Environment())
        config = EngineConfig(
            model=str(models("LlamaForCausalLM")),
            device="cuda",
            max_model_len=128,
            offload=OffloadConfig.from_dict(document),
            **settings,
        )
        return plan_document(config)

    return plan


def test_a_plan_names_the_device_and_who_said_what_it_has(planned):
    capacity = planned(uva(10**5))["capacity"]
    assert (capacity["device_name"], capacity["source"]) == ("Imagined Device", "cudaMemGetInfo")
    assert capacity["one_pool"] is False


def test_R21_R22_R30_one_pool_is_an_attribute_and_is_sized_by_the_host(machine, planned):
    machine.set_attribute("Integrated", 1)
    machine.set_limits(device_bytes=2**20)
    document = planned(uva(10**5))
    assert document["capacity"]["source"] in ("MemAvailable", "the cgroup's memory limit", "RLIMIT_AS", "RLIMIT_DATA")
    assert document["capacity"]["device_bytes"] > 2**20
    assert any("has one memory pool" in text for text in document["warnings"])


@pytest.mark.parametrize("name", ["CanMapHostMemory", "UnifiedAddressing"])
def test_R8_a_device_that_cannot_read_host_memory_refuses_uva_by_name(machine, planned, name):
    machine.set_attribute(name, 0)
    with pytest.raises(DoesNotFit, match=rf"uva cannot be used on Imagined Device: .*cudaDevAttr{name} is 0"):
        planned(uva(10**5))
    assert planned(prefetch(2, 1, 1))["planned"]["streamed_bytes"] > 0


MACHINES = {
    "R25-wsl": (Environment(kernel_release=WSL), "VLLM_WSL2_ENABLE_PIN_MEMORY=1"),
    "R26-old-wsl": (
        Environment(is_wsl_pinning_enabled=True, kernel_release="4.19.104-microsoft-standard"),
        "from kernel 4.19.121 on",
    ),
    "R29-memlock": (Environment(lockable=Room(65536, "RLIMIT_MEMLOCK")), "RLIMIT_MEMLOCK allows 65536 bytes of the"),
    "R23-disabled": (Environment(is_pinning_disabled=True), "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY is set"),
}


@pytest.mark.parametrize(("environment", "reason"), MACHINES.values(), ids=MACHINES)
def test_R89_where_pinning_is_impossible_uva_is_refused_and_prefetch_says_so(
    machine, device, models, planned, environment, reason
):
    with pytest.raises(DoesNotFit) as refused:
        planned(uva(10**6), environment)
    assert reason in str(refused.value)
    warnings = [text for text in planned(prefetch(2, 1, 1), environment)["warnings"] if "pageable" in text]
    assert len(warnings) == 1
    assert reason in warnings[0]


@pytest.mark.parametrize("environment", [MACHINES[name][0] for name in ("R23-disabled", "R29-memlock")])
def test_R23_prefetch_from_pageable_memory_pins_nothing_and_keeps_the_tokens(machine, device, models, environment):
    model = models("LlamaForCausalLM")
    for _ in range(2):
        with loaded(device, model, prefetch(2, 1, 1), environment=environment) as engine:
            assert machine.held()["pinned_bytes"] == 0
            assert tokens_of(engine) == on_cpu(model)
            assert machine.counters()["pageable_copies"] > 0
            assert machine.races() == ""


def test_R26_wsl_pins_once_its_owner_allows_it(machine, device, models):
    environment = Environment(is_wsl_pinning_enabled=True, kernel_release=WSL)
    with loaded(device, models("LlamaForCausalLM"), uva(10**5), environment=environment):
        assert machine.held()["pinned_bytes"] > 0


def test_the_uva_variable_refuses_uva_and_leaves_prefetch_alone(planned):
    environment = Environment(is_uva_disabled=True)
    with pytest.raises(DoesNotFit, match="VLLM_WEIGHT_OFFLOADING_DISABLE_UVA is set; use prefetch"):
        planned(uva(10**5), environment)
    assert not any("pageable" in text for text in planned(prefetch(2, 1, 1), environment)["warnings"])


def test_a_variable_that_is_no_integer_is_refused_by_name(machine, models, monkeypatch):
    monkeypatch.setenv("VLLM_WEIGHT_OFFLOADING_DISABLE_UVA", "true")
    config = EngineConfig(model=str(models("LlamaForCausalLM")), device="cuda", max_model_len=128)
    with pytest.raises(InvalidArgument, match="VLLM_WEIGHT_OFFLOADING_DISABLE_UVA must be an integer"):
        plan_document(config)


@pytest.mark.parametrize("document", [uva(GIB), prefetch(2, 1, 1)])
def test_R22_a_coherent_machine_offloads_without_pinning(machine, device, models, planned, document):
    for name in ("PageableMemoryAccess", "PageableMemoryAccessUsesHostPageTables"):
        machine.set_attribute(name, 1)
    environment = Environment(is_pinning_disabled=True)
    planned(document, environment)
    with loaded(device, models("LlamaForCausalLM"), document, environment=environment) as engine:
        assert machine.held()["pinned_bytes"] == 0
        assert tokens_of(engine) == on_cpu(models("LlamaForCausalLM"))


def test_R39_a_graph_capture_is_refused_by_name_and_the_engine_lives_on(machine, device, models):
    model = models("LlamaForCausalLM")
    with loaded(device, model, prefetch(2, 1, 1)) as engine:
        machine.set_capturing(True)
        with pytest.raises(GenerationError, match="cannot be captured in a CUDA graph"):
            tokens_of(engine)
        machine.set_capturing(False)
        assert tokens_of(engine) == on_cpu(model)


def device_of(models, device: str) -> str:
    config = EngineConfig(model=str(models("LlamaForCausalLM")), device=device, max_model_len=128)
    return plan_document(config)["capacity"]["device_name"]


def test_auto_takes_the_device_that_is_there(machine, models):
    assert device_of(models, "auto") == device_of(models, "cuda") == "Imagined Device"


@pytest.mark.parametrize("error", [35, 100])
def test_auto_falls_to_the_cpu_when_there_is_no_driver_or_no_device(machine, models, error):
    machine.set_probe_error(error)
    assert device_of(models, "auto") == "cpu"
    with pytest.raises(ModelLoadError, match=rf"\({error}\)"):
        device_of(models, "cuda")


@pytest.mark.parametrize("error", [2, 3, 46, 802, 999])
def test_any_other_error_is_an_error_and_no_fall_back(machine, models, error):
    machine.set_probe_error(error)
    with pytest.raises(ModelLoadError, match=rf"device auto: CUDA was asked for.*\({error}\)"):
        device_of(models, "auto")


def test_R29_device_fit_chooses_prefetch_where_uva_could_not_be_pinned(planned):
    fit = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": 400_000, "auto": True}}}
    assert planned(fit)["resolved_backend"] == "uva"
    assert planned(fit, MACHINES["R29-memlock"][0])["resolved_backend"] == "prefetch"


def test_device_fit_chooses_what_fits_with_its_staging_buffers(machine, device, models):
    fit = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": 400_000, "auto": True}}}
    model = models("LlamaForCausalLM")
    tokens, report = run(device, model, fit)
    assert tokens == on_cpu(model)
    assert report["measured"]["device_bytes"] + report["measured"]["buffer_bytes"] <= 400_000
