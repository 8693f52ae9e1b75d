"""The Python examples show the demo's four steps, through pyvllm and through the C library."""

import os
import re
import subprocess
import sys

import pytest

from tests.docs.markdown import ROOT
from tests.tiny_models import write_tiny


@pytest.mark.parametrize("name", ["offload_llm", "offload_clib"])
def test_example_shows_the_four_steps(name, tmp_path):
    model = write_tiny("LlamaForCausalLM", tmp_path / "model", num_hidden_layers=8)
    command = [sys.executable, str(ROOT / "examples" / "python" / f"{name}.py"), str(model), "--dtype", "float32"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "VLLM_PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stderr
    refused, uva, prefetch, document = re.split(r"\n\([1-4]\) ", done.stdout)[1:]
    assert "the model does not fit on the device: it needs" in refused
    assert "offload_num_in_group (5) must be <= offload_group_size (4)" in document
    assert_report(uva, moved="host")
    assert_report(prefetch, moved="streamed")
    answers = [step.splitlines()[1] for step in (uva, prefetch)]
    assert answers[0] == answers[1] and answers[0].startswith("The capital of France is")


def assert_report(step, moved):
    """Planned and measured bytes are equal, something moved, and the device holds no more than it was given."""
    rows = {words[0]: words[1:] for line in step.splitlines() if len(words := line.split()) == 4}
    assert [rows[place][1] for place in ("device", "host", "streamed", "buffer")] == [
        rows[place][2] for place in ("device", "host", "streamed", "buffer")
    ]
    assert int(rows[moved][2]) > 0
    assert int(rows["device"][2]) + int(rows["buffer"][2]) <= int(rows["device"][0])
