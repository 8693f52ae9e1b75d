"""The header: it compiles everywhere, its layouts are ABI 21, and it agrees with the library and with pyvllm."""

import re
import subprocess

import pytest

import build_ffi
import pyvllm
from pyvllm.errors import Status
from tests.capi import header
from tests.capi.toolchain import HEADER, LIBRARY, PROGRAMS, STRICT, compile_program, run, succeed

COMPILERS = [
    ("gcc", "-std=c11"),
    ("gcc", "-std=c17"),
    ("g++", "-std=c++17", "-x", "c++"),
    ("g++", "-std=c++20", "-x", "c++"),
]
MORE_WARNINGS = ("-Wconversion", "-Wmissing-declarations", "-Wredundant-decls")
SYMBOLS = [line.split() for line in subprocess.getoutput(f"nm -D --defined-only {LIBRARY}").splitlines()]
DOCUMENTED = {
    "vllm_model_params_default", "vllm_sampling_params_default", "vllm_engine_load", "vllm_engine_free",
    "vllm_complete", "vllm_complete_tokens", "vllm_complete_stream", "vllm_string_free", "vllm_completion_free",
    "vllm_last_error", "vllm_version", "vllm_abi_version", "vllm_offload_plan", "vllm_engine_offload_report",
    "vllm_engine_load_with_options", "vllm_log_set", "vllm_status_string", "vllm_request_submit", "vllm_request_cancel",
    "vllm_request_wait", "vllm_request_done", "vllm_request_error", "vllm_request_free", "vllm_chat",
    "vllm_chat_stream", "vllm_embed", "vllm_embedding_result_free", "vllm_server_main",
}  # fmt: skip


@pytest.mark.parametrize("compiler", COMPILERS, ids=" ".join)
def test_r131_every_offset_of_abi_21_holds_and_the_header_can_be_included_twice(tmp_path, compiler):
    compiled = compile_program(PROGRAMS / "layout.c", tmp_path / "layout", compiler=(*compiler, *MORE_WARNINGS))
    assert succeed(compiled) == ""


@pytest.mark.parametrize("compiler", COMPILERS, ids=" ".join)
def test_the_header_compiles_alone(tmp_path, compiler):
    source = tmp_path / "alone.c"
    source.write_text(f'#include "{HEADER}"\n')
    command = [*compiler, *STRICT, *MORE_WARNINGS, "-fsyntax-only", source]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_program_in_the_header_compiles_and_says_why_it_cannot_load(tmp_path):
    sample = HEADER.read_text().partition("A whole program")[2].partition("RULES")[0]
    lines = re.findall(r"^ \*     (.*)$", sample, re.MULTILINE)
    source = tmp_path / "sample.c"
    source.write_text("\n".join(lines))
    done = run(compile_program(source, tmp_path / "sample"), "/no/such/model")
    assert (done.returncode, done.stdout) == (1, "")
    assert "/no/such/model" in done.stderr


def test_the_header_declares_the_functions_of_this_version_and_no_others():
    assert set(header.functions()) == DOCUMENTED
    assert set(build_ffi.read_interface().functions) == DOCUMENTED


def test_exactly_the_functions_of_the_header_are_exported_under_their_version():
    exported = {name for _, kind, name in SYMBOLS if kind != "A"}
    assert exported == {f"{name}@@VLLM_21" for name in header.functions()}
    assert [name for _, kind, name in SYMBOLS if kind == "A"] == ["VLLM_21"]


def _dynamic(path, key):
    found = subprocess.run(["readelf", "-d", path], capture_output=True, text=True, check=True).stdout
    return re.findall(rf"\({key}\).*\[(.*)\]", found)


def test_both_files_bear_the_soname_and_the_second_only_needs_the_first():
    stub = LIBRARY.with_name("libvllm.so.21")
    assert _dynamic(LIBRARY, "SONAME") == _dynamic(stub, "SONAME") == ["libvllm.so.21"]
    assert _dynamic(stub, "NEEDED")[0] == "libvllm.so"
    assert _dynamic(stub, "RUNPATH") == ["$ORIGIN"]
    symbols = subprocess.run(["nm", "-D", "--defined-only", stub], capture_output=True, text=True, check=True).stdout
    assert [line.split()[1:] for line in symbols.splitlines()] == [["A", "VLLM_21"]]


def test_the_library_needs_python_and_the_c_library_only():
    allowed = ("libpython3.", "libc.so.", "libdl.so.", "libpthread.so.", "ld-linux-")
    assert [name for name in _dynamic(LIBRARY, "NEEDED") if not name.startswith(allowed)] == []


def test_the_numbers_of_a_status_are_those_of_pyvllm():
    found = header.enums()["vllm_status"].items()
    named = {name.removeprefix("VLLM_ERR_").removeprefix("VLLM_"): value for name, value in found}
    assert named == {status.name: status.value for status in Status}


def test_the_versions_agree():
    macros = dict(re.findall(r"^#define VLLM_(\w+) (\S+)$", HEADER.read_text(), re.MULTILINE))
    parts = (macros["VERSION_MAJOR"], macros["VERSION_MINOR"], macros["VERSION_PATCH"])
    assert macros["VERSION"] == f'"{pyvllm.__version__}"' == f'"{".".join(parts)}"'
    assert macros["ABI_VERSION"] == "21" == build_ffi.SONAME.rpartition(".")[2]
    package = (LIBRARY.parent / "pkgconfig" / "vllm.pc").read_text()
    assert f"\nVersion: {pyvllm.__version__}\n" in package


def test_every_function_type_and_field_has_its_own_comment():
    lines = HEADER.read_text().splitlines()
    declared = [index for index, line in enumerate(lines) if re.match(r"VLLM_API|typedef|    [a-z][\w*]* .*\w;$", line)]
    assert len(declared) > 70
    assert [lines[index] for index in declared if not lines[index - 1].endswith("*/")] == []


def test_more_than_half_of_the_header_is_its_contract():
    text = HEADER.read_text()
    comments = sum(comment.count("\n") + 1 for comment in re.findall(r"/\*.*?\*/", text, re.DOTALL))
    assert 0.55 <= comments / text.count("\n") <= 0.75
