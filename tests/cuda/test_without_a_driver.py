"""The real bindings on a machine without a driver: what is said, and what is done instead.

Each case runs in a process of its own, because another test may have put something under the bindings.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.tiny_models import write_tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("tiny") / "m")


def has_driver() -> bool:
    code = "from pyvllm.memory.cuda import probe; raise SystemExit(0 if probe().error == 35 else 1)"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode != 0


needs_no_driver = pytest.mark.skipif(has_driver(), reason="this machine has a CUDA driver")


def load(model, device: str, before: str = "") -> subprocess.CompletedProcess:
    """Load a model in a fresh process; prints the device's name or the error's class and text."""
    code = f"""
        {before}
        from pyvllm.config.engine import EngineConfig
        from pyvllm.engine.llm_engine import LLMEngine
        from pyvllm.errors import VllmError
        try:
            engine = LLMEngine.load(EngineConfig(model={str(model)!r}, device={device!r}, max_model_len=64))
            print(engine.offload_report()["capacity"]["device_name"])
            engine.close()
        except VllmError as error:
            print(type(error).__name__, error.status, error)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run


@needs_no_driver
def test_a_named_cuda_device_is_a_model_load_error_with_error_35s_text(model):
    run = load(model, "cuda")
    assert run.stdout.startswith("ModelLoadError 2 device cuda: CUDA was asked for and is not usable: ")
    text = "CUDA driver version is insufficient for CUDA runtime version"
    assert f"cudaErrorInsufficientDriver (35): {text}" in run.stdout


@needs_no_driver
def test_auto_falls_to_the_cpu_with_one_line_that_says_so(model):
    run = load(model, "auto")
    assert run.stdout.strip() == "cpu"
    lines = [line for line in run.stderr.splitlines() if "CUDA" in line]
    assert len(lines) == 1
    assert "no CUDA device (cudaErrorInsufficientDriver (35)" in lines[0]
    assert "computing on the CPU" in lines[0]


@pytest.mark.parametrize("error", ["cudaErrorMemoryAllocation", "cudaErrorInitializationError", "cudaErrorUnknown"])
def test_any_other_error_does_not_fall_back(model, error):
    """Another answer of the runtime, through the real bindings' types."""
    before = (
        f"from cuda.bindings import runtime; runtime.cudaGetDeviceCount = lambda: (runtime.cudaError_t.{error}, None)"
    )
    run = load(model, "auto", before)
    assert run.stdout.startswith("ModelLoadError 2 device auto: CUDA was asked for and is not usable: ")
    assert error in run.stdout


def test_a_missing_bindings_package_is_no_missing_device(model):
    run = load(model, "auto", "import sys; sys.modules['cuda.bindings'] = None")
    assert "ModelLoadError 2" in run.stdout
    assert "cuda-bindings cannot be imported" in run.stdout
