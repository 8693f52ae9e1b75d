"""The pages about CUDA name tests and functions that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_field_reports_name_exists():
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/field-reports.md").read_text()))
    defined = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        defined |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 25
    assert named - defined == set()


def test_every_function_that_no_hardware_has_executed_exists_and_none_is_left_out():
    listed = set(re.findall(r"`(?:Cudart|CudaMemory)\.(\w+)`", (ROOT / "docs/gpu.md").read_text()))
    sources = [(ROOT / f"pyvllm/memory/{name}.py").read_text() for name in ("cuda", "cuda_memory")]
    defined = {name for text in sources for name in re.findall(r"^    def (\w+)", text, re.MULTILINE)}
    assert listed <= defined
    calls = sources[0].split("class Cudart")[1].split("class Allocation")[0]
    assert set(re.findall(r"^    def ([a-z]\w+)", calls, re.MULTILINE)) <= listed
