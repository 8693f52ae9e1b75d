"""Times steps of a quantised GGUF model on each instruction set of the CPU kernels, and on torch.

    python benchmarks/instruction_sets.py MODEL.gguf [--rounds N]

Each row is a fresh process with one thread. A figure is the processor time of a step, the least of many, so that what
else the machine does hardly counts. torch computes with the expanded weights, once with all that the processor has and
once held to AVX2, as on a processor without AVX-512.
"""

import argparse
import json
import os
import subprocess
import sys
import time

import torch
from machine import features, machine

from pyvllm.config.engine import EngineConfig
from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.engine import loading
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.layers.kernels import load_kernels
from pyvllm.sampling_params import SamplingParams

#: Instruction set of the kernels (None: torch computes), weights, and whether torch is held to AVX2.
ROWS = {
    "avx512, stored": ("avx512", "stored", False),
    "avx512, expanded": ("avx512", "expanded", False),
    "avx2, stored": ("avx2", "stored", False),
    "avx2, expanded": ("avx2", "expanded", False),
    "torch, expanded": (None, "expanded", False),
    "torch on AVX2, expanded": (None, "expanded", True),
}
#: What keeps torch and its oneDNN from AVX-512.
HELD = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
#: Steps by name: requests, tokens computed before, and tokens of each in the step.
STEPS = {"batch 1": (1, 64, 1), "batch 8": (8, 64, 1), "prefill 512": (1, 0, 512)}
BLOCK = 16


def scheduled(requests: int, before: int, new: int) -> list[Scheduled]:
    """A step of requests that have `before` tokens in the cache; their blocks hold whatever they hold."""
    blocks = -(-(before + new) // BLOCK)
    step = []
    for number in range(requests):
        request = Request(number, [100 + number] * (before + new), SamplingParams())
        request.num_computed_tokens = before
        request.block_ids = list(range(number * blocks, (number + 1) * blocks))
        step.append(Scheduled(request, new))
    return step


def measure(model: str, name: str, rounds: int) -> dict[str, float]:
    """Milliseconds of each step, in this process."""
    instruction_set, weights, _ = ROWS[name]

    def chosen_kernels(num_threads):
        return None if instruction_set is None else load_kernels(num_threads, instruction_set)

    loading.load_kernels = chosen_kernels
    torch.set_num_threads(1)
    config = EngineConfig(model=model, device="cpu", dtype="bfloat16", threads=1, gguf_weights=weights)
    engine = LLMEngine.load(config)
    runner, found = engine._model.runner, {}
    for step_name, sizes in STEPS.items():
        step, best = scheduled(*sizes), float("inf")
        runner.compute_logits(runner.execute(step))
        for _ in range(rounds if sizes[2] == 1 else max(2, rounds // 6)):
            start = time.thread_time()
            runner.compute_logits(runner.execute(step))
            best = min(best, time.thread_time() - start)
        found[step_name] = best * 1e3
    engine.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a quantised GGUF file")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--row", choices=ROWS, help="measure this row alone, in this process, and print JSON")
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.model, options.row, options.rounds)))
        return
    print(machine(), ", ".join(features()), sep="; ")
    print(f"{'milliseconds of one core':26s}" + "".join(f"{name:>14s}" for name in STEPS))
    for name, (_, _, is_held) in ROWS.items():
        command = [sys.executable, __file__, options.model, "--rounds", str(options.rounds), "--row", name]
        run = subprocess.run(
            command, env={**os.environ, **(HELD if is_held else {})}, stdout=subprocess.PIPE, text=True, check=False
        )
        if run.returncode:
            print(f"{name:26s}  exit status {run.returncode}")
            continue
        found = json.loads(run.stdout.splitlines()[-1])
        print(f"{name:26s}" + "".join(f"{found[step]:14.2f}" for step in STEPS), flush=True)


if __name__ == "__main__":
    main()
