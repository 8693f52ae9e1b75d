"""The benchmarks of one process run to their end; of their bars only that of memory holds on a busy machine too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(*command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / command[0], *command[1:]],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(("limit", "status"), [("1000000", 0), ("0", 1)])
def test_the_benchmark_of_a_refusal_prints_its_ratio_and_ends_by_its_bar(limit, status):
    shown = run("refusal.py", "--rounds", "1", "--limit", limit)
    assert (shown.returncode, shown.stderr) == (status, "")
    assert f"(at most {float(limit):g})" in shown.stdout


# Eleven processes that load a model.
@pytest.mark.timeout(3600)
def test_the_peak_of_a_load_is_the_weights_one_tensor_and_the_interpreter(smollm2_gguf):
    shown = run("load.py", str(smollm2_gguf), "--rounds", "1", "--without-transformers")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert shown.stdout.count("pyvllm") == 7


def test_no_benchmark_stands_in_for_a_package_that_a_peer_looks_for():
    """A peer starts in their directory, where transformers once took a kernels.py for the package of that name."""
    directory = ROOT / "benchmarks"
    looks = "import sys; from transformers.utils import import_utils as found; found.is_kernels_available()"
    command = [sys.executable, "-c", f"{looks}; print(*sys.modules)"]
    shown = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=True)
    assert not {path.stem for path in directory.glob("*.py")} & set(shown.stdout.split())
