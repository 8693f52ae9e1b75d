"""examples/c/complete.c: it compiles everywhere, continues a text, and shows a model on a device that is too small."""

import re

import pytest

from tests.capi.toolchain import ROOT, compile_program, run, succeed
from tests.tiny_models import write_tiny

EXAMPLE = ROOT / "examples" / "c" / "complete.c"
COMPILERS = [("gcc", "-std=c11"), ("gcc", "-std=c17"), ("g++", "-std=c++17", "-x", "c++")]


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    """The compiled example."""
    return compile_program(EXAMPLE, tmp_path_factory.mktemp("example") / "complete")


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A Llama of eight layers, most of whose bytes are in the layers."""
    return write_tiny("LlamaForCausalLM", tmp_path_factory.mktemp("deep") / "model", num_hidden_layers=8)


@pytest.mark.parametrize("compiler", COMPILERS, ids=" ".join)
def test_the_example_compiles_without_a_warning(tmp_path, compiler):
    assert compile_program(EXAMPLE, tmp_path / "complete", compiler=compiler).exists()


def test_the_example_continues_a_text(complete, tiny):
    plain = succeed(complete, tiny, "--prompt", "AB", "--max-tokens", 5, "--dtype", "float32")
    offload = ("--offload-config", '{"uva": {"cpu_offload_gb": 1}}')
    moved = succeed(complete, tiny, "--prompt", "AB", "--max-tokens", 5, *offload)
    assert plain.startswith("AB")
    assert len(plain) > len("AB\n")
    assert moved == plain


def _tables(text):
    """Return, for each table, its rows by place: asked, planned, measured."""
    rows = re.findall(r"^(device|host|streamed|buffers) +(\S+) +(\d+) +(\d+)$", text, re.MULTILINE)
    found = [(place, asked, int(planned), int(measured)) for place, asked, planned, measured in rows]
    return [{place: numbers for place, *numbers in found[start : start + 4]} for start in range(0, len(found), 4)]


def test_the_demonstration_shows_its_four_steps(complete, deep):
    done = run(complete, deep, "demo", "--prompt", "AB", "--max-tokens", 8)
    assert done.returncode == 0 and "offload_prefetch_step" not in done.stderr, done.stderr
    text = done.stdout
    opening, refused, uva, prefetch, error = re.split(r"\n\(\d\) ", text)
    total, device = map(int, re.findall(r"\d+", opening))
    assert "VLLM_ERR_MODEL_LOAD: the model does not fit on the device" in refused
    assert "offload_num_in_group (5) must be <= offload_group_size (4)" in error
    for table in _tables(text):
        assert all(planned == measured for _, planned, measured in table.values())
        assert table["device"][1] + table["buffers"][1] <= device
        assert sum(table[place][1] for place in ("device", "host", "streamed")) == total
    assert [table["host"][1] > 0 for table in _tables(text)] == [True, False]
    assert uva.splitlines()[1].startswith("AB")
    assert uva.partition("\n")[2].partition("\nbytes ")[0] == prefetch.partition("\n")[2].partition("\nbytes ")[0]


def test_a_wrong_command_line_says_the_right_one(complete):
    for wrong in ([], ["m", "--prompt"], ["m", "--max-tokens", "x"], ["m", "demo", "--offload-config", "{}"]):
        done = run(complete, *wrong)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("usage: complete MODEL_PATH")
