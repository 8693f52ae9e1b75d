"""What pip installs: from a source distribution into a virtual environment, found by vllm-config and by pkg-config."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from pyvllm.entrypoints.build_flags import main
from tests.capi.toolchain import LIBRARY, PROGRAMS, ROOT, STRICT, run, succeed

INSTALLED = ("include/vllm.h", "lib/libvllm.so", "lib/libvllm.so.21", "lib/pkgconfig/vllm.pc")
pytestmark = pytest.mark.timeout(3600)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Give a virtual environment with the package from a source distribution, and the libraries of this one."""
    directory = tmp_path_factory.mktemp("install")
    source = shutil.copytree(
        ROOT, directory / "source", ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "lib", "__pycache__")
    )
    build = f"from setuptools import build_meta; print(build_meta.build_sdist({str(directory)!r}))"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    environment = directory / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", "venv", {"base": str(environment)}))
    shared = [entry for entry in sys.path if entry.endswith("-packages")]
    (packages / "shared.pth").write_text("\n".join(shared))
    [sdist] = directory.glob("pyvllm-*.tar.gz")
    pip = [sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install", "--no-index"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", sdist], check=True, capture_output=True)
    return environment, packages / "pyvllm"


def _compile(target, flags, name="first_call"):
    source = PROGRAMS / f"{name}.c"
    subprocess.run(["gcc", *STRICT, source, "-o", target, *flags.split(), "-pthread"], check=True)
    return target


def _config(environment, *options):
    done = run(environment / "bin" / "vllm-config", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_file_of_the_library_is_installed_and_recorded(installed):
    _, package = installed
    [record] = package.parent.glob("pyvllm-*.dist-info/RECORD")
    recorded = {line.split(",")[0] for line in record.read_text().splitlines()}
    for name in INSTALLED:
        assert (package / name).is_file()
        assert f"pyvllm/{name}" in recorded
    assert not any(name.startswith(("tests/", "build_ffi")) for name in recorded)


def test_a_program_built_with_vllm_config_runs_on_the_installed_package(installed, tmp_path, tiny):
    environment, _ = installed
    flags = _config(environment, "--cflags", "--libs")
    assert succeed(_compile(tmp_path / "engine", flags, "engine"), tiny) == ""


def test_a_program_built_with_pkg_config_runs_on_the_installed_package(installed, tmp_path):
    environment, _ = installed
    where = {**os.environ, "PKG_CONFIG_PATH": _config(environment, "--pkgconfigdir").strip()}
    command = ["pkg-config", "--print-errors", "--cflags", "--libs", "vllm"]
    flags = subprocess.run(command, env=where, capture_output=True, text=True, check=True).stdout
    assert succeed(_compile(tmp_path / "program", flags)) == ""
    subprocess.run(["pkg-config", "--validate", "vllm"], env=where, check=True)


def test_the_pkg_config_file_moves_with_the_package(installed, tmp_path):
    _, package = installed
    moved = shutil.copytree(package, tmp_path / "moved")
    where = {**os.environ, "PKG_CONFIG_PATH": str(moved / "lib" / "pkgconfig")}
    asked = subprocess.run(["pkg-config", "--libs", "vllm"], env=where, capture_output=True, text=True, check=True)
    library = Path(asked.stdout.split()[0].removeprefix("-L"))
    assert library.resolve() == (moved / "lib").resolve()


def test_r138_the_library_finds_the_environment_that_it_lies_in(installed, tmp_path):
    environment, package = installed
    flags = _config(environment, "--cflags", "--libs")
    (package / "config" / "offload_rules.py").rename(package / "config" / "hidden.py")
    try:
        done = run(_compile(tmp_path / "program", flags))
    finally:
        (package / "config" / "hidden.py").rename(package / "config" / "offload_rules.py")
    assert done.returncode == 1
    assert "cannot start pyvllm: ModuleNotFoundError: No module named 'pyvllm.config.offload_rules'" in done.stderr


def test_vllm_config_names_what_it_knows(capsys):
    assert main(["--libdir"]) == 0
    assert capsys.readouterr().out.strip() == str(LIBRARY.parent)
    assert main(["--version"]) == 0
    assert main(["--help"]) == 0
    capsys.readouterr()
    for wrong in ([], ["--ldflags"]):
        assert main(wrong) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("usage: vllm-config [--cflags]")
