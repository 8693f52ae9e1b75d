"""`vllm-server` before it serves: every bad start is exit code 1 and one line, and costs no model file."""

import json
import os
import socket
import sys

import pytest

from pyvllm.clib import ModelParams
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import configuration_document
from pyvllm.entrypoints.openai.server import make_parser
from tests.server.commands import ROOT, SERVER, run
from tests.tiny_models import write_tiny

BAD_STARTS = [
    (["--offload-config", "{"], "offload_config is not valid JSON"),
    (["--offload-config", "[]"], "the document must be an object"),
    (["--offload-config", '{"uva": {"cpu_offload_GB": 10}}'], "uva.cpu_offload_GB is not a known key"),
    (["--offload-config", '{"uva": {"cpu_offload_gb": -1}, "x": 1}'], "x is not a known key"),
    (
        ["--offload-config", '{"prefetch": {"offload_group_size": 4, "offload_num_in_group": 5}}'],
        "offload_num_in_group (5) must be <= offload_group_size (4)",
    ),
    (["--offload-group-size", "2", "--offload-prefetch-step", "0"], "offload_prefetch_step (0) must be >= 1"),
    (["--cpu-offload-gb", "lots"], "argument --cpu-offload-gb: invalid float value: 'lots'"),
    (["--cpu-offload-gb", "1", "--offload-config", "{}"], "--offload-config and --cpu-offload-gb were both given"),
    (["--cpu-ofload-gb", "1"], "unknown argument '--cpu-ofload-gb' (did you mean --cpu-offload-gb?)"),
    (["--port", "70000"], "--port must be from 0 to 65535, got 70000"),
    (["--port", "http"], "argument --port: invalid int value: 'http'"),
    (["--api-key", ""], "--api-key must not be empty"),
    (["--dtype", "float8"], "dtype must be one of"),
    (["--device", "tpu"], "device must be one of"),
    (["--max-model-len", "-5"], "max_model_len must be an integer"),
    (["--gpu-memory-utilization", "0"], "gpu_memory_utilization must be in (0, 1]"),
    (["--block-size", "17"], "block_size must be a multiple of 16"),
    (["--num-gpu-blocks-override", "0"], "num_blocks must be an integer"),
    (["--max-num-seqs", "0"], "max_num_seqs must be an integer"),
    (["--max-num-batched-tokens", "-1"], "max_num_batched_tokens must be an integer"),
    (["--scheduling-policy", "random"], "scheduling_policy must be one of fcfs, priority, lpm"),
    (["--enable-auto-tool-choice", "--tool-call-parser", "x"], "tool_parser 'x' is not known; known are hermes, qwen3"),
    (["--enable-auto-tool-choice"], "--enable-auto-tool-choice needs --tool-call-parser"),
    (["--tool-call-parser", "hermes"], "--tool-call-parser acts with --enable-auto-tool-choice only"),
    (["--reasoning-parser", "x"], "reasoning_parser 'x' is not known; known are deepseek_r1, qwen3"),
    (["--chat-template", "/no/such/file"], "/no/such/file: cannot be opened"),
    (["--speculative-config", "{}"], "--speculative-config is not supported yet"),
    (["--kv-transfer-config", "{}"], "--kv-transfer-config is not supported yet"),
    (["--limit-mm-per-prompt", '{"image": 1}'], "--limit-mm-per-prompt is not supported yet"),
    (["--enable-jump-forward"], "--enable-jump-forward is not supported yet"),
    (["--served-model-name"], "argument --served-model-name: expected at least one argument"),
]


WITHOUT = (
    "import sys; sys.modules.update(dict.fromkeys({}))\n"
    "from pyvllm.entrypoints.openai.server import main\nsys.exit(main())"
)


def assert_fatal(done, text):
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("server: fatal: ") and done.stderr.count("\n") == 1
    assert done.stderr.endswith("\n") and text in done.stderr


@pytest.mark.parametrize(("flags", "text"), BAD_STARTS)
def test_bad_start_is_exit_code_1_and_one_line(flags, text, tmp_path):
    assert_fatal(run(SERVER, "--model", str(tmp_path), *flags), text)


def test_server_without_a_model_says_what_it_needs():
    assert_fatal(run(SERVER), "--model is needed: the path of a Hugging Face directory or of a GGUF file")


@pytest.mark.usefixtures("strace")
@pytest.mark.parametrize("flags", [flags for flags, _ in BAD_STARTS[:9]])
def test_bad_configuration_opens_no_file_of_the_model(flags, tmp_path):
    """The kernel's list of opened files is the witness; the control shows that it would list them."""
    model = tmp_path / "the-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    opened = files_opened(tmp_path, "--model", str(model), "--device", "cpu", *flags)
    assert opened and not [line for line in opened if "the-model" in line]


@pytest.mark.usefixtures("strace")
def test_good_configuration_does_open_the_model(tmp_path):
    model = tmp_path / "the-model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    opened = files_opened(tmp_path, "--model", str(model), "--device", "cpu", "--port", "0")
    assert [line for line in opened if "the-model" in line]


