"""How long a C process takes from its start to a refused configuration, as a ratio to `python -I -c 'import json'`.

Needs pyvllm installed for the interpreter that runs this, and a C compiler. Exits 1 when the ratio is above --limit.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from machine import interleaved, machine

import pyvllm
from pyvllm.entrypoints.build_flags import flags

PROGRAM = r"""
#include <stdio.h>
#include <string.h>
#include <vllm.h>

int main(void) {
    vllm_model_params params = vllm_model_params_default();
    vllm_engine* engine = NULL;
    params.model_path = "/nowhere";
    params.offload_config = "{\"prefetch\": {\"offload_group_size\": 4, \"offload_num_in_group\": 5}}";
    if (vllm_engine_load(&params, &engine) != VLLM_ERR_INVALID_ARGUMENT) {
        fprintf(stderr, "not refused as an invalid argument: %s\n", vllm_last_error());
        return 1;
    }
    return strcmp(vllm_last_error(), "offload_num_in_group (5) must be <= offload_group_size (4)") != 0;
}
"""


def compile_program(folder: Path) -> Path:
    """Build the C program against the installed library."""
    source, program = folder / "refusal.c", folder / "refusal"
    source.write_text(PROGRAM)
    known = flags(Path(pyvllm.__file__).resolve().parent)
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-o", str(program), str(source), *known["--cflags"], *known["--libs"]], check=True)
    return program


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--limit", type=float, default=2.0, help="largest ratio that passes")
    options = parser.parse_args()
    print(machine())
    with tempfile.TemporaryDirectory() as folder:
        program = compile_program(Path(folder))
        bar = [sys.executable, "-I", "-c", "import json"]
        seconds = interleaved({"refusal": [str(program)], "json": bar}, options.rounds)
    ratio = seconds["refusal"] / seconds["json"]
    print(f"C process, start to refused configuration   {seconds['refusal'] * 1e3:7.1f} ms")
    print(f"python -I -c 'import json'                  {seconds['json'] * 1e3:7.1f} ms")
    print(f"ratio                                       {ratio:7.2f}    (at most {options.limit:g})")
    if find_spec("vllm"):
        imported = interleaved({"vllm": [sys.executable, "-I", "-c", "import vllm"]}, 3)["vllm"]
        print(f"python -I -c 'import vllm'                  {imported * 1e3:7.1f} ms")
    else:
        print("python -I -c 'import vllm'                  vllm is not installed here")
    return int(ratio > options.limit)


if __name__ == "__main__":
    sys.exit(main())
