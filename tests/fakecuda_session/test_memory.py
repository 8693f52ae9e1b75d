"""What a load takes is what was planned, is refused cleanly at every limit, and is given back to the byte."""

import gc
import threading

import pytest
import torch

from pyvllm.errors import Cancelled, DoesNotFit, ModelLoadError
from pyvllm.memory.base import ALIGNMENT
from pyvllm.memory.cuda_memory import CudaMemory
from pyvllm.memory.pinning import Environment
from tests.fakecuda_session.engines import GIB, loaded, on_cpu, prefetch, run, tokens_of, uva

DOCUMENTS = [None, uva(10**5), prefetch(2, 1, 1)]
DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.uint8,
    torch.int32,
]


@pytest.fixture
def memory(device):
    made = CudaMemory(device.torch_side(), environment=Environment())
    made.expect_host(0)
    yield made
    made.close()


def pages(nbytes: int) -> int:
    return -(-nbytes // 4096) * 4096


def test_regions_have_exactly_the_bytes_of_their_weights(machine, device, models):
    with loaded(device, models("LlamaForCausalLM"), uva(10**5)) as engine:
        measured, held = engine.offload_report()["measured"], machine.held()
        weights = measured["device_bytes"] + measured["buffer_bytes"] + measured["host_bytes"]
        # Two regions, each padded between its weights and up to a page at its end.
        assert measured["overhead_bytes"] == held["pinned_bytes"] + held["device_bytes"] - weights - _tail(engine)
        assert measured["host_bytes"] <= held["pinned_bytes"] <= pages(measured["host_bytes"] + 40 * ALIGNMENT)


def _tail(engine) -> int:
    """Bytes that the fake rounds device regions up by."""
    return sum(pages(region.nbytes) - region.nbytes for region in engine._model.memory.regions())


def test_R13_R14_R16_R17_overhead_is_at_most_two_percent_from_64_mib_up(machine, memory):
    sizes = {f"w{i}": 2**20 + 2 * i for i in range(64)}
    kept = memory.allocate("host", sizes)
    assert machine.held()["pinned_bytes"] <= 1.02 * sum(sizes.values())
    assert all(tensor.nbytes == sizes[name] and tensor.data_ptr() % ALIGNMENT == 0 for name, tensor in kept.items())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_view_shows_the_host_bytes_in_every_dtype_and_keeps_them_alive(machine, memory, dtype):
    host = memory.allocate("host", {"a": 4096, "b": 4096})["b"]
    host.copy_(torch.arange(4096).to(torch.uint8))
    view = memory.device_view(host).view(dtype)
    assert torch.equal(view.view(torch.uint8) + 0, host)
    part = view[10:20]
    del host, view
    assert machine.held()["pinned_bytes"] == 8192
    del part
    assert machine.held()["pinned_bytes"] == 0


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_allocation_may_fail_and_the_load_is_refused_with_nothing_left(machine, device, models, document):
    model = models("LlamaForCausalLM")
    with loaded(device, model, document):
        count = machine.counters()["allocations"]
    count, before = machine.counters()["allocations"], machine.held()
    failures = 0
    for number in range(100):
        machine.fail_allocation(number)
        try:
            run(device, model, document)
            break
        except DoesNotFit as error:
            failures += 1
            assert "cudaErrorMemoryAllocation" in str(error)
            assert "free by" in str(error)
        gc.collect()
        assert machine.held() == before
    assert 2 <= failures <= count


def test_R87_a_failed_allocation_leaves_no_error_for_torch_to_find(machine, memory):
    from cuda.bindings import runtime

    machine.fail_allocation(0)
    with pytest.raises(DoesNotFit):
        memory.allocate("host", {"a": 4096})
    assert int(runtime.cudaPeekAtLastError()[0]) == 0


def test_a_host_limit_is_refused_with_the_bytes_that_were_given(machine, memory, monkeypatch):
    monkeypatch.setattr("pyvllm.memory.base.REGION_BYTES", 2**20)
    machine.set_limits(pinned_bytes=3 * 2**20)
    with pytest.raises(DoesNotFit, match=r"after 3145728 bytes of this load, which are given back"):
        memory.allocate("host", {f"w{i}": 2**20 for i in range(4)})
    assert machine.held()["pinned_bytes"] == 0


@pytest.mark.parametrize("document", DOCUMENTS[1:])
def test_R134_R148_load_and_free_twenty_times_is_flat(machine, device, models, document):
    model, before, seen = models("LlamaForCausalLM"), machine.held(), set()
    for _ in range(20):
        with loaded(device, model, document) as engine:
            seen.add(tuple(machine.held().values()))
        del engine
        assert machine.held() == before
    assert len(seen) == 1


def test_a_weight_budget_limits_what_the_device_pool_may_hold(machine, device, models):
    fit = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": 400_000}}}
    with pytest.raises(DoesNotFit, match="the smallest cpu_offload_gb that fits is") as refused:
        run(device, models("LlamaForCausalLM"), fit)
    gb = float(str(refused.value).partition("fits is ")[2].partition(";")[0])
    _, report = run(device, models("LlamaForCausalLM"), fit | {"uva": {"cpu_offload_gb": gb}})
    measured = report["measured"]
    assert measured["device_bytes"] + measured["buffer_bytes"] <= 400_000
    assert report["planned"]["buffer_bytes"] == measured["buffer_bytes"] > 0


def test_R10_the_report_gives_the_devices_own_bytes_before_and_after(machine, device, models):
    with loaded(device, models("LlamaForCausalLM"), uva(10**5)) as engine:
        report = engine.offload_report()
        measured = report["measured"]
        taken = measured["device_free_before_bytes"] - measured["device_free_bytes"]
        assert taken == machine.held()["device_bytes"]
        assert measured["workspace_bytes"] == 0  # torch allocates nothing on the imagined device
        assert report["planned"]["workspace_bytes"] > 0


def test_a_device_too_small_is_refused_before_anything_is_allocated(machine, device, models):
    machine.set_limits(device_bytes=2**20)
    with pytest.raises(DoesNotFit, match="by cudaMemGetInfo"):
        run(device, models("LlamaForCausalLM"))
    assert machine.counters()["device_bytes"] == 0


def test_R19_another_process_that_frees_device_memory_during_the_load_is_no_error(machine, device, models):
    machine.set_limits(device_bytes=2**27)

    def grow(memory):
        machine.set_limits(device_bytes=2**28)

    assert run(device, models("LlamaForCausalLM"), uva(10**5), prepare_memory=grow)[0]


def test_R18_offload_twice_in_one_process_loads_twice(machine, device, models):
    model = models("LlamaForCausalLM")
    with loaded(device, model, uva(10**5)) as first, loaded(device, model, prefetch(2, 1, 1)) as second:
        assert tokens_of(first) == tokens_of(second)


def test_a_cancelled_load_gives_everything_back(machine, device, models):
    from pyvllm.config.engine import EngineConfig
    from pyvllm.config.offload import OffloadConfig
    from pyvllm.engine.llm_engine import LLMEngine

    offload = OffloadConfig.from_dict(uva(GIB))
    config = EngineConfig(model=str(models("LlamaForCausalLM")), device="cuda", max_model_len=128, offload=offload)
    calls, before = [], machine.held()
    with pytest.raises(Cancelled):
        LLMEngine.load(
            config,
            lambda *news: not calls.append(news) and len(calls) < 4,
            lambda limit: CudaMemory(device.torch_side(), limit, Environment()),
        )
    gc.collect()
    assert machine.held() == before


def test_a_file_that_ends_early_fails_the_load_and_gives_everything_back(machine, device, models, tmp_path):
    import shutil

    model = shutil.copytree(models("LlamaForCausalLM"), tmp_path / "m")
    before = machine.held()

    def cut(memory):
        file = model / "model.safetensors"
        with file.open("r+b") as opened:
            opened.truncate(file.stat().st_size // 2)

    with pytest.raises(ModelLoadError, match=r"model\.safetensors"):
        run(device, model, uva(10**5), prepare_memory=cut)
    gc.collect()
    assert machine.held() == before


def test_weights_larger_than_a_piece_come_whole_through_several_readers(machine, device, models, monkeypatch):
    model = models("LlamaForCausalLM")
    expected = run(device, model, uva(10**5))[0]
    monkeypatch.setattr("pyvllm.model_loader.filling.PIECE_BYTES", 1000)
    assert run(device, model, uva(10**5), threads=4)[0] == expected


def test_host_regions_are_allocated_while_earlier_ones_are_filled(machine, device, models, monkeypatch):
    """The third region is not given before a weight has been read: a load that waited for all would never end."""
    monkeypatch.setattr("pyvllm.memory.base.REGION_BYTES", 10**5)
    model, was_read, regions = models("LlamaForCausalLM"), threading.Event(), []

    class Patient(CudaMemory):
        def _host_region(self, nbytes):
            regions.append(nbytes)
            assert len(regions) != 3 or was_read.wait(60)
            return super()._host_region(nbytes)

    def progress(done, planned, name):
        if done:
            was_read.set()
        return True

    with loaded(device, model, uva(GIB), memory_class=Patient, progress=progress) as engine:
        assert len(regions) > 3
        assert tokens_of(engine) == on_cpu(model)
