"""A refusal is made without torch, whoever asks."""

import subprocess
import sys

import pytest

from tests.tiny_models import write_tiny

CODE = """
import sys
from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.start import load_engine
from pyvllm.errors import VllmError
document, model = sys.argv[1:]
try:
    load_engine(EngineConfig(model=model, device="cpu", offload=OffloadConfig.from_json(document)))
except VllmError as error:
    print(type(error).__name__, error)
print("torch" in sys.modules, "numpy" in sys.modules)
"""


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ('{"vllm_cpp": {"device_fit": {"weight_budget_bytes": 1000}}}', "DoesNotFit"),
        ('{"prefetch": {"offload_group_size": 99}}', "InvalidArgument"),
        ('{"uva": {"cpu_offload_gb": 1, "cpu_offload_params": ["nope"]}}', "InvalidArgument"),
    ],
)
def test_a_load_that_is_refused_imports_neither_torch_nor_numpy(tmp_path, document, kind):
    model = write_tiny("LlamaForCausalLM", tmp_path / "m")
    done = subprocess.run(
        [sys.executable, "-c", CODE, document, str(model)], capture_output=True, text=True, check=True
    )
    first, last = done.stdout.splitlines()
    assert first.startswith(kind)
    assert last == "False False"


def test_a_model_that_is_not_there_is_refused_without_torch(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", CODE, "", str(tmp_path / "no")], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "False False"
