"""Hosts other than a C program: Python through ctypes, other Pythons, Rust."""

import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from pyvllm import clib
from tests.capi.toolchain import CLEAN_ENVIRONMENT, LIBRARY, ROOT, run, succeed

REFUSAL = """
    import ctypes, sys
    lib = ctypes.CDLL(sys.argv[1])
    lib.vllm_last_error.restype = ctypes.c_char_p
    params, plan = (ctypes.c_char * 128)(), ctypes.c_void_p()
    print(lib.vllm_offload_plan(params, None, ctypes.byref(plan)), lib.vllm_last_error().decode())
"""


def script(text, *arguments, python=sys.executable, options=(), env=CLEAN_ENVIRONMENT):
    """Run a Python script in a process of its own and return the finished process."""
    return run(python, *options, "-c", textwrap.dedent(text), *arguments, env=env)


def others():
    """Return interpreters of another minor version, by version: installed beside this one, or on PATH."""
    beside = sorted(map(str, Path(sys.base_prefix).parent.glob("*/bin/python3")))
    on_path = [shutil.which(f"python3.{minor}") for minor in range(8, 20)]
    found = {}
    for python in filter(lambda path: path and os.access(path, os.X_OK), [*beside, *on_path]):
        asked = run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
        if asked.returncode == 0:
            found.setdefault(asked.stdout.strip(), python)
    found.pop(f"{sys.version_info.major}.{sys.version_info.minor}", None)
    return found


def test_another_python_gets_a_status_and_lives():
    if not (found := others()):
        pytest.skip("there is no Python of another version beside this one or on PATH")
    built = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version, python in found.items():
        done = script(REFUSAL, LIBRARY, python=python)
        assert (done.returncode, done.stderr) == (0, ""), version
        expected = f"3 libvllm was built for Python {built} but this process runs Python {version}"
        assert done.stdout.startswith(expected), version


def supported():
    """Return interpreters of this machine of the versions that pyproject.toml names, by version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {entry.rpartition(" :: ")[2] for entry in project["classifiers"] if " :: Python :: " in entry}
    return {version: python for version, python in others().items() if version in named}


def test_every_module_compiles_without_a_warning_on_the_other_supported_pythons():
    text = """
        import pathlib, sys
        paths = sorted(pathlib.Path(sys.argv[1], "pyvllm").rglob("*.py"))
        print(len([compile(path.read_bytes(), path, "exec") for path in paths]))
    """
    if not (found := supported()):
        pytest.skip("there is no other supported Python beside this one or on PATH")
    for version, python in found.items():
        done = script(text, ROOT, python=python, options=("-W", "error"))
        assert (done.returncode, done.stderr) == (0, "") and int(done.stdout) > 100, (version, done.stderr)


def test_r138_a_python_without_pyvllm_gets_the_name_of_what_is_missing(tmp_path):
    alone = shutil.copy(LIBRARY, tmp_path / "libvllm.so")
    done = script(REFUSAL, alone, options=("-I", "-S"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("3 cannot import pyvllm in the running Python")


def test_two_copies_of_the_library_in_one_process_both_work(tmp_path):
    second = shutil.copy(LIBRARY, tmp_path / "second.so")
    text = """
        import sys
        from pyvllm import clib
        for path in (sys.argv[1], sys.argv[2], sys.argv[1]):
            assert clib.Library(path).offload_plan()["schema"] == 1
    """
    assert script(text, LIBRARY, second).returncode == 0


def test_the_file_named_by_the_soname_is_the_same_library():
    text = """
        import ctypes, sys
        one, other = (ctypes.CDLL(sys.argv[1] + end).vllm_version for end in ("", ".21"))
        assert ctypes.cast(one, ctypes.c_void_p).value == ctypes.cast(other, ctypes.c_void_p).value
    """
    assert script(text, LIBRARY).returncode == 0


def test_r143_a_caller_that_holds_the_gil_can_load_complete_and_free(tiny):
    text = """
        import ctypes, sys, threading
        from pyvllm import clib
        ctypes.CDLL = ctypes.PyDLL
        engine = clib.Engine(sys.argv[1], device=1)
        expected, found = engine.complete("A", temperature=0), []
        threads = [threading.Thread(target=lambda: found.append(engine.complete("A", temperature=0))) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        engine.close()
        assert found == [expected] * 3
    """
    done = script(text, tiny)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_python_host_keeps_its_stdout_and_its_interrupt(tiny):
    text = """
        import signal, sys
        from pyvllm import clib
        before, out = signal.getsignal(signal.SIGINT), sys.stdout
        clib.Engine(sys.argv[1], device=1).close()
        assert signal.getsignal(signal.SIGINT) is before and sys.stdout is out
        print("mine")
    """
    done = script(text, tiny)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr


def test_clib_is_a_file_of_its_own(tmp_path):
    copy = shutil.copy(clib.__file__, tmp_path / "alone.py")
    text = """
        import sys
        sys.path.insert(0, sys.argv[1])
        import alone
        assert "pyvllm" not in sys.modules
        assert alone.Library(sys.argv[2]).version
    """
    assert script(text, copy.parent, LIBRARY, options=("-I",)).returncode == 0


@pytest.mark.skipif(not shutil.which("rustc"), reason="no rustc on this machine")
def test_a_rust_program_without_crates_streams_from_eight_threads(tmp_path, tiny):
    source, target = ROOT / "tests" / "capi" / "programs" / "client.rs", tmp_path / "client"
    link = ["-L", str(LIBRARY.parent), "-l", "vllm", "-C", f"link-arg=-Wl,-rpath,{LIBRARY.parent}"]
    subprocess.run(["rustc", "--edition", "2021", "-o", target, source, *link], check=True, capture_output=True)
    assert succeed(target, tiny) == ""
