"""The checks on a CUDA device. Each takes the rig and a folder, and gives what it found; a `False` is a failure."""

import ctypes
import gc
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.device import checkpoints
from tests.device.rig import Rig

GIB = 1024**3
DTYPES = ("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int32")


def environment(rig: Rig, folder: Path) -> dict[str, object]:
    """Who answers: versions, attributes, limits."""
    import torch

    from pyvllm.memory.cuda import device_facts
    from pyvllm.memory.pinning import read_environment

    facts = device_facts()
    return {
        "torch": torch.__version__,
        "driver": int(rig.runtime.cudaDriverGetVersion()[1]),
        "device": facts.name,
        "free_bytes": facts.free_bytes,
        "attributes": {name: getattr(facts.attributes, name) for name in facts.attributes.__slots__},
        "environment": str(read_environment()),
    }


def golden(rig: Rig, folder: Path) -> dict[str, object]:
    """The facts that the fake is held to."""
    from tests.fakecuda.conformance import facts

    return {"facts": facts(rig.runtime)}


def views(rig: Rig, folder: Path) -> dict[str, object]:
    """Tensors over our memory: no copy, every dtype, alive as long as their last view, freed once."""
    import torch

    found: dict[str, object] = {}
    memory = rig.memory()
    memory.expect_host(0)
    before = memory.device_room().nbytes
    for dtype in DTYPES:
        device = memory.allocate("device", {"a": 2**21})["a"]
        host = memory.allocate("host", {"a": 2**21})["a"]
        view = memory.device_view(host).view(getattr(torch, dtype))
        host.copy_(torch.arange(2**21).remainder(120).to(torch.uint8))
        rig.synchronize()
        device.copy_(view.view(torch.uint8))
        rig.synchronize()
        found[f"{dtype}: bytes arrive"] = torch.equal(device.cpu() + 0, host)
        found[f"{dtype}: device pointer is the region's"] = any(
            region.holds(view.data_ptr(), 64) for region in memory.regions()
        )
        part = view[5:9]
        del device, host, view
        found[f"{dtype}: a view keeps the region"] = len(memory.regions()) == 1
        del part
        gc.collect()
        found[f"{dtype}: the last view frees it"] = not memory.regions()
    found["device bytes come back"] = memory.device_room().nbytes >= before
    memory.close()
    return found


def order(rig: Rig, folder: Path) -> dict[str, object]:
    """The two rules, on a copy that takes long enough to be overtaken."""
    import torch

    memory = rig.memory()
    memory.expect_host(rig.scale.copy_bytes)
    device = memory.allocate("device", {"a": rig.scale.copy_bytes})["a"]
    host = memory.allocate("host", {"a": rig.scale.copy_bytes})["a"]
    found: dict[str, object] = {}
    host.fill_(7)
    device.fill_(1)
    rig.synchronize()
    start = time.perf_counter()
    ticket = memory.start_copy([(device, host)])
    found["start_copy returns early"] = rig.is_dry or time.perf_counter() - start < 0.005
    found["without waiting the old bytes are read"] = int(device[-1].item()) == 1
    memory.wait_copy(ticket)
    found["after waiting the new bytes are read"] = int(device[-1].item()) == 7
    host.fill_(9)
    total = device.sum(dtype=torch.int64)
    memory.wait_copy(memory.start_copy([(device, host)]))
    found["a copy waits for compute to have left"] = int(total) == 7 * rig.scale.copy_bytes
    found["a copy that waited arrives"] = int(device[-1].item()) == 9
    del device, host, total
    memory.close()
    return found


def capture(rig: Rig, folder: Path) -> dict[str, object]:
    """A graph capture is refused by name."""
    from pyvllm.errors import GenerationError

    memory = rig.memory()
    memory.expect_host(4096)
    device, host = memory.allocate("device", {"a": 4096})["a"], memory.allocate("host", {"a": 4096})["a"]
    refused = ""
    with rig.capturing():
        try:
            memory.start_copy([(device, host)])
        except GenerationError as error:
            refused = str(error)
    del device, host
    memory.close()
    return {"a capture is refused by name": "CUDA graph" in refused}


