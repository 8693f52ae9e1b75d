"""`pyvllm plan`: the table says what the document says, and bad input is one line."""

import json

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import plan_document
from pyvllm.entrypoints.tables import offload_line, plan_text
from tests.server.commands import PYVLLM, run

DOCUMENT = '{"uva": {"cpu_offload_gb": 0.0001, "cpu_offload_params": ["mlp", "nothing"]}}'


@pytest.fixture(scope="module")
def plan(model):
    return plan_document(EngineConfig(model=model, device="cpu", offload=OffloadConfig.from_json(DOCUMENT)))


def test_json_is_the_plan_document(model, plan):
    done = run(PYVLLM, "plan", model, "--device", "cpu", "--offload-config", DOCUMENT, "--json")
    printed = json.loads(done.stdout)
    rooms = [document.pop("capacity") for document in (printed, plan.copy())]
    assert done.returncode == 0 and rooms[0].keys() == rooms[1].keys()
    assert printed == {key: value for key, value in plan.items() if key != "capacity"}


def test_plan_reads_no_weights_and_imports_no_torch(model):
    program = "import sys\nfrom pyvllm.entrypoints.cli import main\nmain()\nassert 'torch' not in sys.modules"
    done = run((PYVLLM[0], "-c", program), "plan", model, "--device", "cpu", "--cpu-offload-gb", "1")
    assert done.returncode == 0, done.stderr


def rows(text):
    return {line.split("  ")[0].strip(): line.split() for line in text.splitlines() if line}


def test_table_has_the_bytes_of_every_place(plan):
    table = rows(plan_text(plan, "a model"))
    for place in ("device", "host", "streamed", "buffer", "kv cache", "workspace"):
        assert table[place][-1] == f"{plan['planned'][place.replace(' ', '_') + '_bytes']:,}"


def test_table_has_one_row_for_each_kind_of_weight_that_sums_to_the_place(plan):
    lines = plan_text(plan, "a model").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("weight "))
    kinds = [line for line in lines[start + 1 :] if line.startswith(("model.", "lm_head."))]
    assert len(kinds) == len({line.split()[0] for line in kinds}) == 6 + 3
    on_host = [word.replace(",", "") for line in kinds for word in host_cell(line)]
    assert sum(int(word) for word in on_host) == plan["planned"]["host_bytes"] > 0


def host_cell(line):
    """The bytes of the middle one of three cells, each `COUNT: BYTES` or `-`."""
    cells = line.split(maxsplit=1)[1].replace(": ", ":").split()
    assert len(cells) == 3
    return [cells[1].partition(":")[2]] if cells[1] != "-" else []


def test_table_names_what_selects_nothing_and_every_warning(plan):
    text = plan_text(plan, "a model")
    assert "selects nothing: 'nothing'" in text
    assert plan["warnings"] and all(f"warning: {warning}" in text for warning in plan["warnings"])


def test_table_of_a_report_has_measured_beside_planned(llm):
    report = llm.offload_report()
    table = rows(plan_text(report, "a model"))
    for place in ("device", "host"):
        number = f"{report['planned'][f'{place}_bytes']:,}"
        assert table[place][-2:] == [number, number]
    assert table["overhead"][-1] == f"{report['measured']['overhead_bytes']:,}"


def test_one_line_says_none_where_offload_is_off(model):
    line = offload_line(plan_document(EngineConfig(model=model, device="cpu")))
    assert line.startswith("offload none; asked nothing; planned bytes: device ")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["plan"], "MODEL is needed: the path of a Hugging Face directory or of a GGUF file"),
        (["paln", "m"], "invalid choice: 'paln'"),
        (["plan", "/no/such/model"], "/no/such/model"),
        (["plan", "m", "--offload-config", "{"], "offload_config is not valid JSON"),
        (["plan", "m", "--jsno"], "unknown argument '--jsno' (did you mean --json?)"),
        (["run", "m"], "the following arguments are required: --prompt"),
        (["run", "m", "--prompt", "a", "--max-tokens", "0"], "max_tokens must be at least 1; got 0"),
    ],
)
def test_bad_command_is_exit_code_1_and_one_line(words, text):
    done = run(PYVLLM, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("pyvllm: fatal: ") and done.stderr.count("\n") == 1 and text in done.stderr


def test_help_of_every_command_is_on_stdout():
    for words in (["--help"], ["plan", "--help"], ["run", "--help"]):
        done = run(PYVLLM, *words)
        assert done.returncode == 0 and done.stdout.startswith("usage: pyvllm") and done.stderr == ""
