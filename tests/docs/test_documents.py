"""The pages are true: blocks run or parse, tables are held against the code, links lead somewhere."""

import ast
import json
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest

from pyvllm.config.model import single
from pyvllm.config.offload import DeviceFitConfig, OffloadConfig
from pyvllm.engine.preview import plan_document
from pyvllm.entrypoints.arguments import FLAT_FIELDS, engine_config, flag
from pyvllm.entrypoints.openai.protocol import parse_completion
from pyvllm.entrypoints.openai.server import make_parser
from pyvllm.errors import InvalidArgument
from pyvllm.offloader.base import selects
from tests.capi.toolchain import CLEAN_ENVIRONMENT, compile_program
from tests.docs.markdown import OFFLOAD, PAGES, ROOT, blocks, links, table
from tests.server.commands import PYVLLM, SERVER, run
from tests.tiny_models import write_tiny


@pytest.fixture(scope="session")
def beside_model(tmp_path_factory):
    """A directory in which `model` is a model of 16 layers, as the pages have it."""
    directory = tmp_path_factory.mktemp("docs")
    write_tiny("LlamaForCausalLM", directory / "model", num_hidden_layers=16)
    return directory


def numbered(language):
    found = [(page.name, text) for page in PAGES for text in blocks(page, language)]
    assert found, f"no page has a {language} block"
    return [pytest.param(text, id=f"{name}-{index}") for index, (name, text) in enumerate(found)]


