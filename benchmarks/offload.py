"""What weight offload costs on the CPU device at batch 8, where every byte is in memory anyway.

Three loads of the same model, in turn, each in a process of its own: without offload; with half of the weights under
`uva`, which must reach 0.95 of its tokens a second; and with a quarter of the layers under `prefetch`, which must reach
0.95 * T / (T + 2 * streamed bytes / bandwidth). T is the time of a step without offload, and the bandwidth that of a
copy, read and written bytes counted, measured in the same call. Exits 1 when a bar is not met.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from report import Bar, Result, bars_table, figures_table, notes, summarise, write_into
from rows import QUICK, Row, Sizes, here, run_row
from serve import default_model, describe, measure_limits
from tables import vocab_of

BATCH = 8
#: Share of the limit that both backends must reach.
SHARE = 0.95


def rows_for(weight_bytes: int) -> list[Row]:
    """Give the three loads of a model whose weights have this many bytes."""
    half = json.dumps({"uva": {"cpu_offload_gb": weight_bytes / 2 / 2**30}})
    quarter = json.dumps({"prefetch": {"offload_group_size": 4, "offload_num_in_group": 1}})
    return [
        Row("resident", "pyvllm", "directory", "bf16"),
        Row("uva, half of the weights", "pyvllm", "directory", "bf16", {"offload": half}),
        Row("prefetch, a quarter of the layers", "pyvllm", "directory", "bf16", {"offload": quarter}),
    ]


def bars_of(results: Sequence[Result], column: str, new: int, bytes_per_s: float) -> tuple[list[Bar], str]:
    """Give both bars and say what they were computed from. new: steps of a run, of which the first is the prefill."""
    resident, uva, prefetch = results
    alone = resident.figures[column].value
    step = int(column) / alone
    copying = 2 * prefetch.sizes["streamed"] / bytes_per_s
    bound = SHARE * step / (step + copying)
    said = (
        f"- T = {step * 1e3:.2f} ms, the mean of {new} steps; uva: {uva.sizes['host'] / 1e6:.1f} of "
        f"{uva.sizes['weights'] / 1e6:.1f} MB; prefetch: {prefetch.sizes['streamed'] / 1e6:.1f} MB streamed a step, "
        f"{copying * 1e3:.2f} ms at {bytes_per_s / 1e9:.1f} GB/s"
    )
    bars = [
        Bar("uva / resident, tokens/s", uva.figures[column].value / alone, SHARE),
        Bar("prefetch / resident, tokens/s", prefetch.figures[column].value / alone, bound),
    ]
    return bars, said


def run_in_turn(model: str, sizes: Sizes) -> list[Result]:
    """Measure the three loads once a round and summarise."""
    with tempfile.TemporaryDirectory() as folder:
        directory = f"{folder}/model"
        here("models.py", "directory", model, directory)
        rows = rows_for(Path(directory, "model.safetensors").stat().st_size)
        answers: dict[str, list[dict[str, object]]] = {row.name: [] for row in rows}
        for turn in range(sizes.rounds):
            for row in rows:
                answers[row.name].append(run_row(row, sys.executable, directory, vocab_of(directory), sizes, turn))
    return [summarise(row, answers[row.name], sizes.columns) for row in rows]


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=default_model(), help="SmolLM2-135M as a Q4_1 GGUF file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tries", type=int, default=3, help="how often a run is tried until the machine is quiet")
    parser.add_argument("--quick", action="store_true", help="few tokens, one round: measures nothing")
    parser.add_argument("--write", metavar="FILE", help="put the answer between the marks of `offload` in this page")
    options = parser.parse_args()
    if not options.model or not Path(options.model).is_file():
        parser.error(f"the model {options.model!r} is no file: name a SmolLM2-135M Q4_1 GGUF file, or run `make model`")
    sizes = QUICK if options.quick else Sizes(batches=(BATCH,), rounds=options.rounds, tries=options.tries)
    limits = measure_limits(options.quick)
    print(about := describe(limits, options), flush=True)
    results = run_in_turn(str(Path(options.model).resolve()), sizes)
    if failed := [result for result in results if result.error]:
        sys.exit("\n".join(notes(failed, {})))
    bars, said = bars_of(results, str(sizes.batches[0]), sizes.new, limits["copy_bytes_per_s"])
    text = "\n".join([figures_table(results, sizes), "", bars_table(bars), "", said, *notes(results, {})])
    print(f"\n{text}")
    if options.write:
        write_into(Path(options.write), "offload", f"{about}\n\n{text}")
    return int(not all(bar.is_met for bar in bars))


if __name__ == "__main__":
    sys.exit(main())
