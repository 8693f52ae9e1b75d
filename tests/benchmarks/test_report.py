"""What is made of the rounds: medians of the quiet ones, ratios that read the same way, bars with their distance."""

import argparse
import sys

import pytest
from bars import bare_shares, dense_bars, moe_bars, scan_bars
from offload import bars_of
from report import Bar, Figure, Result, figures_table, notes, ratios_table, summarise, write_into
from rows import DENSE, MOE, Row, Sizes
from tables import choose_rows

MIB = 2**20
SIZES = Sizes()
OURS, PEER = Row("pyvllm bf16", "pyvllm", "directory", "bf16"), Row("other bf16", "transformers", "directory", "bf16")


def answer(speed, foreign=0.0, start=1.0):
    columns = dict.fromkeys(SIZES.columns, speed)
    held = {"rss": 300 * MIB, "pss": 200 * MIB}
    return {
        "loaded_s": start, "loaded": held, "after_token": held, **columns,
        "foreign": dict.fromkeys(columns, foreign), "versions": {"p": "1"},
        "sizes": {"weights": 100 * MIB, "buffers": 0, "host": 50 * MIB, "streamed": 10 * MIB, "cache": 50 * MIB},
    }  # fmt: skip


def result(row, *speeds, **more):
    return summarise(row, [answer(speed, **more) for speed in speeds], SIZES.columns)


def test_the_median_is_of_the_rounds_in_which_the_machine_was_quiet():
    rounds = [answer(10, foreign=0.5), answer(30), answer(20), answer(50), answer(90, foreign=0.07)]
    figure = summarise(OURS, rounds, SIZES.columns).figures["8"]
    assert figure == Figure(30, 0.0) and not figure.is_loud


def test_a_figure_that_was_never_quiet_has_a_star_and_a_note():
    loud = result(OURS, 10, 20, 30, foreign=0.5)
    assert loud.figures["8"] == Figure(20, 0.5)
    assert "20.0*" in figures_table([loud], SIZES)
    assert any("more than 6% of a core (4 figures; 50% to 50%)" in line for line in notes([loud], {}))
    assert "*" not in figures_table([result(OURS, 10)], SIZES)


def test_a_row_that_failed_once_is_no_row_and_its_error_is_told():
    failed = summarise(OURS, [answer(10), {"error": "ValueError: x"}], SIZES.columns)
    assert failed.figures == {} and notes([failed], {}) == ["- failed: pyvllm bf16: ValueError: x"]
    assert figures_table([failed], SIZES).count("\n") == 1


def test_ratios_above_one_are_ahead_in_every_column():
    text = ratios_table([result(OURS, 20, start=1.0), result(PEER, 10, start=4.0)], SIZES)
    assert "| pyvllm bf16 / other bf16 | 4.00 | 1.00 | 1.00 | 2.00 | 2.00 | 2.00 | 2.00 |" in text
    assert "no ratio" in ratios_table([result(OURS, 20)], SIZES)


def test_rows_of_other_weights_are_not_compared():
    other = Row("llama.cpp Q4_1", "llama_cpp", "gguf", "Q4_1")
    assert "Q4_1" not in ratios_table([result(OURS, 20), result(PEER, 10), result(other, 10)], SIZES)


@pytest.mark.parametrize(
    ("bar", "state"),
    [
        (Bar("b", 90.0, 100.0), "10% below"),
        (Bar("b", 100.0, 100.0), "met"),
        (Bar("b", 3.0, 2.0, is_ceiling=True), "50% above"),
        (Bar("b", 2.0, 2.0, is_ceiling=True), "met"),
        (Bar("b", None, 2.0), "not measured"),
    ],
)
def test_a_bar_says_how_far_it_is_off(bar, state):
    assert bar.line()[-1] == state and bar.is_met == (state == "met")


def test_the_dense_bars_are_the_best_peer_the_machine_and_the_first_machine():
    limits = {"read_bytes_per_s": 100 * MIB * 1000, "interpreter": 150 * MIB}
    bars = {bar.text: bar for bar in dense_bars([result(OURS, 900, start=3.0), result(PEER, 1000)], limits)}
    assert bars["bf16, 1: 0.8 of memory read / weights"].limit == pytest.approx(800)
    assert bars["pyvllm bf16, 8: other bf16"].line()[-1] == "10% below"
    assert bars["bf16, 32: first machine's fastest peer"].is_met
    assert not bars["bf16, prefill: first machine's fastest peer"].is_met
    assert bars["pyvllm bf16: start → loaded, s"].line()[-1] == "50% above"


