"""Every recorded document: what vLLM 0.33 does with it, and what this project does on purpose otherwise."""

import json
from pathlib import Path

import pytest

from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import InvalidArgument

DATA = Path(__file__).parents[2] / "data" / "offload_config_cases.jsonl"
CASES = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
ACCEPTED = [case for case in CASES if case["expected"] == "accept"]
REFUSED = [case for case in CASES if case["expected"] == "reject"]


def _name(case):
    return f"{case['id']}:{case['document'][:50]}"


def test_the_recorded_cases_are_all_there():
    assert (len(ACCEPTED), len(REFUSED)) == (60, 109)


@pytest.mark.parametrize("case", ACCEPTED, ids=_name)
def test_an_accepted_document_has_the_recorded_value_and_warning(case):
    config = OffloadConfig.from_json(case["document"])
    assert config.to_dict() == case["config"]
    assert list(config.warnings) == [warning["text"] for warning in case["warnings"]]


@pytest.mark.parametrize("case", [case for case in ACCEPTED if "resolved" in case], ids=_name)
def test_an_accepted_document_resolves_to_the_recorded_backend(case):
    config = OffloadConfig.from_json(case["document"])
    assert (config.resolved_backend or "noop") == case["resolved"]["backend"]
    if "max_bytes" in case["resolved"]:
        assert config.uva_max_bytes == case["resolved"]["max_bytes"]


@pytest.mark.parametrize("case", REFUSED, ids=_name)
def test_a_refused_document_names_every_bad_field(case):
    with pytest.raises(InvalidArgument) as refusal:
        OffloadConfig.from_json(case["document"])
    text = str(refusal.value)
    for name in case.get("fields", []):
        assert (name or "''") in text
    if case["deviation"] and "given twice" in case["deviation"]:
        assert case["deviation"] in text
    if "message" in case:
        assert text == case["message"]
