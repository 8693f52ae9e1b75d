"""The tests on the imagined CUDA device, which need a process in which torch has not been imported yet."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SESSION = sorted(path.name for path in (ROOT / "tests/fakecuda_session").glob("test_*.py"))


@pytest.mark.timeout(3700)
def test_the_session_on_the_imagined_device_is_green():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.fakecuda", "-p", "no:cacheprovider", "--timeout=1200"]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-2000:]
    assert int(re.search(r"(\d+) passed", run.stdout)[1]) > 100


def test_the_folder_is_empty_for_every_other_test_run():
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/fakecuda_session"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert SESSION
    assert run.returncode == pytest.ExitCode.NO_TESTS_COLLECTED, run.stdout + run.stderr


def test_nothing_of_the_product_knows_of_the_fake():
    for path in (ROOT / "pyvllm").rglob("*.py"):
        assert not re.search(r"fake|imagined", path.read_text(), re.IGNORECASE), path


def test_one_module_alone_talks_to_the_bindings():
    users = [path for path in (ROOT / "pyvllm").rglob("*.py") if "cuda.bindings" in _imports(path)]
    assert [path.name for path in users] == ["cuda.py"]


def _imports(path: Path) -> str:
    return "\n".join(line for line in path.read_text().splitlines() if re.match(r"\s*(from|import) ", line))
