"""C programs with no Python on their side: engines, handles, callbacks, threads, processes, memory."""

import json
import shutil
import struct
import subprocess
import sys

import pytest

from tests.capi.toolchain import CLEAN_ENVIRONMENT, LIBRARY, PROGRAMS, ROOT, compile_program, run, succeed
from tests.terminal import on_terminal
from tests.tiny_models import write_tiny

PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
MISSING_HOME = {**CLEAN_ENVIRONMENT, "VLLM_PYTHON_HOME": "/nonexistent"}


def test_defaults_versions_and_frees_work_without_python(program):
    assert succeed(program("light"), env=MISSING_HOME) == ""


@pytest.mark.parametrize("name", ["engine", "handles", "callbacks", "threads", "process", "no_room"])
def test_the_program_finds_every_claim_true_and_stdout_is_its_own(program, tiny, name):
    assert succeed(program(name), tiny) == ""


def test_eight_first_calls_at_once_start_python_once(program):
    assert succeed(program("first_call")) == ""


def test_a_library_opened_locally_works_and_outlives_dlclose(program, tiny):
    assert succeed(program("local"), LIBRARY, tiny) == ""


@pytest.mark.parametrize("place", ["main", "callback"])
def test_r142_the_process_ends_cleanly_while_three_threads_generate(program, tiny, place):
    # Several at once: a thread that exits must also be right when it does not get a core at once.
    command = [program("ending"), tiny, place]
    for _ in range(3):
        pipe = subprocess.PIPE
        ending = [subprocess.Popen(command, env=CLEAN_ENVIRONMENT, stdout=pipe, stderr=pipe) for _ in range(4)]
        for process in ending:
            out, errors = process.communicate(timeout=1000)
            assert (process.returncode, out) == (0, b""), errors.decode()


@pytest.mark.parametrize("name", ["engine", "handles", "light", "requests"])
def test_the_program_is_clean_under_the_address_and_undefined_behaviour_sanitizers(tmp_path, tiny, name):
    more = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    checked = compile_program(PROGRAMS / f"{name}.c", tmp_path / name, more=more)
    leaks_of_torch = {"ASAN_OPTIONS": "detect_leaks=0"}
    assert succeed(checked, tiny, env={**CLEAN_ENVIRONMENT, **leaks_of_torch}) == ""


def test_r134_twenty_loads_and_frees_leave_the_memory_flat(program, tiny):
    grown_kib = int(succeed(program("reload"), tiny, 20))
    weights_kib = (tiny / "model.safetensors").stat().st_size // 1024
    assert grown_kib < 2 * weights_kib + 2048


def _broken(tmp_path, change):
    directory = write_tiny("LlamaForCausalLM", tmp_path, num_hidden_layers=1, shards=2)
    change(directory)
    return directory


def _set_config(**fields):
    def change(directory):
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _gguf(content):
    def change(directory):
        shutil.rmtree(directory)
        directory.write_bytes(content)

    return change


def _truncate(directory):
    shard = directory / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])


def _change_index(directory, change):
    path = directory / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


BROKEN = {
    "no config.json": (2, "config.json", lambda directory: (directory / "config.json").unlink()),
    "unknown architecture": (2, "NoSuchForCausalLM", _set_config(architectures=["NoSuchForCausalLM"])),
    "truncated shard": (2, "model-00002-of-00002.safetensors", _truncate),
    "missing shard": (2, "model-00001", lambda directory: (directory / "model-00001-of-00002.safetensors").unlink()),
    "missing tensors": (2, "tensors are missing: model.layers.1.", _set_config(num_hidden_layers=2)),
    "quantised": (2, "'quantization_config' is not supported", _set_config(quantization_config={"bits": 4})),
    "not in the index": (2, "norm.weight", lambda d: _change_index(d, lambda names: names.pop("model.norm.weight"))),
    # R120: one key of length 0 whose value is missing, and no tensor
    "37 bytes of GGUF": (2, "tensors", _gguf(b"GGUF" + struct.pack("<IQQQIB", 3, 0, 1, 0, 4, 0))),
    "path outside": (2, "../x", lambda d: _change_index(d, lambda n: n.update({"model.norm.weight": "../x"}))),
}


def test_bad_models_are_named_and_the_next_load_works(program, tiny, tmp_path):
    arguments = [2, "/no/such/model", "/no/such/model", 1, "not valid UTF-8", b"/\xff"]
    for number, (status, part, change) in enumerate(BROKEN.values()):
        arguments += [status, part, _broken(tmp_path / str(number), change)]
    encoded = [item if isinstance(item, bytes) else str(item).encode() for item in arguments]
    done = run_bytes(program("bad_input"), str(tiny).encode(), *encoded)
    assert done.returncode == 0, f"{done.stdout!r}\n{done.stderr!r}"


