"""The rows of the tables: which program, on which files, with which settings; and how a row is run."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from peers.measuring import Task

HERE = Path(__file__).parent
#: The files of `peers/`, each named like the module that it imports.
PEERS = ("pyvllm", "transformers", "accelerate", "llama_cpp", "vllm")
#: Seconds after which a row is given up.
_PATIENCE = 900
_EXPERTS = '{"uva": {"cpu_offload_gb": 1024, "cpu_offload_params": ["experts"]}}'


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a table."""

    name: str
    peer: str
    """A file of `peers/`."""
    files: str
    """Which form of the model: a name that `serve.py` has made a path for."""
    kind: str
    """Rows of one kind have the same weights, and are compared."""
    settings: Mapping[str, object] = field(default_factory=dict)
    batches: bool = True
    """Whether concurrent requests are measured."""

    @property
    def is_ours(self) -> bool:
        """Whether this is a row of this project."""
        return self.peer == "pyvllm"


DENSE = (
    Row("pyvllm bf16", "pyvllm", "directory", "bf16"),
    Row("pyvllm Q4_1, stored", "pyvllm", "gguf", "Q4_1", {"gguf_weights": "stored"}),
    Row("pyvllm Q4_1, expanded", "pyvllm", "gguf", "Q4_1", {"gguf_weights": "expanded"}),
    Row("transformers bf16", "transformers", "directory", "bf16"),
    Row("accelerate cpu_offload", "accelerate", "directory", "bf16", {"offload": "cpu"}, batches=False),
    Row("accelerate disk_offload", "accelerate", "directory", "bf16", {"offload": "disk"}),
    Row("llama.cpp BF16", "llama_cpp", "gguf-bf16", "bf16"),
    Row("llama.cpp Q4_1", "llama_cpp", "gguf", "Q4_1"),
    Row("vLLM, eager", "vllm", "directory", "bf16", {"enforce_eager": True}),
    Row("vLLM, compiled", "vllm", "directory", "bf16"),
)
MOE = (
    Row("pyvllm bf16", "pyvllm", "moe", "bf16"),
    Row("pyvllm bf16, uva on experts", "pyvllm", "moe", "bf16", {"offload": _EXPERTS}),
    Row("pyvllm Q8_0, stored", "pyvllm", "moe-q8_0", "Q8_0", {"gguf_weights": "stored"}),
    Row("pyvllm Q8_0, uva on experts", "pyvllm", "moe-q8_0", "Q8_0", {"gguf_weights": "stored", "offload": _EXPERTS}),
    Row("transformers bf16", "transformers", "moe", "bf16"),
    Row("llama.cpp BF16", "llama_cpp", "moe-bf16", "bf16"),
    Row("llama.cpp Q8_0", "llama_cpp", "moe-q8_0", "Q8_0"),
    Row("vLLM, eager", "vllm", "moe", "bf16", {"enforce_eager": True}),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked of every row."""

    prompt: int = 32
    new: int = 128
    prefill: int = 512
    batches: tuple[int, ...] = (8, 32)
    rounds: int = 3
    tries: int = 3

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the columns of tokens a second."""
        return ("1", *map(str, self.batches), "prefill")


#: Seconds instead of minutes: shows that everything runs, and measures nothing.
QUICK = Sizes(prompt=8, new=4, prefill=16, batches=(2, 3), rounds=1, tries=1)


def has_module(python: str, peer: str) -> bool:
    """Say whether an interpreter can run a peer."""
    look = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({peer!r}) is None)"
    return not subprocess.run([python, "-c", look], capture_output=True, check=False).returncode


def run_row(row: Row, python: str, model: str, vocab_size: int, sizes: Sizes, seed: int) -> dict[str, object]:
    """Measure a row once, in a fresh process; an answer with the one key `error` when it failed."""
    task = Task(
        model=model,
        started=0.0,
        settings=row.settings,
        vocab_size=vocab_size,
        seed=seed,
        threads=len(os.sched_getaffinity(0)),
        prompt=sizes.prompt,
        new=sizes.new,
        prefill=sizes.prefill,
        batches=sizes.batches if row.batches else (),
        tries=sizes.tries,
    )
    return in_session([python, "-m", f"peers.{row.peer}"], asdict(task))


def in_session(command: Sequence[str], task: dict[str, object]) -> dict[str, object]:
    """Run a command of this folder in a session of its own, whose processes it counts, and give its answer."""
    task["started"] = time.monotonic()
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, json.dumps(task)], cwd=HERE, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        try:
            out, errors = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            # The whole session: a peer may have started processes that would disturb the next row.
            os.killpg(process.pid, signal.SIGKILL)
            return {"error": f"gave no answer in {_PATIENCE} s"}
    if process.returncode:
        lines = [line for line in errors.splitlines() if line.strip()] or [f"exit status {process.returncode}"]
        return {"error": lines[-1].strip()[:300]}
    return json.loads(out.splitlines()[-1])


def here(*arguments: str, python: str = sys.executable) -> None:
    """Run a file or module of this folder; its failure ends the benchmark with what it printed."""
    done = subprocess.run([python, *arguments], cwd=HERE, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments[:3])} failed\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
