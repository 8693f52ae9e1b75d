"""The page in a real browser: its figures are the plan's, its lengths are their bytes, and it fetches nothing."""

import re

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.preview import AssumedRoom, plan_document
from pyvllm.entrypoints.plan_page import plan_page
from pyvllm.entrypoints.plan_table import COLOURS
from tests.plan.browser import open_page
from tests.plan.headers import QWEN3_30B_A3B, write_headers

LAYERS = """
return [...document.querySelectorAll('.layer')].map(row => ({
  layer: row.dataset.layer, text: row.querySelector('.bytes').innerText,
  track: row.querySelector('.track').getBoundingClientRect().width,
  cells: [...row.querySelectorAll('.cell')].map(cell => ({
    name: cell.dataset.name, bytes: Number(cell.dataset.bytes), width: cell.getBoundingClientRect().width,
    colour: getComputedStyle(cell).backgroundColor}))}))
"""
SHOWN = "return [...document.querySelectorAll('.tip')].filter(tip => tip.checkVisibility()).map(tip => tip.innerText)"


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    model = write_headers({**QWEN3_30B_A3B, "num_hidden_layers": 12}, tmp_path_factory.mktemp("m"), 3)
    offload = OffloadConfig.from_dict({"vllm_cpp": {"device_fit": {"auto": True}}})
    config = EngineConfig(model=str(model), max_model_len=4096, offload=offload)
    document = plan_document(config, AssumedRoom(12 * 2**30, 2**40))
    document["bus"] |= {"gb_per_s": 50.0, "tokens_per_s": {"worst": 1.25, "expected": 20.5}}
    return document


@pytest.fixture(scope="module")
def page(plan, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "plan.html"
    file.write_text(plan_page(plan, "a <model> & more"))
    with open_page(file) as opened:
        yield opened


@pytest.fixture(scope="module")
def rows(page):
    return page.run(LAYERS)


def test_every_layer_is_a_row_with_the_plans_bytes(plan, rows):
    assert [row["layer"] for row in rows] == [*map(str, range(12)), "outside"]
    for row, layer in zip(rows, plan["by_layer"], strict=True):
        total = sum(layer[f"{place}_bytes"] for place in ("device", "host", "streamed"))
        assert row["text"].startswith(f"{total:,}")
        assert sum(cell["bytes"] for cell in row["cells"]) == total


def test_every_weight_is_a_part_in_the_colour_of_its_place(plan, rows):
    place = {weight["name"]: (weight["place"], weight["bytes"]) for weight in plan["placements"]}
    cells = [cell for row in rows for cell in row["cells"]]
    assert {cell["name"] for cell in cells} == set(place)
    for cell in cells:
        red, green, blue = (int(COLOURS[place[cell["name"]][0]][start : start + 2], 16) for start in (1, 3, 5))
        assert cell["colour"] == f"rgb({red}, {green}, {blue})" and cell["bytes"] == place[cell["name"]][1]
    assert len({cell["colour"] for cell in cells}) == 2


def test_lengths_are_in_proportion_to_bytes(rows):
    full = max(sum(cell["bytes"] for cell in row["cells"]) for row in rows[:-1])
    for row in rows[:-1]:
        for cell in row["cells"]:
            assert cell["width"] == pytest.approx(cell["bytes"] / full * row["track"], abs=9)
    assert rows[0]["track"] > 500


def test_pointing_at_a_weight_shows_its_name_and_bytes_and_only_those(plan, page):
    assert page.run(SHOWN) == []
    weight = next(weight for weight in plan["placements"] if weight["place"] == "host")
    page.point_at(f'[data-name="{weight["name"]}"]')
    assert page.run(SHOWN) == [f"{weight['name']}: {weight['bytes']:,} bytes, host"]


def test_totals_and_the_bus_bound_stand_on_top_of_the_layers(plan, page):
    totals = page.run("return document.querySelector('#totals').innerText")
    for figure in (
        f"{plan['weights']['bytes']:,} bytes",
        f"at most {plan['bus_bytes_per_token']['worst']:,} bytes; expected {plan['bus_bytes_per_token']['expected']:,}",
        f"{plan['capacity']['needed_device_bytes']:,} bytes of {plan['capacity']['usable_device_bytes']:,} usable",
        "at 50 GB/s one sequence gets at most: worst 1.25 tokens/s; expected 20.50 tokens/s",
        plan["fit"]["offload_config"],
    ):
        assert figure in totals
    tops = page.run("return ['#totals', '.layer'].map(at => document.querySelector(at).getBoundingClientRect().top)")
    assert tops[0] < tops[1]


def test_tables_have_the_plans_figures(plan, page):
    places = page.run("return document.querySelector('#places').innerText")
    kinds = page.run("return document.querySelector('#kinds').innerText")
    for place in ("device", "host", "kv_cache", "workspace"):
        assert f"{plan['planned'][f'{place}_bytes']:,}" in places
    for kind in plan["by_kind"]:
        assert f"{max(kind['device_bytes'], kind['host_bytes']):,}" in kinds


def test_page_is_self_contained_and_shows_text_as_text(plan, page):
    assert page.run("return performance.getEntriesByType('resource').length") == 0
    assert page.run("return document.title") == "Plan of a <model> & more"
    text = plan_page(plan, "m")
    assert not re.search(r"<script|<link|<img|<iframe|url\(|@import|https?:", text)
