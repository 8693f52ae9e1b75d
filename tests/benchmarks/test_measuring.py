"""What every row is timed with: the prompts, the clocks, and the answer of a whole process."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from peers import measuring
from peers.measuring import Runs, Task, make_prompts, measure, usage
from rows import QUICK, Row, in_session, run_row

from tests.tiny_models import VOCAB_SIZE, write_tiny

TASK = Task("m", 0.0, {}, 1000, 3, 1, prompt=8, new=4, prefill=16, batches=(2,), tries=1)
needs_smaps = pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="this kernel has no /proc/PID/smaps_rollup"
)
needs_stat = pytest.mark.skipif(not usage().everyone, reason="this kernel counts no machine's ticks in /proc/stat")


class CountingPeer:
    """Answers every prompt with as many tokens as are asked, or with `short` fewer, at 20 ms of its clock a token."""

    versions = {"counting": "1"}
    sizes = {"weights": 7}

    def __init__(self, short=0):
        self.short, self.asked, self.now = short, [], 0.0
        self.clock = SimpleNamespace(perf_counter=lambda: self.now, monotonic=lambda: self.now)

    def generate(self, prompts, new):
        self.asked.append(([len(prompt) for prompt in prompts], new))
        self.now += 0.02 * new
        return [[0] * (new - self.short) for _ in prompts]


def alone(script):
    """Run a script that measures, in a session that holds nothing else, and give the number that it prints."""
    answer = in_session([sys.executable, "-c", f"from peers.measuring import *\n{script}"], {})
    assert isinstance(answer, int | float), answer
    return answer


def test_prompts_depend_on_seed_and_run_and_on_nothing_else():
    first = make_prompts(TASK, 1, 4, 8)
    assert first == make_prompts(TASK, 1, 4, 8) and len({tuple(prompt) for prompt in first}) == 4
    assert first != make_prompts(TASK, 2, 4, 8)
    assert all(0 <= token < 1000 for prompt in first for token in prompt)


def test_every_column_is_measured_with_its_own_number_of_prompts_and_tokens(monkeypatch):
    peer = CountingPeer()
    monkeypatch.setattr(measuring, "time", peer.clock)
    answer = measure(TASK, peer)
    assert set(answer) >= {"loaded_s", "loaded", "after_token", "1", "2", "prefill", "foreign", "versions", "sizes"}
    assert ([8], 1) in peer.asked and ([8], 4) in peer.asked and ([8, 8], 4) in peer.asked and ([16], 1) in peer.asked
    # 3 tokens in the 60 ms between the answers of 1 and of 4; 8 tokens of two in 80 ms; a prompt of 16 in 20 ms.
    assert (answer["1"], answer["2"], answer["prefill"]) == pytest.approx((50, 100, 800))


def test_an_answer_of_another_length_is_no_measurement():
    with pytest.raises(RuntimeError, match=r"2 answers of 4 tokens were asked for, got answers of \[3, 3\] tokens"):
        Runs(TASK, CountingPeer(short=1)).once(2, 8, 4)


#: Computes for as long as the first argument says, by the clock of its own computing, and says so again and again.
BURN = """
import sys, time
while True:
    end = time.process_time() + 0.5
    while time.process_time() < end: pass
    print(flush=True)
    if sys.argv[1] == "once": break
"""


def test_a_child_that_has_ended_is_counted_as_ones_own():
    burnt = alone(f"""
import subprocess
before = usage()
subprocess.run([sys.executable, "-c", {BURN!r}, "once"], stdout=subprocess.DEVNULL, check=True)
print(usage().own - before.own)
""")
    assert burnt > 0.4


@needs_stat
def test_a_running_process_of_another_session_is_seen():
    seconds = alone(f"""
import subprocess
with subprocess.Popen(
    [sys.executable, "-c", {BURN!r}, "always"], stdout=subprocess.PIPE, text=True, start_new_session=True
) as other:
    other.stdout.readline()
    before = usage()
    other.stdout.readline(), other.stdout.readline()
    after = usage()
    other.kill()
print(foreign_share(before, after) * (after.wall - before.wall))
""")
    # What it computed between two lines, less two ticks of the clock that counts it.
    assert seconds > 0.4


#: Holds 50 MB in a child of this session until it is told to end.
HOLD = """
import subprocess
hold = "x = b'1' * 50_000_000; print(flush=True); input()"
alone = memory()["rss"]
with subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
    held.stdout.readline()
    {beside}
    print(memory()["rss"] - alone)
    held.communicate("\\n")
"""


@needs_smaps
def test_memory_counts_the_processes_of_the_session():
    assert alone(HOLD.format(beside="")) > 50_000_000


@needs_smaps
def test_a_process_of_the_session_that_may_not_be_read_is_left_out():
    refuse = """
    read_text = Path.read_text
    def refused(path, *arguments, **options):
        if path == Path("/proc", str(held.pid), "smaps_rollup"):
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)
    Path.read_text = refused
    """
    assert alone(HOLD.format(beside=refuse.strip())) < 50_000_000


def test_a_failed_process_gives_its_last_line_as_the_error():
    answer = in_session([sys.executable, "-c", "raise ValueError('no such model')"], {})
    assert answer == {"error": "ValueError: no such model"}


@pytest.mark.parametrize("peer", ["pyvllm", "transformers"])
def test_a_row_runs_in_a_process_of_its_own(peer, tmp_path):
    model = write_tiny("LlamaForCausalLM", tmp_path / "model", dtype="bfloat16")
    answer = run_row(Row("tiny", peer, "directory", "bf16"), sys.executable, str(model), VOCAB_SIZE, QUICK, 0)
    assert answer["loaded_s"] > 0 and answer["after_token"]["rss"] > answer["loaded"]["pss"] > 50e6, answer
    assert answer["2"] > 0 and answer["3"] > 0 and answer["prefill"] > 0
    assert peer in answer["versions"] and json.dumps(answer)
