"""What a load shows: a bar on a terminal, a log line every ten seconds elsewhere, and nothing of it in the way."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyvllm import logger
from pyvllm.engine.progress import LOG_S, ProgressLine, bar
from tests.terminal import on_terminal
from tests.tiny_models import write_tiny

ROOT = Path(__file__).parents[3]
LOAD = """
import sys
from pyvllm import LLM
LLM(sys.argv[1], device="cpu", threads=1, progress=lambda done, planned, name: done < int(sys.argv[2])).close()
"""


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def lines():
    """Every line that is logged while the test runs."""
    found = []
    logger.set_sink(lambda level, text: found.append(text))
    yield found
    logger.set_sink(None)


def test_elsewhere_a_line_comes_every_ten_seconds_with_bytes_and_name(lines):
    clock = Clock()
    progress = ProgressLine(None, clock)
    for second in range(35):
        clock.now = float(second)
        assert progress(second * 100, 4000, f"weight {second}")
    assert lines == [
        "[vllm.cpp] loading 1,000 of 4,000 bytes (25 %), 10.0 s: weight 10",
        "[vllm.cpp] loading 2,000 of 4,000 bytes (50 %), 20.0 s: weight 20",
        "[vllm.cpp] loading 3,000 of 4,000 bytes (75 %), 30.0 s: weight 30",
    ]


def test_a_short_load_logs_no_progress_and_the_end_of_a_long_one_is_not_logged_twice(lines):
    clock = Clock()
    progress = ProgressLine(None, clock)
    progress(10, 10, "all")
    clock.now = 2 * LOG_S
    progress(10, 10, "all")
    assert lines == []


def test_the_caller_hears_every_weight_and_its_answer_is_passed_on(lines):
    heard = []
    progress = ProgressLine(lambda *news: heard.append(news) or news[2] != "b", Clock())
    assert [progress(1, 3, "a"), progress(2, 3, "b")] == [True, False]
    assert heard == [(1, 3, "a"), (2, 3, "b")]


@pytest.mark.parametrize(
    ("done", "planned", "filled"), [(0, 100, 0), (50, 100, 12), (99, 100, 23), (7, 7, 24), (0, 0, 24)]
)
def test_a_bar_is_full_only_when_all_is_done(done, planned, filled):
    assert bar(done, planned) == "[" + "#" * filled + "." * (24 - filled) + "]"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("m"))


def load_on_terminal(*words):
    return on_terminal([sys.executable, "-c", LOAD, *words], cwd=ROOT)


def test_a_terminal_shows_a_bar_that_ends_full_on_a_line_of_its_own(model):
    code, shown = load_on_terminal(str(model), str(10**9))
    assert code == 0
    last = [part for part in shown.split("\r\x1b[K") if part.startswith("[")][-1]
    assert last.startswith("[" + "#" * 24 + "] loading ") and "(100 %)" in last.splitlines()[0]


def test_a_load_that_is_cancelled_on_a_terminal_ends_its_line_and_says_so(model):
    code, shown = load_on_terminal(str(model), "100000")
    assert code == 1
    assert "Cancelled: the load was cancelled after" in shown.splitlines()[-1]


def test_elsewhere_no_bar_is_drawn(model):
    command = [sys.executable, "-c", LOAD, str(model), str(10**9)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0 and done.stdout == ""
    assert "\x1b" not in done.stderr and "[#" not in done.stderr
