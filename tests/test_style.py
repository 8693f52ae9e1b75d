"""The three checkers are green, so that pytest alone decides whether the tree is sound."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent


@pytest.mark.parametrize("command", [("ruff", "check", "."), ("mypy",), ("lint-imports",)], ids=" ".join)
def test_the_checker_finds_nothing(command):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [BIN / command[0], *command[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