def run_bytes(program_path, *arguments):
    command = [str(program_path).encode(), *arguments]
    return subprocess.run(command, env=CLEAN_ENVIRONMENT, capture_output=True, timeout=1000, check=False)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PYTHONHOME": "/nonexistent", "PYTHONPATH": "/nonexistent"},
        {"PATH": "/usr/bin:/bin", "PYTHONSTARTUP": "/nonexistent", "PYTHONNOUSERSITE": "", "PYTHONINSPECT": "1"},
        {"HOME": "/nonexistent", "LANG": "C", "LC_ALL": "C", "PYTHONDONTWRITEBYTECODE": "x", "PYTHONMALLOC": "debug"},
    ],
    ids=["empty", "foreign home", "foreign path", "no home, C locale"],
)
def test_r140_the_environment_of_the_host_changes_nothing(program, tiny, environment):
    assert succeed(program("engine"), tiny, env={**CLEAN_ENVIRONMENT, **environment}) == ""


def test_a_planted_module_in_the_working_directory_is_not_imported(program, tmp_path):
    for name in ("json", "pyvllm", "encodings", "cffi", "site"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(77)\n")
    assert succeed(program("first_call"), cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}) == ""


HEAVY = ("torch", "numpy", "pydantic", "tokenizers", "logging", "cuda")


@pytest.fixture
def without_heavy_modules(tmp_path):
    """Give an environment in which a heavy import says so on stdout and fails."""
    for name in HEAVY:
        (tmp_path / f"{name}.py").write_text(f"print('{name} was imported')\nraise ImportError('planted {name}')\n")
    return {**CLEAN_ENVIRONMENT, "VLLM_PYTHONPATH": str(tmp_path)}


def test_a_refusal_imports_nothing_heavy(program, without_heavy_modules):
    assert succeed(program("first_call"), env=without_heavy_modules) == ""


def test_what_python_prints_and_raises_becomes_a_status_and_stays_off_stdout(program, tiny, without_heavy_modules):
    done = run(program("bad_input"), tiny, env=without_heavy_modules)
    assert done.returncode == 1
    assert "tokenizers was imported" in done.stderr
    assert f"{tiny}: 4 ImportError: planted tokenizers" in done.stdout
    assert "was imported" not in done.stdout


@pytest.mark.usefixtures("strace")
def test_a_bad_configuration_looks_at_no_path_and_touches_no_signal(program, tmp_path):
    trace = tmp_path / "trace"
    command = ["-f", "-e", "trace=%file,rt_sigaction", "-o", trace, program("refused"), "/no/such/model"]
    assert succeed(shutil.which("strace"), *command) == ""
    lines = trace.read_text().splitlines()
    assert any("pyvllm" in line for line in lines)
    assert not any("/no/such/model" in line for line in lines if "execve" not in line)
    handlers = [line for line in lines if "rt_sigaction" in line and ", NULL, " not in line]
    assert {line.split("rt_sigaction(")[1].split(",")[0] for line in handlers} <= {"SIGINT"}


def test_r138_a_wrong_python_home_is_an_error_that_names_it(program):
    done = run(program("first_call"), env=MISSING_HOME)
    assert done.returncode == 1
    assert "VLLM_PYTHON_HOME is /nonexistent" in done.stderr


def test_r141_a_python_home_without_a_library_is_an_error_and_no_abort(program, tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(shutil.which("true"), tmp_path / "bin" / PYTHON_NAME)
    done = run(program("first_call"), env={"VLLM_PYTHON_HOME": str(tmp_path)})
    assert done.returncode == 1
    assert f"VLLM_PYTHON_HOME is {tmp_path}, but the Python in it runs with the prefix" in done.stderr


def test_a_named_python_home_is_used(program):
    assert succeed(program("first_call"), env={"VLLM_PYTHON_HOME": sys.prefix}) == ""


def test_lines_go_to_the_callback_or_to_stderr(program):
    done = run(program("log"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("\n") == done.stderr.count("[vllm.cpp] offload_config: Both UVA and prefetch") == 1


QUIET = """
import sys
from pyvllm import clib
library = clib.Library()
library.set_log(lambda level, text: None)
clib.Engine(sys.argv[1], library=library, device=1).close()
"""


def test_a_load_shows_its_bar_on_a_terminal_and_not_where_the_host_takes_the_lines(program, tiny):
    code, shown = on_terminal([program("bad_input"), tiny], env=CLEAN_ENVIRONMENT)
    assert code == 0
    assert "[" + "#" * 24 + "] loading " in shown and "(100 %)" in shown
    assert on_terminal([sys.executable, "-c", QUIET, tiny], cwd=ROOT) == (0, "")
