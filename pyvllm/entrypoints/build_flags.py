"""`vllm-config`: the flags that compile and link a C program with libvllm, in the manner of `python3-config`."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pyvllm


def flags(package: Path) -> dict[str, list[str]]:
    """Return what each option prints, for a `pyvllm` package in the given directory."""
    include, lib = package / "include", package / "lib"
    return {
        "--cflags": [f"-I{include}"],
        "--libs": [f"-L{lib}", f"-Wl,-rpath,{lib}", "-lvllm"],
        "--includedir": [str(include)],
        "--libdir": [str(lib)],
        "--pkgconfigdir": [str(lib / "pkgconfig")],
        "--library": [str(lib / "libvllm.so")],
        "--version": [pyvllm.__version__],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what the options ask for, on one line. Returns 0, or 2 for an unknown option or a missing library."""
    given = sys.argv[1:] if arguments is None else arguments
    package = Path(pyvllm.__file__).resolve().parent
    known = flags(package)
    usage = "usage: vllm-config " + " ".join(f"[{option}]" for option in known)
    if list(given) in (["--help"], ["-h"]):
        print(usage)
        return 0
    if not given or any(option not in known for option in given):
        print(usage, file=sys.stderr)
        return 2
    if not (package / "lib" / "libvllm.so").exists():
        print(f"vllm-config: {package}/lib/libvllm.so is not built; install the package with pip", file=sys.stderr)
        return 2
    print(" ".join(shlex.quote(flag) for option in given for flag in known[option]))
    return 0