def files_opened(tmp_path, *words):
    trace = tmp_path / "trace"
    calls = "trace=open,openat,openat2,stat,newfstatat,statx,access,readlink"
    run(("strace", "-f", "-qq", "-e", calls, "-o", str(trace), *SERVER), *words)
    return trace.read_text().splitlines()


def test_port_that_is_taken_costs_no_load(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = run(SERVER, "--model", str(tmp_path), "--port", str(port))
    assert_fatal(done, f"cannot listen on 127.0.0.1 port {port}: Address already in use")


def test_every_field_of_the_c_library_has_its_flag():
    flags = {action.dest for action in make_parser()._actions}
    names = {"model_path": "model", "num_blocks": "num_gpu_blocks_override", "tool_parser": "tool_call_parser"}
    fields = [name for name, _ in ModelParams._fields_]
    assert [name for name in fields if names.get(name, name) not in flags] == []


def test_missing_server_extra_is_one_line_that_says_what_to_install(tmp_path):
    program = WITHOUT.format("['uvicorn']")
    done = run((sys.executable, "-c", program), "--model", str(tmp_path))
    assert_fatal(done, "uvicorn is not installed: pip install 'pyvllm[server]'")


def test_refused_model_needs_neither_torch_nor_numpy(tmp_path):
    command = (sys.executable, "-c", WITHOUT.format("['torch', 'numpy']"))
    model = str(write_tiny("LlamaForCausalLM", tmp_path / "model"))
    room = '{"vllm_cpp": {"device_fit": {"weight_budget_bytes": 1000}}}'
    flags = ("--port", "0", "--device", "cpu")
    assert_fatal(run(command, "--model", str(tmp_path / "no"), *flags), "No such file or directory; a model is")
    assert_fatal(run(command, "--model", model, *flags, "--offload-config", room), "has 1000 by weight_budget_bytes")


def test_check_config_needs_no_server_extra():
    program = WITHOUT.format("['starlette', 'uvicorn']")
    assert run((sys.executable, "-c", program), "--check-config").returncode == 0


def cases(outcome, count):
    path = ROOT / "tests" / "data" / "offload_config_cases.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    chosen = [row for row in rows if row["expected"] == outcome and "\0" not in row["document"]]
    return chosen[:: len(chosen) // count]


@pytest.mark.parametrize("case", cases("accept", 6), ids=lambda case: str(case["id"]))
def test_check_config_prints_the_normalised_document(case):
    done = run(SERVER, "--check-config", "--offload-config", case["document"])
    assert done.returncode == 0
    printed = json.loads(done.stdout)
    assert printed["config"] == case["config"]
    assert printed == configuration_document(OffloadConfig.from_json(case["document"]))


@pytest.mark.parametrize("case", cases("reject", 6), ids=lambda case: str(case["id"]))
def test_check_config_refuses_what_the_recorded_cases_refuse(case):
    assert_fatal(run(SERVER, "--check-config", "--offload-config", case["document"]), "offload_")


def test_warning_goes_to_stderr_and_the_document_to_stdout():
    done = run(SERVER, "--check-config", "--cpu-offload-gb", "1", "--offload-group-size", "8")
    assert done.stderr == (
        "[vllm.cpp] offload_config: Both UVA and prefetch offload fields are set with offload_backend='auto'. Prefetch "
        "backend will be selected. Set offload_backend explicitly to suppress this warning.\n"
    )
    assert json.loads(done.stdout)["resolved_backend"] == "prefetch"


def test_check_config_of_flags_equals_that_of_the_document():
    flags = run(SERVER, "--check-config", "--cpu-offload-gb", "2", "--cpu-offload-params", "mlp", "experts")
    document = '{"uva": {"cpu_offload_gb": 2, "cpu_offload_params": ["experts", "mlp", "mlp"]}}'
    assert flags.stdout == run(SERVER, "--check-config", "--offload-config", document).stdout
    assert flags.stdout


def test_check_config_imports_nothing_heavy():
    program = (
        "import sys\nfrom pyvllm.entrypoints.openai.server import main\nmain(['--check-config'])\n"
        "print(sorted({'torch', 'numpy', 'uvicorn', 'starlette'} & set(sys.modules)), file=sys.stderr)"
    )
    assert run((sys.executable, "-c", program)).stderr == "[]\n"


def test_help_lists_every_flag():
    done = run(SERVER, "--help", env={**os.environ, "COLUMNS": "200"})
    flags = (
        "--model --offload-config --dtype --device --max-model-len --gpu-memory-utilization --served-model-name --host "
        "--api-key --port --check-config --offload-backend --cpu-offload-gb --cpu-offload-params --offload-group-size "
        "--offload-num-in-group --offload-prefetch-step --offload-params"
    )
    assert done.returncode == 0 and done.stderr == ""
    listed = {word for line in done.stdout.splitlines() for word in line.split()[:1]}
    assert set(flags.split()) - listed == set()
