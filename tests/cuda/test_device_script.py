"""The script that waits for a real GPU runs, from its first line to its last, on the imagined device."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(3700)
def test_the_device_script_runs_through_and_fails_nothing(tmp_path):
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    command = [ROOT / "tests/device/run.sh", tmp_path, "--dry"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    document = json.loads((tmp_path / "results.json").read_text())
    assert document["failures"] == []
    assert document["is_dry"] is True
    assert {"golden", "exactness", "bandwidth", "mixture"} <= set(document["results"])
    assert "nothing failed" in run.stdout
    # What was not measured on a device is not kept as if it had been.
    assert not (tmp_path / "golden.json").exists()


def test_without_a_device_the_script_says_so_and_measures_nothing(tmp_path):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "tests.device", "--out", tmp_path / "out"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert run.stdout.startswith("no CUDA device: cudaError")
    assert not (tmp_path / "out").exists()
