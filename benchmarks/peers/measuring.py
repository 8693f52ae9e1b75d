"""What a row of the tables is measured with, in that row's own interpreter: the standard library alone.

A peer is a file beside this one that ends in `main(load)`. It is started in a fresh process as `python -m peers.NAME
TASK`, with TASK a JSON object of the fields of `Task`, and prints its answer, one JSON object, as its last line.
"""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Protocol

#: Another process may use this share of a core while something is timed, and two ticks of the clock that counts it.
FOREIGN_SHARE = 0.06
_TICK = os.sysconf("SC_CLK_TCK")
#: A run that is shorter than this, in seconds, is repeated, and the median counts.
_SHORT = 0.4
_REPEATS = 3


@dataclass(frozen=True, slots=True)
class Task:
    """What one process measures."""

    model: str
    """Path of a directory or of a GGUF file."""
    started: float
    """`time.monotonic()` just before this process was started."""
    settings: Mapping[str, object]
    """What the peer itself is told."""
    vocab_size: int
    seed: int
    """Makes the prompts; another one for each round, so that no peer has seen them before."""
    threads: int
    prompt: int
    """Tokens of a prompt."""
    new: int
    """Tokens of an answer."""
    prefill: int
    """Tokens of the prompt whose prefill is timed."""
    batches: Sequence[int]
    """Numbers of concurrent requests beside 1."""
    tries: int
    """How often a run is tried until nothing else uses the machine."""

    @property
    def max_len(self) -> int:
        """Tokens of the longest prompt and answer together."""
        return max(self.prompt + self.new, self.prefill + 1)


class Peer(Protocol):
    """A loaded model of some program."""

    versions: Mapping[str, str]
    sizes: Mapping[str, int]
    """Bytes that the program itself reports, by name; empty when it reports none."""

    def generate(self, prompts: Sequence[Sequence[int]], new: int) -> list[list[int]]:
        """Answer all prompts at once, greedily, with exactly `new` tokens each."""
        ...


@dataclass(frozen=True, slots=True)
class _Usage:
    """CPU seconds since the start: of the whole machine, and of this process's session."""

    wall: float
    everyone: float
    own: float


def usage() -> _Usage:
    """Read the clocks of the machine and of all processes of this session, ended children included."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _wait, irq, softirq, steal = (int(field) for field in fields[:8])
    own, session = 0, os.getsid(0)
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat_fields(entry)) and int(stat[3]) == session:
            own += sum(int(field) for field in stat[11:15])
    return _Usage(time.perf_counter(), (user + nice + system + irq + softirq + steal) / _TICK, own / _TICK)


def _read(process: str, name: str) -> str:
    """The text of /proc/PID/name; empty when the process has just ended, or is another user's and may not be read."""
    try:
        return Path("/proc", process, name).read_text()
    except OSError:
        return ""


def _stat_fields(process: str) -> list[str]:
    """The fields of /proc/PID/stat after the name, which may hold blanks; none when it cannot be read."""
    return _read(process, "stat").rpartition(")")[2].split()


def foreign_share(before: _Usage, after: _Usage) -> float:
    """Say how much of a core others used in between, 0 when it cannot be told from the clock's ticks."""
    seconds = (after.everyone - before.everyone) - (after.own - before.own) - 2 / _TICK
    return max(0.0, seconds / (after.wall - before.wall))


def memory() -> dict[str, int]:
    """Give the resident bytes of this session's processes, shared pages in full (rss) and in proportion (pss)."""
    found, session = {"rss": 0, "pss": 0}, os.getsid(0)
    for entry in os.listdir("/proc"):
        stat = _stat_fields(entry) if entry.isdigit() else []
        if stat and int(stat[3]) == session:
            for line in _read(entry, "smaps_rollup").splitlines():
                name, _, value = line.partition(":")
                if name.lower() in found:
                    found[name.lower()] += int(value.split()[0]) * 1024
    return found


def make_prompts(task: Task, kind: int, count: int, length: int) -> list[list[int]]:
    """Make prompts of random tokens, the same for every peer; kind tells the runs of a process apart."""
    source = random.Random(task.seed * 1000 + kind)
    return [[source.randrange(task.vocab_size // 16, task.vocab_size) for _ in range(length)] for _ in range(count)]


class Runs:
    """Times a peer, and remembers how quiet the machine was."""

    def __init__(self, task: Task, peer: Peer) -> None:
        """Start with nothing timed."""
        self._task = task
        self._peer = peer
        self._kind = 0
        self.foreign: dict[str, float] = {}
        """Share of a core that others used, by run."""

    def once(self, count: int, length: int, new: int) -> float:
        """Answer fresh prompts and give the seconds. Raises RuntimeError when an answer has another length."""
        self._kind += 1
        prompts = make_prompts(self._task, self._kind, count, length)
        start = time.perf_counter()
        answers = self._peer.generate(prompts, new)
        seconds = time.perf_counter() - start
        if [len(answer) for answer in answers] != [new] * count:
            lengths = [len(answer) for answer in answers]
            raise RuntimeError(f"{count} answers of {new} tokens were asked for, got answers of {lengths} tokens")
        return seconds

    def quiet(self, name: str, count: int, length: int, new: int) -> float:
        """Give the seconds of a run in which nothing else used the machine, or of the quietest try."""
        tried: list[tuple[float, float]] = []
        for _ in range(self._task.tries):
            before = usage()
            seconds = [self.once(count, length, new)]
            while seconds[0] < _SHORT and len(seconds) < _REPEATS:
                seconds.append(self.once(count, length, new))
            tried.append((foreign_share(before, usage()), median(seconds)))
            if tried[-1][0] <= FOREIGN_SHARE:
                break
        self.foreign[name], best = min(tried)
        return best


def measure(task: Task, peer: Peer) -> dict[str, object]:
    """Warm up, then time every column."""
    answer: dict[str, object] = {"loaded_s": time.monotonic() - task.started, "loaded": memory()}
    runs = Runs(task, peer)
    runs.once(1, task.prompt, 1)
    answer["after_token"] = memory()
    for count in (1, *task.batches):
        runs.once(count, task.prompt, 4)
    runs.once(1, task.prefill, 1)
    one = runs.quiet("1 (prefill)", 1, task.prompt, 1)
    whole = runs.quiet("1", 1, task.prompt, task.new)
    # Two runs of a tiny model may lie within the clock's noise; their difference then says nothing.
    answer["1"] = (task.new - 1) / (whole - one) if whole > one else None
    for count in task.batches:
        answer[str(count)] = count * task.new / runs.quiet(str(count), count, task.prompt, task.new)
    answer["prefill"] = task.prefill / runs.quiet("prefill", 1, task.prefill, 1)
    return {**answer, "foreign": runs.foreign, "versions": dict(peer.versions), "sizes": dict(peer.sizes)}


def main(load: Callable[[Task], Peer]) -> None:
    """Load, measure what the command line asks for, and print the answer."""
    task = Task(**json.loads(sys.argv[1]))
    print(json.dumps(measure(task, load(task))))
