"""Runs the commands as a user does: in a process of their own."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
SERVER = (sys.executable, "-m", "pyvllm.entrypoints.openai.server")
PYVLLM = (sys.executable, "-m", "pyvllm.entrypoints.cli")


def run(command, *words, env=None, timeout=1000):
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
        return httpx.Client(base_url=self.url, headers=headers, timeout=1000)

    def stop(self, number=signal.SIGTERM):
        """Ask it to end; the exit code, with the rest of stderr added to `log`."""
        self.process.send_signal(number)
        stdout, stderr = self.process.communicate(timeout=1000)
        self.log += stderr.splitlines(keepends=True)
        self.stdout = stdout
        return self.process.returncode


def metric(client, name, **labels):
    """Sum of a metric's samples that have these labels."""
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))


def num_requests(client):
    """How many prompts run or wait."""
    return metric(client, "vllm:num_requests_running") + metric(client, "vllm:num_requests_waiting")


def until(condition):
    """Ask again until it is so; the timeout of the suite ends what never comes."""
    while not condition():
        time.sleep(0.01)


@contextmanager
def endless(client):
    """A stream of 2000 answers that has begun, and that no machine finishes while it is looked at."""
    body = {"prompt": ["a"] * 2000, "temperature": 0, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        lines = answer.iter_lines()  # given up, it would end the answer
        assert next(lines).startswith("data: ")
        yield
