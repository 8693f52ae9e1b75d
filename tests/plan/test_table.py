"""The tables of a terminal: drawn with rich only there, with a bar for every layer."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import AssumedRoom, plan_document
from pyvllm.entrypoints.plan_table import BAR_WIDTH, bar_cells, full_bar_bytes, print_plan
from tests.plan.headers import QWEN3_30B_A3B, write_headers

ROOT = Path(__file__).parents[2]
PLACES = ("device", "host", "streamed")


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    model = write_headers({**QWEN3_30B_A3B, "num_hidden_layers": 6}, tmp_path_factory.mktemp("m"), 2)
    offload = OffloadConfig.from_dict({"uva": {"cpu_offload_gb": 3, "cpu_offload_params": ["experts"]}})
    return plan_document(EngineConfig(model=str(model), offload=offload), AssumedRoom(2**40, 2**41))


def printed(plan, **settings):
    out = io.StringIO()
    assert print_plan(plan, "the model", console=Console(file=out, width=150, highlight=False, **settings))
    return out.getvalue()


def test_every_figure_of_the_plan_is_on_the_terminal(plan):
    text = printed(plan)
    for place in ("device", "host", "kv_cache", "workspace"):
        assert f"{plan['planned'][f'{place}_bytes']:,}" in text
    for kind in plan["by_kind"]:
        assert all(f"{kind[f'{place}_bytes']:,}" in text for place in PLACES if kind[f"{place}_bytes"])
    assert all(f"warning: {warning}" in text for warning in plan["warnings"])


def test_every_layer_has_a_bar_whose_parts_are_its_places(plan):
    text = printed(plan, force_terminal=True, color_system="truecolor")
    bars = [line for line in text.splitlines() if "█" in line and "device" not in line]
    assert len(bars) == len(plan["by_layer"]) == 7
    assert [line.count("█") for line in bars[:6]] == [BAR_WIDTH] * 6
    assert "38;2;208;140;28m" in bars[0] and "38;2;208;140;28m" not in bars[5]
    assert "38;2;46;139;87m" in bars[5]


@given(st.lists(st.tuples(*[st.integers(0, 2**45)] * 3), min_size=1, max_size=5))
def test_bars_are_as_long_as_their_bytes_to_half_a_cell(sizes):
    layers = [{"layer": index, **{f"{place}_bytes": size for place, size in zip(PLACES, row, strict=True)}}
              for index, row in enumerate(sizes)]  # fmt: skip
    most = full_bar_bytes({"by_layer": layers})
    for layer, row in zip(layers, sizes, strict=True):
        cells = bar_cells(layer, most)
        assert sum(cells.values()) <= BAR_WIDTH
        for place, size in zip(PLACES, row, strict=True):
            assert cells[place] >= 0 and abs(cells[place] - (BAR_WIDTH * size / most if most else 0)) <= 1.001


def test_rich_is_imported_only_for_a_terminal(tmp_path):
    model = write_headers({**QWEN3_30B_A3B, "num_hidden_layers": 1, "num_experts": 8}, tmp_path / "m", 1)
    code = (
        "import sys\nfrom pyvllm.entrypoints.cli import main\ncode = main(sys.argv[1:])\n"
        "assert 'rich' not in sys.modules\nsys.exit(code)"
    )
    command = [sys.executable, "-c", code, "plan", str(model), "--device-bytes", "64G"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert "experts" in done.stdout
