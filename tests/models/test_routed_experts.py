"""A step touches only the rows of routed experts: with every other expert's pages taken away it still runs."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pyvllm.layers.kernels import load_kernels
from tests.tiny_models import write_tiny

#: Run in a process of its own, since one forbidden read ends it: `<checkpoint> unrouted|routed torch|kernels`.
STEP = """
import ctypes, mmap, sys
from pathlib import Path
import torch
import tests.checkpoint_weights as helper
from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.layers.kernels import load_kernels
from pyvllm.sampling_params import SamplingParams
from pyvllm.worker.kv_cache import KVCache
from pyvllm.worker.model_runner import ModelRunner

TOKENS = [[1, 2], [3]]
libc = ctypes.CDLL(None, use_errno=True)
maps = []


def onto_pages(tensor):
    area = mmap.mmap(-1, tensor.nbytes)
    maps.append(area)
    placed = torch.frombuffer(area, dtype=tensor.dtype).view(tensor.shape)
    return placed.copy_(tensor)


class PagedWeights(helper.CheckpointWeights):
    kernels = None

    def __init__(self, directory, specs):
        super().__init__(directory, specs)
        experts = [spec.name for spec in specs if spec.num_experts]
        self.tensors |= {name: onto_pages(self.tensors[name]) for name in experts}


def run(model):
    attention, logits, first = helper.BookAttention(), [], 0
    for tokens in TOKENS:
        positions = torch.arange(first, first + len(tokens))
        hidden = model(torch.tensor(tokens), positions, attention, helper.NoScope())
        logits.append(model.compute_logits(hidden))
        first += len(tokens)
    return torch.cat(logits)


def run_kernels(model):
    cache = KVCache(config, 4, 16, torch.float32, "cpu")
    runner = ModelRunner(model, helper.NoScope(), cache, "cpu", PagedWeights.kernels)
    request = Request(0, sum(TOKENS, []), SamplingParams(), block_ids=[0])
    return runner.compute_logits(runner.execute([Scheduled(request, request.num_tokens)]))


def take_away(tensor):
    assert tensor.data_ptr() % mmap.PAGESIZE == 0 and tensor.nbytes % mmap.PAGESIZE == 0
    assert libc.mprotect(ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nbytes), 0) == 0


helper.CheckpointWeights = PagedWeights
model, config, _ = helper.build(Path(sys.argv[1]))
stacks = {name: module for name, module in model.named_modules() if name.endswith(".experts")}
routed = {name: set() for name in stacks}
hooks = [
    module.register_forward_pre_hook(lambda _, args, name=name: routed[name].update(args[1].flatten().tolist()))
    for name, module in stacks.items()
]
with torch.inference_mode():
    expected = run(model)
    for hook in hooks:
        hook.remove()
    if sys.argv[3] == "kernels":
        PagedWeights.kernels, run, of_torch = load_kernels(2), run_kernels, expected[-1:]
        model = helper.build(Path(sys.argv[1]))[0]
        assert model.model.kernel_decoder is not None
        stacks = {name: model.get_submodule(name) for name in stacks}
        expected = run(model)
        torch.testing.assert_close(expected, of_torch, rtol=1e-4, atol=1e-4)
    taken = 0
    for name, module in stacks.items():
        for expert in range(config.num_experts):
            if (expert in routed[name]) == (sys.argv[2] == "routed"):
                take_away(module.w13_weight[expert])
                take_away(module.w2_weight[expert])
                taken += 1
    assert torch.equal(run(model), expected)
print(len(stacks), sum(map(len, routed.values())), taken)
"""


def step(directory, without, path):
    command = [sys.executable, "-c", STEP, str(directory), without, path]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])


@pytest.fixture(params=["torch", "kernels"])
def path(request):
    """What computes the experts; the kernels only where the processor has what they are written for."""
    if request.param == "kernels" and load_kernels(1) is None:
        pytest.skip("this processor has none of the instruction sets that the kernels are written for")
    return request.param


@pytest.mark.parametrize("architecture", ["Qwen3MoeForCausalLM", "MixtralForCausalLM"])
def test_a_step_runs_without_the_pages_of_unrouted_experts(architecture, path, tmp_path):
    run = step(write_tiny(architecture, tmp_path), "unrouted", path)
    assert run.returncode == 0, run.stderr
    layers, routed, taken = map(int, run.stdout.split())
    assert layers == 4
    assert routed + taken == layers * 8
    assert taken >= layers * 2


def test_a_step_does_read_the_pages_of_routed_experts(path, tmp_path):
    assert step(write_tiny("MixtralForCausalLM", tmp_path), "routed", path).returncode == -signal.SIGSEGV
