"""Compile C programs against the installed library and run them in processes that have nothing of ours around them."""

import subprocess
from pathlib import Path

import pyvllm
from pyvllm.entrypoints.build_flags import flags

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "include" / "vllm.h"
PROGRAMS = Path(__file__).parent / "programs"
LIBRARY = Path(pyvllm.__file__).parent / "lib" / "libvllm.so"

STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Werror")
#: As little as a program can have; OMP_NUM_THREADS only keeps a small machine usable.
CLEAN_ENVIRONMENT = {"OMP_NUM_THREADS": "1"}


def compile_program(source, target, *, compiler=("gcc", "-std=gnu11"), more=()):
    """Compile and link one source file under strict warnings. Returns the target."""
    found = flags(LIBRARY.parents[1])
    command = [*compiler, *STRICT, *found["--cflags"], f"-I{PROGRAMS}", str(source), "-o", str(target)]
    subprocess.run([*command, *found["--libs"], "-pthread", *more], check=True)
    return target


def run(program, *arguments, env=CLEAN_ENVIRONMENT, cwd="/", timeout=1000):
    """Run a program and return the finished process with its output as text."""
    return subprocess.run(
        [str(program), *map(str, arguments)],
        env=env,
        cwd=cwd,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )


def succeed(program, *arguments, **options):
    """Run a program that must end with 0 and print nothing that it does not print itself. Returns its stdout."""
    done = run(program, *arguments, **options)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
