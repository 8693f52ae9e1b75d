"""What every row is timed with: the prompts, the clocks, and the answer of a whole process."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from peers.measuring import Runs, Task, foreign_share, make_prompts, measure, memory, usage
from rows import QUICK, Row, in_session, run_row

from tests.tiny_models import VOCAB_SIZE, write_tiny

TASK = Task("m", 0.0, {}, 1000, 3, 1, prompt=8, new=4, prefill=16, batches=(2,), tries=1)
BURN = "import time\nend = time.perf_counter() + 0.6\nwhile time.perf_counter() < end: pass"


class CountingPeer:
    """Answers every prompt with as many tokens as are asked, or with `short` fewer."""

    versions = {"counting": "1"}
    sizes = {"weights": 7}

    def __init__(self, short=0):
        self.short, self.asked = short, []

    def generate(self, prompts, new):
        self.asked.append(([len(prompt) for prompt in prompts], new))
        time.sleep(0.02 * new)
        return [[0] * (new - self.short) for _ in prompts]


def test_prompts_depend_on_seed_and_run_and_on_nothing_else():
    first = make_prompts(TASK, 1, 4, 8)
    assert first == make_prompts(TASK, 1, 4, 8) and len({tuple(prompt) for prompt in first}) == 4
    assert first != make_prompts(TASK, 2, 4, 8)
    assert all(0 <= token < 1000 for prompt in first for token in prompt)


def test_every_column_is_measured_with_its_own_number_of_prompts_and_tokens():
    peer = CountingPeer()
    answer = measure(TASK, peer)
    assert set(answer) >= {"loaded_s", "loaded", "after_token", "1", "2", "prefill", "foreign", "versions", "sizes"}
    assert ([8], 1) in peer.asked and ([8], 4) in peer.asked and ([8, 8], 4) in peer.asked and ([16], 1) in peer.asked
    # The peer takes 20 ms for a token: 3 tokens in the 60 ms between the answers of 1 and of 4.
    assert 10 < answer["1"] < 100 and answer["2"] <= 100


def test_an_answer_of_another_length_is_no_measurement():
    with pytest.raises(RuntimeError, match=r"2 answers of 4 tokens were asked for, got answers of \[3, 3\] tokens"):
        Runs(TASK, CountingPeer(short=1)).once(2, 8, 4)


def test_a_child_that_has_ended_is_counted_as_ones_own():
    before = usage()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert usage().own - before.own > 0.1


def test_a_running_process_of_another_session_is_seen():
    with subprocess.Popen([sys.executable, "-c", BURN.replace("0.6", "30")], start_new_session=True) as other:
        time.sleep(0.3)
        before = usage()
        time.sleep(0.5)
        share = foreign_share(before, usage())
        other.kill()
    assert share > 0.06


def test_memory_counts_the_processes_of_the_session():
    alone = memory()["rss"]
    hold = "x = b'1' * 50_000_000\nprint('held', flush=True)\ninput()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", hold], stdin=pipe, stdout=pipe, text=True) as held:
        held.stdout.readline()
        both = memory()["rss"]
        held.communicate("\n")
    assert both - alone > 50_000_000


def test_a_process_of_the_session_that_may_not_be_read_is_left_out(monkeypatch):
    read_text = Path.read_text

    def refuse_parent(path, *arguments, **options):
        if path == Path("/proc", str(os.getppid()), "smaps_rollup"):
            raise PermissionError(13, "Permission denied", str(path))
        return read_text(path, *arguments, **options)

    monkeypatch.setattr(os, "getsid", lambda _: int(read_text(Path("/proc/self/stat")).rpartition(")")[2].split()[3]))
    monkeypatch.setattr(Path, "read_text", refuse_parent)
    assert memory()["rss"] > 10_000_000


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
