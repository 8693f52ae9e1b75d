"""docs/plan.md is true: its keys are the document's, its commands run, its flags exist."""

import subprocess
import sys

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import plan_document
from pyvllm.entrypoints.cli import make_parser
from tests.docs.markdown import ROOT, blocks, table
from tests.tiny_models import write_tiny

PAGE = ROOT / "docs" / "plan.md"


@pytest.fixture(scope="module")
def beside_model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("docs")
    write_tiny("LlamaForCausalLM", directory / "model")
    return directory


def described():
    return {name: meaning for name, meaning in table(PAGE, "key", "meaning")}


def test_every_key_of_the_document_is_described_and_every_described_key_is_there(beside_model):
    offload = OffloadConfig.from_dict({"uva": {"cpu_offload_gb": 1}})
    document = plan_document(EngineConfig(model=str(beside_model / "model"), device="cpu", offload=offload))
    keys = set()
    for name, value in document.items():
        nested = isinstance(value, dict) and name != "config"
        keys |= {f"{name}.{inner}" for inner in value} if nested else {name}
    assert keys == set(described())


@pytest.mark.parametrize("name", ["by_layer", "by_kind", "not_selected", "placements"])
def test_every_field_of_the_lists_is_described(beside_model, name):
    document = plan_document(EngineConfig(model=str(beside_model / "model"), device="cpu"))
    meaning = described()[name] + (described()["by_layer"] if name == "by_kind" else "")
    assert document[name]
    assert [field for field in document[name][0] if f"`{field}`" not in meaning] == []


@pytest.mark.parametrize("script", blocks(PAGE, "sh"))
def test_commands_of_the_page_run(beside_model, script):
    call = f'pyvllm() {{ {sys.executable} -m pyvllm.entrypoints.cli "$@"; }}\n'
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["bash", "-e", "-c", call + script],
        cwd=beside_model, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_flags_of_the_page_are_those_of_the_command():
    text = make_parser()._subparsers._group_actions[0].choices["plan"].format_help()
    ours = text.partition("plan:\n")[2].partition("\n\n")[0]
    flags = {word.strip("[],()") for word in ours.split() if word.startswith("--")}
    rows = {name.split()[0] for name, _ in table(PAGE, "flag", "what it does")[1:]}
    assert rows == flags and len(rows) > 6
