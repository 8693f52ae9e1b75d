"""The examples show the plan first, and then load it: from Python and from C."""

import json
import subprocess
import sys

import pytest

from tests.capi.toolchain import CLEAN_ENVIRONMENT, compile_program
from tests.docs.markdown import ROOT
from tests.tiny_models import write_tiny

PLACES = ("device", "host", "streamed", "buffer")


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen3MoeForCausalLM"])
def model(request, tmp_path_factory):
    return write_tiny(request.param, tmp_path_factory.mktemp("model") / "m")


def test_python_example_prints_the_plan_and_then_measures_it(model):
    example = ROOT / "examples" / "python" / "plan_then_load.py"
    environment = {**CLEAN_ENVIRONMENT, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, str(example), str(model), "--dtype", "float32"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    rows = {words[0]: words[1::2] for words in lines if words[-1:] == ["measured"]}
    assert tuple(rows) == PLACES and all(planned == measured for planned, measured in rows.values())
    assert int(rows["host"][0]) > 0
    assert "the same plan: --offload-config" in done.stdout.splitlines()[1]


def test_c_example_prints_the_plan_and_then_a_report_of_the_same_bytes(model, tmp_path):
    program = compile_program(ROOT / "examples" / "c" / "plan_then_load.c", tmp_path / "plan_then_load")
    bytes_of_all = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    room = str(bytes_of_all * 3 // 4)
    done = subprocess.run([program, model, room], env=CLEAN_ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    plan, report = map(json.loads, done.stdout.splitlines())
    assert plan["fit"]["auto"] and plan["planned"]["host_bytes"] > 0
    assert report["placements"] == plan["placements"]
    measured = {f"{place}_bytes": report["measured"][f"{place}_bytes"] for place in PLACES}
    assert measured.items() <= plan["planned"].items()
    heard = [line for line in done.stderr.splitlines() if " bytes  " in line]
    assert len(heard) == plan["weights"]["count"] + 1
    assert heard[-1].startswith(f"{plan['weights']['bytes']} of {plan['weights']['bytes']} bytes")
