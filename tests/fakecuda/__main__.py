"""Runs the tests that need the fake CUDA runtime, in this process: `python -m tests.fakecuda [pytest arguments]`."""

import os
import sys
from pathlib import Path

import pytest

if __name__ == "__main__":
    os.environ["PYVLLM_FAKE_CUDA"] = "1"
    session = Path(__file__).parents[1] / "fakecuda_session"
    arguments = sys.argv[1:]
    is_chosen = any("fakecuda_session" in argument for argument in arguments)
    sys.exit(pytest.main([*arguments, *([] if is_chosen else [str(session)])]))