@pytest.mark.parametrize("text", numbered("python"))
def test_python_block_runs(text, beside_model):
    environment = {**CLEAN_ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=beside_model, env=environment, capture_output=True, text=True, timeout=1000
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("text", numbered("c"))
def test_c_block_compiles_without_a_warning_and_runs(text, beside_model, tmp_path):
    (tmp_path / "block.c").write_text(text)
    program = compile_program(tmp_path / "block.c", tmp_path / "block")
    done = subprocess.run(
        [program], cwd=beside_model, env=CLEAN_ENVIRONMENT, capture_output=True, text=True, timeout=1000
    )
    assert done.returncode == 0 and done.stdout, done.stderr


def commands():
    return [pytest.param(line, id=line[:60]) for text in blocks(OFFLOAD, "sh") for line in text.splitlines()]


@pytest.mark.parametrize("line", commands())
def test_command_is_one_that_works(line, beside_model):
    """Commands that end are run; those that serve are held to their flags, and requests to their fields."""
    program, *words = shlex.split(line.replace("model ", f"{beside_model}/model ") if "pyvllm plan" in line else line)
    if program == "curl":
        assert parse_completion(words[words.index("-d") + 1].encode(), 256).params.max_tokens == 16
    elif "--check-config" in words or program == "pyvllm":
        assert run(PYVLLM if program == "pyvllm" else SERVER, *words).returncode == 0
    else:
        args = make_parser().parse(words)
        assert engine_config(args, args.model).offload.is_offloading_enabled


def test_equal_commands_are_equal():
    first, second = (make_parser().parse(shlex.split(line)[1:]) for line in blocks(OFFLOAD, "sh")[0].splitlines())
    assert engine_config(first, "m").offload == engine_config(second, "m").offload


def test_the_document_of_all_fields_is_accepted_and_complete():
    document = json.loads(blocks(OFFLOAD, "json")[0])
    assert OffloadConfig.from_dict(document).to_dict() == document
    described = {name for name, *_ in table(OFFLOAD, "field", "default", "meaning", "allowed")}
    names = {f"{section}.{name}" for section in ("uva", "prefetch") for name in document[section]}
    own = {f"vllm_cpp.device_fit.{field.name}" for field in fields(DeviceFitConfig)}
    assert described == names | own | {"offload_backend"}


def test_described_defaults_are_the_defaults():
    empty = OffloadConfig.from_json("{}").to_dict()
    for name, default, *_ in table(OFFLOAD, "field", "default", "meaning", "allowed"):
        section, _, key = name.rpartition(".")
        found = empty.get(section, empty).get(key) if section != "vllm_cpp.device_fit" else None
        assert default == "absent" if found is None else json.loads(default) == found


def test_flags_and_keywords_of_the_page_are_those_of_the_code():
    rows = table(OFFLOAD, "flag", "keyword", "field of the document")
    assert rows == [[flag(name), name, ".".join(place)] for name, place in FLAT_FIELDS.items()]


@pytest.mark.parametrize(("document", "text"), table(OFFLOAD, "document", "refused with"))
def test_refusal_of_the_page_is_the_codes(document, text):
    with pytest.raises(InvalidArgument) as refusal:
        OffloadConfig.from_json(document)
    assert text in str(refusal.value)


@pytest.mark.parametrize(("document", "text"), table(OFFLOAD, "document", "warning"))
def test_warning_of_the_page_is_the_codes(document, text):
    config = OffloadConfig.from_json(document)
    assert text in (*config.warnings, config.disabled_reason)


@pytest.mark.parametrize(("document", "meaning"), table(OFFLOAD, "document", "what is meant"))
def test_documents_of_the_empty_sets_are_on_or_off_as_the_page_says(document, meaning):
    assert OffloadConfig.from_json(document).is_offloading_enabled == ("offload is off" not in meaning)


@pytest.mark.parametrize(("entry", "weight", "selected"), table(OFFLOAD, "entry", "weight", "selected"))
def test_selection_of_the_page_is_the_codes(entry, weight, selected):
    assert selects(entry, single(weight, None, "float32", (1, 1))) == (selected == "yes")


def test_named_weights_exist(tmp_path):
    names = set()
    for architecture in ("Qwen3ForCausalLM", "Qwen3MoeForCausalLM", "MixtralForCausalLM"):
        model = write_tiny(architecture, tmp_path / architecture)
        arguments = make_parser().parse(["--device", "cpu"])
        names |= {item["name"] for item in plan_document(engine_config(arguments, str(model)))["placements"]}
    cells = " ".join(text for _, text in table(OFFLOAD, "part", "names"))
    written = [word.strip("`,;") for word in cells.replace("; Qwen3:", "").split()]
    assert len(written) == 17
    assert [word for word in written if not any(name.endswith(word) for name in names)] == []


def test_report_of_the_page_is_the_real_one(smollm2_gguf):
    page = json.loads(blocks(OFFLOAD, "json")[1])
    flags = ["--device", "cpu", "--max-model-len", "512", "--gguf-weights", "expanded"]
    flags += ["--offload-config", json.dumps(page["config"])]
    plan = plan_document(engine_config(make_parser().parse(flags), str(smollm2_gguf)))
    assert plan["weights"].pop("considered") is None and page["weights"].pop("considered") == 182
    placed = {name: plan["planned"][name] for name in ("device_bytes", "host_bytes", "streamed_bytes", "buffer_bytes")}
    measured = page.pop("measured")
    assert {name: measured[name] for name in placed} == placed and measured["overhead_bytes"] < 2**20
    # The workspace is an estimate, and the host's room is this machine's.
    del page["planned"]["workspace_bytes"], page["capacity"]["host_bytes"]
    assert_within(page, {**plan, "placements": plan["placements"][:1]})


def assert_within(part, whole):
    """Every key of `part` has the same value in `whole`, at every level; a document may gain keys."""
    if isinstance(part, dict):
        for key in part:
            assert_within(part[key], whole[key])
    elif isinstance(part, list) and part and isinstance(part[0], dict):
        assert len(part) == len(whole)
        for one, other in zip(part, whole, strict=True):
            assert_within(one, other)
    else:
        assert part == whole


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page):
    local = [target for _, target in links(page) if "://" not in target]
    assert [target for target in local if not (page.parent / target.partition("#")[0]).exists()] == []


def test_every_row_of_what_works_links_tests_that_exist():
    rows = table(OFFLOAD, "what", "shown by")
    assert len(rows) > 15 and all("](" in cell for _, cell in rows)
    for name, target in links(OFFLOAD):
        if name.startswith("`test_"):
            tree = ast.parse((OFFLOAD.parent / target).read_text())
            assert name.strip("`") in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