def uva(gb: float, params: tuple[str, ...] = ()) -> dict:
    return {"uva": {"cpu_offload_gb": gb, "cpu_offload_params": list(params)}}


def prefetch(group: int, num: int, step: int) -> dict:
    return {"prefetch": {"offload_group_size": group, "offload_num_in_group": num, "offload_prefetch_step": step}}


def exactness(rig: Rig, folder: Path) -> dict[str, object]:
    """uva and prefetch against resident: equal tokens in float32, bit-equal logits in bfloat16."""
    from pyvllm.sampling_params import SamplingParams

    greedy = SamplingParams(temperature=0, max_tokens=rig.scale.num_tokens, ignore_eos=True)
    prompts = ("abc", "the quick brown fox jumps over the lazy dog, twice")
    found: dict[str, object] = {}
    for architecture in rig.scale.architectures:
        model = checkpoints.write(folder / architecture, checkpoints.small_document(architecture), "float32")
        runs: dict[str, Any] = {}
        for name, document in (("resident", None), ("uva", uva(8.0)), ("prefetch", prefetch(2, 1, 2))):
            with rig.engine(model, document) as engine:
                tokens = [engine.generate(prompt, greedy).token_ids for prompt in prompts]
            with rig.engine(model, document, dtype="bfloat16") as engine:
                runs[name] = tokens, _logits(engine)
        for name in ("uva", "prefetch"):
            found[f"{architecture}: {name} gives equal tokens"] = runs[name][0] == runs["resident"][0]
            pairs = zip(runs[name][1], runs["resident"][1], strict=True)
            found[f"{architecture}: {name} gives bit-equal logits"] = all(bool((a == b).all()) for a, b in pairs)
    return found


def _logits(engine: Any) -> list[Any]:
    """Logits of a long and of some short steps, on the CPU."""
    from pyvllm.core.request import Request
    from pyvllm.core.scheduler import Scheduled
    from pyvllm.sampling_params import SamplingParams

    runner, request = engine._model.runner, Request(0, list(range(3, 63)), SamplingParams())
    request.block_ids = list(range(4))
    found = []
    for count, token in ((60, None), (1, 7), (1, 8)):
        if token is not None:
            request.output_token_ids.append(token)
        found.append(runner.compute_logits(runner.execute([Scheduled(request, count)])).cpu())
        request.num_computed_tokens += count
    return found


def overhead(rig: Rig, folder: Path) -> dict[str, object]:
    """Host bytes that pinned memory takes beyond what was asked, by the kernel's count."""
    memory, nbytes = rig.memory(), rig.scale.copy_bytes * 9 // 4
    memory.expect_host(nbytes)
    before = _resident_bytes()
    kept = memory.allocate("host", {"a": nbytes})
    kept["a"].fill_(1)
    taken = _resident_bytes() - before
    found = {
        "asked bytes": nbytes,
        "taken bytes": taken,
        "host overhead is at most 2 %": rig.is_dry or taken <= 1.02 * nbytes,
    }
    del kept
    memory.close()
    return {**found, "pins 64 MiB without CAP_IPC_LOCK under a memlock limit of 64 KiB": _pins_beyond_the_limit(rig)}


def _resident_bytes() -> int:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) for name in ("RssAnon", "RssShmem", "RssFile")) * 1024


