"""Runs the commands as a user does: in a process of their own."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
SERVER = (sys.executable, "-m", "pyvllm.entrypoints.openai.server")
PYVLLM = (sys.executable, "-m", "pyvllm.entrypoints.cli")


def run(command, *words, env=None, timeout=120):
    """Run a command to its end; stdout and stderr are text."""
    return subprocess.run([*command, *words], capture_output=True, text=True, cwd=ROOT, env=env, timeout=timeout)


class ServerProcess:
    """A `vllm-server` on a free port, from its ready line to `stop`."""

    def __init__(self, *words, env=None):
        self.log = []
        self.process = subprocess.Popen(
            [*SERVER, "--port", "0", "--threads", "1", *words], stderr=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, cwd=ROOT, env=env,
        )  # fmt: skip
        for line in self.process.stderr:
            self.log.append(line)
            if found := re.search(r"at (http://\S+)$", line):
                self.url = found[1]
                return
        raise AssertionError(f"the server ended with {self.process.wait()}: {''.join(self.log)}")

    def client(self, key=None):
        """An HTTP client of this server."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60)

    def stop(self, number=signal.SIGTERM):
        """Ask it to end; the exit code, with the rest of stderr added to `log`."""
        self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=30)
        self.log += stderr.splitlines(keepends=True)
        self.stdout = stdout
        return self.process.returncode
