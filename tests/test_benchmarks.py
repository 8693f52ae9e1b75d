"""The bars of the benchmarks that hold on a busy machine too: a ratio of interleaved medians, and memory."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / command[0], *command[1:]],
        env=environment, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip


def test_a_c_process_refuses_a_configuration_within_twice_the_time_of_importing_json():
    shown = run("refusal.py", "--rounds", "15")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "ratio" in shown.stdout


def test_the_peak_of_a_load_is_the_weights_one_tensor_and_the_interpreter(smollm2_gguf):
    shown = run("load.py", str(smollm2_gguf), "--rounds", "1", "--without-transformers")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count("pyvllm") == 7