def _pins_beyond_the_limit(rig: Rig) -> str:
    """Whether the driver holds cudaHostAlloc to RLIMIT_MEMLOCK; no machine has answered that yet."""
    if rig.is_dry:
        return "not asked"
    code = """
import os, resource
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
from cuda.bindings import runtime
error, _ = runtime.cudaHostAlloc(64 * 2**20, 3)
print(int(error))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return run.stdout.strip() or run.stderr.strip()[-200:]


def bandwidth(rig: Rig, folder: Path) -> dict[str, object]:
    """The fraction of the pinned host-to-device peak that prefetch and uva reach while generating."""
    scale = rig.scale
    peak = _peak_bytes_a_second(rig)
    document = checkpoints.dense_document(scale.dense_hidden, scale.dense_layers)
    model = checkpoints.write(folder / "dense", document, "bfloat16", lambda name: False)
    found: dict[str, object] = {"peak GB/s": round(peak / 1e9, 2)}
    for name, config in (("prefetch", prefetch(1, 1, 2)), ("uva", uva(1000.0, ("layers",)))):
        with rig.engine(model, config) as engine:
            moved = engine.offload_report()["planned"]["host_bytes" if name == "uva" else "streamed_bytes"]
            rate = moved * _steps_a_second(rig, engine, 1)
        found[f"{name} GB/s"] = round(rate / 1e9, 2)
        found[f"{name} fraction of the peak"] = round(rate / peak, 3)
    return found


def _peak_bytes_a_second(rig: Rig) -> float:
    memory, nbytes = rig.memory(), rig.scale.copy_bytes
    memory.expect_host(nbytes)
    device, host = memory.allocate("device", {"a": nbytes})["a"], memory.allocate("host", {"a": nbytes})["a"]
    ctypes.memset(host.data_ptr(), 1, nbytes)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        memory.start_copy([(device, host)])
        rig.synchronize()
        best = min(best, time.perf_counter() - start)
    del device, host
    memory.close()
    return nbytes / best


def _steps_a_second(rig: Rig, engine: Any, batch: int) -> float:
    """Steps of `batch` requests that write one token each."""
    from pyvllm.sampling_params import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=rig.scale.num_tokens, ignore_eos=True)
    _wait_for_all(engine, batch, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    start = time.perf_counter()
    _wait_for_all(engine, batch, params)
    return rig.scale.num_tokens / (time.perf_counter() - start)


def _wait_for_all(engine: Any, batch: int, params: Any) -> None:
    items = [engine.submit([1 + number, 2, 3], params) for number in range(batch)]
    for item in items:
        item.wait()
        if item.error is not None:
            raise item.error


def mixture(rig: Rig, folder: Path) -> dict[str, object]:
    """A large mixture of experts on a third of the memory it needs."""
    scale = rig.scale
    document = checkpoints.moe_document(scale.moe_hidden, scale.moe_layers, scale.moe_experts)
    model = checkpoints.write(folder / "moe", document, "bfloat16", lambda name: ".experts." not in name)
    size = (model / "model.safetensors").stat().st_size
    fit = {"vllm_cpp": {"device_fit": {"weight_budget_bytes": size // 3, "auto": True}}}
    peak = _peak_bytes_a_second(rig)
    start = time.perf_counter()
    with rig.engine(model, fit) as engine:
        report = engine.offload_report()
        found: dict[str, object] = {
            "weight bytes": report["weights"]["bytes"],
            "host bytes": report["measured"]["host_bytes"],
            "load seconds": round(time.perf_counter() - start, 2),
            "device bytes are within the budget": report["measured"]["device_bytes"]
            + report["measured"]["buffer_bytes"]
            <= size // 3,
            "workspace bytes, planned and measured": [
                report["planned"]["workspace_bytes"],
                report["measured"]["workspace_bytes"],
            ],
        }
        for batch in (1, 32):
            steps = _steps_a_second(rig, engine, batch)
            found[f"tokens/s at {batch}"] = round(steps * batch, 2)
        bound = peak / max(report["bus_bytes_per_token"]["expected"], 1)
        found["fraction of the bus bound at 1"] = round(float(found["tokens/s at 1"]) / bound, 3)
    return found


def give_back(rig: Rig, folder: Path) -> dict[str, object]:
    """Loading and freeing leaves the device and the host where they were."""
    model = folder / "LlamaForCausalLM"
    free, host = [], []
    for _ in range(20 if not rig.is_dry else 6):
        with rig.engine(model, uva(0.002)):
            pass
        gc.collect()
        free.append(int(rig.runtime.cudaMemGetInfo()[1]))
        host.append(_resident_bytes())
    return {
        "device bytes are flat over the loads": free[-1] == free[1],
        "host bytes are flat over the loads": rig.is_dry or abs(host[-1] - host[4]) < 32 * 2**20,
        "peak resident bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


#: In the order in which they run; what matters most first, should time run out.
SECTIONS = (environment, golden, views, order, capture, exactness, give_back, overhead, bandwidth, mixture)