def test_memory_is_held_to_its_bar_with_a_full_cache_and_told_without():
    limits = {"read_bytes_per_s": 100 * MIB * 1000, "interpreter": 150 * MIB}
    results = [result(OURS, 900), result(PEER, 1000)]
    bars = {bar.text: bar for bar in dense_bars(results, limits)}
    bar = bars["pyvllm bf16: (loaded RSS + cache) / (weights + cache + interpreter with torch)"]
    assert bar.value == pytest.approx(350 / 300) and bar.line()[-1] == "11% above"
    assert bare_shares(results, limits) == [
        "- loaded RSS / (weights + interpreter with torch), the cache left out: pyvllm bf16 1.200"
    ]
    assert bare_shares(results[1:], limits) == []


def test_the_moe_bars_count_the_bytes_that_a_token_needs():
    limits = {"read_bytes_per_s": 1e9, "interpreter": 0}
    quantised = Row("pyvllm Q8_0, stored", "pyvllm", "moe-q8_0", "Q8_0")
    ours = [result(OURS, 20), result(quantised, 20)]
    rival = result(Row("transformers bf16", "transformers", "moe", "bf16"), 30)
    bars = {bar.text: bar for bar in moe_bars([*ours, rival], limits, active_weights=10_000_000)}
    assert bars["pyvllm bf16, 1: 0.7 of memory read / active bytes"].limit == pytest.approx(35)
    assert bars["pyvllm Q8_0, stored, 1: 0.7 of memory read / active bytes"].limit == pytest.approx(0.7e9 / 10.625e6)
    assert bars["pyvllm bf16, 32: transformers bf16"].line()[-1] == "33% below"


def test_the_scan_is_held_to_the_growth_of_a_step_at_one_sequence():
    few, many = Row("16 experts", "pyvllm", "a", "bf16"), Row("128 experts", "pyvllm", "b", "bf16")
    (bar,) = scan_bars([result(few, 100), result(many, 50)])
    assert bar.value == pytest.approx(2) and not bar.is_met


def test_the_offload_bars_are_the_issues_formulas():
    rows = [Row(name, "pyvllm", "directory", "bf16") for name in ("resident", "uva", "prefetch")]
    results = [result(row, speed) for row, speed in zip(rows, (800, 790, 700), strict=True)]
    bars, said = bars_of(results, "8", 128, bytes_per_s=20 * MIB / 0.01)
    # T = 8 / 800 s = 10 ms; 2 x 10 MiB at that bandwidth take 10 ms.
    assert bars[0].value == pytest.approx(790 / 800) and bars[0].limit == 0.95
    assert bars[1].value == pytest.approx(700 / 800) and bars[1].limit == pytest.approx(0.95 / 2)
    assert "T = 10.00 ms" in said and "10.00 ms at 2.1 GB/s" in said


def test_a_peer_that_cannot_be_imported_is_skipped_with_the_option_that_names_another(tmp_path):
    without = tmp_path / "python"
    without.write_text("#!/bin/sh\nexit 1\n")
    without.chmod(0o755)
    pythons = {f"python_{peer}": sys.executable for peer in ("pyvllm", "transformers", "accelerate")}
    options = argparse.Namespace(rows=["pyvllm", "llama.cpp"], **pythons, python_llama_cpp=without, python_vllm=without)
    able, skipped = choose_rows(DENSE, options)
    assert [row.name for row in able] == ["pyvllm bf16", "pyvllm Q4_1, stored", "pyvllm Q4_1, expanded"]
    assert skipped["llama.cpp Q4_1"] == f"{without} cannot import llama_cpp; name another by --python-llama-cpp"
    assert skipped["transformers bf16"] == "left out by --rows"


def test_rows_have_names_of_their_own():
    assert all(len({row.name for row in rows}) == len(rows) for rows in (DENSE, MOE))


def test_a_page_is_written_between_its_marks_only(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- serve dense -->\nold\n<!-- end dense -->\nafter\n")
    write_into(page, "dense", "new")
    assert page.read_text() == "before\n<!-- serve dense -->\nnew\n<!-- end dense -->\nafter\n"
    with pytest.raises(SystemExit, match="has no lines '<!-- serve moe -->'"):
        write_into(page, "moe", "new")


def test_a_missing_round_is_an_error():
    assert isinstance(summarise(OURS, [], SIZES.columns), Result)
    assert summarise(OURS, [], SIZES.columns).error == "no round was run"
