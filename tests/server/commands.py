"""Runs the commands as a user does: in a process of their own."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SERVER = (sys.executable, "-m", "pyvllm.entrypoints.openai.server")
PYVLLM = (sys.executable, "-m", "pyvllm.entrypoints.cli")


def run(command, *words, env=None, timeout=120):
    """Run a command to its end; stdout and stderr are text."""
    return subprocess.run([*command, *words], capture_output=True, text=True, cwd=ROOT, env=env, timeout=timeout)
