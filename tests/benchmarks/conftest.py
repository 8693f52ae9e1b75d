"""The benchmarks are scripts that import each other by name: their folder comes onto the path here."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
sys.path.append(str(BENCHMARKS))


@pytest.fixture(autouse=True)
def sources_on_the_path(monkeypatch):
    """Processes that a benchmark starts import this tree's package."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
