"""Times steps of a quantised GGUF model on each instruction set of the CPU kernels, and on torch.

    python benchmarks/instruction_sets.py MODEL.gguf [--rounds N] [--turns N] [--threads N]

Each row is a fresh process. With one thread, a figure is the processor time of a step, the least of many, so that what
else the machine does hardly counts; with more it is the time that passes, which needs a quiet machine. The rows are
measured in turn, `--turns` times. torch computes with the expanded weights, once with all that the processor has and
once held to AVX2, as on a processor without AVX-512. The last lines say what `gguf_weights` `auto` chooses here.
"""

import argparse
import json
import os
import subprocess
import sys
import time

from machine import features, machine

from pyvllm.config.engine import EngineConfig
from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.engine.preview import prepare
from pyvllm.layers.kernel_library import usable_sets
from pyvllm.sampling_params import SamplingParams

#: What computes, weights, and whether torch is held to AVX2.
ROWS = {
    "avx512, stored": ("avx512", "stored", False),
    "avx512, expanded": ("avx512", "expanded", False),
    "avx2, stored": ("avx2", "stored", False),
    "avx2, expanded": ("avx2", "expanded", False),
    "torch, expanded": ("torch", "expanded", False),
    "torch on AVX2, expanded": ("torch", "expanded", True),
}
#: What keeps torch and its oneDNN from AVX-512.
HELD = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
#: Steps by name: requests, tokens computed before, and tokens of each in the step.
STEPS = {"batch 1": (1, 64, 1), "batch 8": (8, 64, 1), "batch 32": (32, 64, 1), "prefill 512": (1, 0, 512)}
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


def config_of(model: str, cpu_kernels: str, weights: str, threads: int) -> EngineConfig:
    return EngineConfig(
        model=model,
        device="cpu",
        dtype="bfloat16",
        max_num_seqs=32,
        threads=threads,
        gguf_weights=weights,
        cpu_kernels=cpu_kernels,
    )


def measure(model: str, name: str, rounds: int, threads: int) -> dict[str, float]:
    """Milliseconds of each step, in this process."""
    cpu_kernels, weights, _ = ROWS[name]
    engine = LLMEngine.load(config_of(model, cpu_kernels, weights, threads))
    clock = time.thread_time if threads == 1 else time.perf_counter
    runner, found = engine._model.runner, {}
    for step_name, sizes in STEPS.items():
        step, best = scheduled(*sizes), float("inf")
        runner.compute_logits(runner.execute(step))
        for _ in range(rounds if sizes[2] == 1 else max(2, rounds // 6)):
            start = clock()
            runner.compute_logits(runner.execute(step))
            best = min(best, clock() - start)
        found[step_name] = best * 1e3
    engine.close()
    return found


def measure_apart(options: argparse.Namespace, name: str) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, __file__, options.model, "--row", name]
    command += ["--rounds", str(options.rounds), "--threads", str(options.threads)]
    held = HELD if ROWS[name][2] else {}
    run = subprocess.run(command, env={**os.environ, **held}, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(run.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a quantised GGUF file")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--row", choices=ROWS, help="measure this row alone, in this process, and print JSON")
    options = parser.parse_args()
    if options.row:
        print(json.dumps(measure(options.model, options.row, options.rounds, options.threads)))
        return
    usable = usable_sets()
    best = {name: dict.fromkeys(STEPS, float("inf")) for name in ROWS if ROWS[name][0] in (*usable, "torch")}
    for _ in range(options.turns):
        for name in best:
            found = measure_apart(options, name)
            best[name] = {step: min(best[name][step], found[step]) for step in STEPS}
    print(machine(), ", ".join(features()), sep="; ")
    print(f"{f'ms on {options.threads} threads':26s}" + "".join(f"{name:>14s}" for name in STEPS))
    for name in best:
        print(f"{name:26s}" + "".join(f"{best[name][step]:14.2f}" for step in STEPS), flush=True)
    for name in usable:
        prepared = prepare(config_of(options.model, name, "auto", options.threads))
        prepared.checkpoint.close()
        grows = any("are expanded to" in note for note in prepared.notes)
        print(f"auto, {name}: {'expanded' if grows else 'stored'}, {prepared.plan.weight_bytes} bytes")


if __name__ == "__main__":
    main()
