"""A process that ends while its engine computes ends in order."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_models import write_tiny

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.sampling_params import SamplingParams
offload = OffloadConfig.from_json(sys.argv[2])
engine = LLMEngine.load(EngineConfig(model=sys.argv[1], device="cpu", threads=2, offload=offload))
for number in range(4):
    engine.submit([number + 1], SamplingParams(temperature=0, max_tokens=250, ignore_eos=True))
print("leaving")
"""


@pytest.mark.parametrize("document", ["{}", '{"prefetch": {"offload_group_size": 2}}'])
def test_leaving_without_close_while_requests_run_is_no_crash(tmp_path, document):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    for _ in range(4):
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(model), document], capture_output=True, text=True, cwd=ROOT, check=False
        )
        assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr
        assert "terminate" not in done.stderr
