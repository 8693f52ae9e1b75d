"""The three checkers are green, so that pytest alone decides whether the tree is sound."""

import ast
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


def test_no_function_has_more_than_forty_lines_below_its_docstring():
    found = []
    for path in sorted((ROOT / "pyvllm").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) else node.body
                if body and body[-1].end_lineno - body[0].lineno >= 40:
                    found.append(f"{path.relative_to(ROOT)}: {node.name}")
    assert found == []
