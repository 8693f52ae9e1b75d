"""Every benchmark runs to its end with few tokens, prints its tables, and refuses what it cannot measure."""

import subprocess
import sys

import pytest

from tests.benchmarks.conftest import BENCHMARKS


def run(*command):
    command = [sys.executable, str(BENCHMARKS / command[0]), *map(str, command[1:])]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1000)


@pytest.mark.parametrize("name", ["serve.py", "offload.py"])
def test_a_model_that_is_no_file_is_refused_at_once(name):
    done = run(name, "/nowhere.gguf")
    assert done.returncode == 2 and "'/nowhere.gguf' is no file" in done.stderr


def test_help_names_every_table_and_every_peers_interpreter():
    shown = run("serve.py", "--help").stdout
    for text in ("{dense,moe,scan}", "--python-llama-cpp", "--python-vllm", "--python-transformers", "--quick"):
        assert text in shown


def test_the_dense_table_is_printed_and_written_into_the_page(smollm2_gguf, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("<!-- serve dense -->\n<!-- end dense -->\n")
    done = run("serve.py", smollm2_gguf, "--quick", "--rows", "pyvllm bf16", "--write", page)
    # 1 and not 2: a bar is not met by a run of 4 tokens, which is what it says.
    assert done.returncode in (0, 1), done.stderr
    assert "| pyvllm bf16 |" in done.stdout and "GB/s" in done.stdout, done.stdout + done.stderr
    assert done.stdout.strip() in page.read_text()


def test_the_table_of_experts_runs_with_and_without_offload(smollm2_gguf):
    done = run("serve.py", smollm2_gguf, "--quick", "--table", "moe", "--rows", "pyvllm bf16")
    assert "| pyvllm bf16 |" in done.stdout and "| pyvllm bf16, uva on experts |" in done.stdout, done.stderr
    assert "failed" not in done.stdout


def test_the_offload_bars_are_printed_with_what_they_are_made_of(smollm2_gguf):
    done = run("offload.py", smollm2_gguf, "--quick")
    assert "| uva / resident, tokens/s | ≥ 0.95 |" in done.stdout, done.stdout + done.stderr
    assert "uva: 135.6 of 269.0 MB; prefetch: 49.6 MB streamed a step" in done.stdout
