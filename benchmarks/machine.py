"""What a figure was measured on, as the first line of each benchmark's answer."""

import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from peers.measuring import foreign_share, usage


def machine() -> str:
    """Name the processor, the usable cores and the interpreter."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{models[0] if models else platform.machine()}, {cores} cores, Python {platform.python_version()}"


def features() -> list[str]:
    """Name the processor's extensions that matrix products depend on."""
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_tile", "asimd", "sve", "i8mm", "bf16")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {word for line in lines if line.startswith(("flags", "Features")) for word in line.split()}
    return [name for name in wanted if name in flags]


def idle_load(seconds: float = 1.0) -> float:
    """Say how much of a core the machine's processes use while this one waits."""
    before = usage()
    time.sleep(seconds)
    return foreign_share(before, usage())


def interleaved(commands: dict[str, list[str]], rounds: int, warm_up: int = 2) -> dict[str, float]:
    """Run each command once a round and return the median seconds of each, from start to exit.

    Interleaved, so that a slow minute of the machine falls on all of them. A command that exits non-zero ends the run.
    """
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(rounds + warm_up):
        for name, command in commands.items():
            start = time.perf_counter()
            run = subprocess.run(command, capture_output=True, text=True, check=False)
            took = time.perf_counter() - start
            if run.returncode:
                sys.exit(f"{name}: exit status {run.returncode}\n{run.stdout}{run.stderr}")
            if turn >= warm_up:
                seconds[name].append(took)
    return {name: median(values) for name, values in seconds.items()}
