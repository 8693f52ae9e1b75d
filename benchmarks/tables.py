"""The three tables: what each needs made, run and compared."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bars import Bar, bare_shares, dense_bars, moe_bars, scan_bars
from models import TINY_MOE, MoeShape
from report import Result, bars_table, figures_table, markdown, notes, ratios_table, summarise
from rows import DENSE, MOE, QUICK, Row, Sizes, has_module, here, run_row

#: Experts of the scan, and its layers: fewer than the table's, because only the growth is looked at.
SCAN_EXPERTS, SCAN_LAYERS = (16, 64, 128), 4


def sizes_of(options: argparse.Namespace) -> Sizes:
    """Take the sizes from the command line."""
    sizes = asdict(QUICK if options.quick else Sizes())
    given = {name: value for name in ("rounds", "tries") if (value := getattr(options, name)) is not None}
    return Sizes(**(sizes | given))


def choose_rows(rows: Sequence[Row], options: argparse.Namespace) -> tuple[list[Row], dict[str, str]]:
    """Split the rows into those that can run and the others, with the reason."""
    wanted = [row for row in rows if not options.rows or any(text in row.name for text in options.rows)]
    skipped = {row.name: "left out by --rows" for row in rows if row not in wanted}
    able = {peer: has_module(python_of(options, peer), peer) for peer in {row.peer for row in wanted}}
    for row in wanted:
        if not able[row.peer]:
            python, option = python_of(options, row.peer), f"--python-{row.peer.replace('_', '-')}"
            skipped[row.name] = f"{python} cannot import {row.peer}; name another by {option}"
    return [row for row in wanted if able[row.peer]], skipped


def python_of(options: argparse.Namespace, peer: str) -> str:
    """Give the interpreter of a peer."""
    return getattr(options, f"python_{peer}")


def run_in_turn(
    rows: Sequence[Row], files: Mapping[str, str], vocab_size: int, sizes: Sizes, options: argparse.Namespace
) -> list[Result]:
    """Measure every row once a round and summarise."""
    answers: dict[str, list[dict[str, object]]] = {row.name: [] for row in rows}
    for turn in range(sizes.rounds):
        for row in rows:
            if any("error" in answer for answer in answers[row.name]):
                continue
            print(f"round {turn + 1} of {sizes.rounds}: {row.name}", file=sys.stderr, flush=True)
            python = python_of(options, row.peer)
            answers[row.name].append(run_row(row, python, files[row.files], vocab_size, sizes, turn))
    return [summarise(row, answers[row.name], sizes.columns) for row in rows]


def make_dense(model: str, folder: str, rows: Sequence[Row], options: argparse.Namespace) -> dict[str, str]:
    """Make the forms of the dense model that the rows need."""
    files = {"gguf": model, "directory": f"{folder}/model", "gguf-bf16": f"{folder}/model-bf16.gguf"}
    here("models.py", "directory", model, files["directory"])
    if any(row.files == "gguf-bf16" for row in rows):
        task = [model, files["gguf-bf16"], str(len(os.sched_getaffinity(0)))]
        here("-m", "peers.llama_cpp_convert", *task, python=python_of(options, "llama_cpp"))
    return files


def make_moe(model: str, folder: str, shape: MoeShape, with_gguf: bool) -> dict[str, str]:
    """Make the forms of the mixture of experts."""
    here("models.py", "moe", model, folder, json.dumps(asdict(shape)), "with_gguf" if with_gguf else "without_gguf")
    return {name: f"{folder}/{name}{'' if name == 'moe' else '.gguf'}" for name in ("moe", "moe-bf16", "moe-q8_0")}


def vocab_of(directory: str) -> int:
    """Read the vocabulary's size from a model directory."""
    return int(json.loads(Path(directory, "config.json").read_text())["vocab_size"])


def dense(folder: str, limits: Mapping[str, float], options: argparse.Namespace) -> tuple[str, bool]:
    """Measure SmolLM2; give the text and whether every row ran and every bar is met."""
    sizes, (rows, skipped) = sizes_of(options), choose_rows(DENSE, options)
    files = make_dense(options.model, folder, rows, options)
    results = run_in_turn(rows, files, vocab_of(files["directory"]), sizes, options)
    return _page(results, sizes, skipped, dense_bars(results, limits), bare_shares(results, limits))


def moe(folder: str, limits: Mapping[str, float], options: argparse.Namespace) -> tuple[str, bool]:
    """Measure the mixture of experts; as `dense`."""
    sizes, (rows, skipped) = sizes_of(options), choose_rows(MOE, options)
    shape = TINY_MOE if options.quick else MoeShape()
    files = make_moe(options.model, folder, shape, any(row.files != "moe" for row in rows))
    vocab_size = vocab_of(files["moe"])
    results = run_in_turn(rows, files, vocab_size, sizes, options)
    return _page(results, sizes, skipped, moe_bars(results, limits, shape.active_weights(vocab_size)))


def _page(
    results: Sequence[Result], sizes: Sizes, skipped: Mapping[str, str], bars: Sequence[Bar], more: Sequence[str] = ()
) -> tuple[str, bool]:
    parts = [figures_table(results, sizes), ratios_table(results, sizes), bars_table(bars)]
    parts += ["\n".join(said)] if (said := [*more, *notes(results, skipped)]) else []
    is_good = all(bar.is_met for bar in bars) and not any(result.error for result in results)
    return "\n\n".join(parts), is_good


def scan(folder: str, limits: Mapping[str, float], options: argparse.Namespace) -> tuple[str, bool]:
    """Measure this project's step with more and more experts, of which a token uses as many as before; as `dense`."""
    sizes, row = sizes_of(options), MOE[0]
    table_shape = TINY_MOE if options.quick else replace(MoeShape(), num_hidden_layers=SCAN_LAYERS)
    shapes = [replace(table_shape, num_experts=count) for count in SCAN_EXPERTS]
    files, rows = {}, []
    for shape in shapes:
        name = f"{shape.num_experts} experts"
        made = make_moe(options.model, f"{folder}/{shape.num_experts}", shape, False)
        files[name] = made["moe"]
        rows.append(replace(row, name=name, files=name))
    results = run_in_turn(rows, files, vocab_of(made["moe"]), sizes, options)
    bars = scan_bars(results)
    pairs = zip(results, shapes, strict=True)
    lines = [_scan_line(result, shape, sizes) for result, shape in pairs if not result.error]
    header = ["", "expert weights, MB"]
    header += [f"ms/step at {count} (routed experts a layer)" for count in (1, *sizes.batches)]
    parts = [markdown(header, lines), bars_table(bars), "\n".join(notes(results, {}))]
    is_good = all(bar.is_met for bar in bars) and not any(result.error for result in results)
    return "\n\n".join(parts), is_good


def _scan_line(result: Result, shape: MoeShape, sizes: Sizes) -> list[str]:
    """The time of a step, and how many experts it routes to when the router's choice is uniform."""
    experts, chosen = shape.num_experts, shape.num_experts_per_tok
    weights = 3 * experts * shape.num_hidden_layers * shape.hidden_size * shape.moe_intermediate_size
    line = [result.row.name, f"{2 * weights / 1e6:,.0f}"]
    for count in (1, *sizes.batches):
        routed = experts * (1 - (1 - chosen / experts) ** count)
        figure = result.figures.get(str(count))
        line.append("–" if figure is None else f"{1000 * count / figure.value:.2f} ({routed:.1f})")
    return line


TABLES: Mapping[str, Callable[[str, Mapping[str, float], argparse.Namespace], tuple[str, bool]]] = {
    "dense": dense,
    "moe": moe,
    "scan": scan,
}
