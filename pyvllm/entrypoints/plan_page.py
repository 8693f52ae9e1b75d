"""A plan as one page: no script, no font, no image, nothing fetched, so it can be mailed and opened anywhere."""

from collections.abc import Mapping
from html import escape
from typing import Any

from pyvllm.entrypoints.plan_table import COLOURS, cut_mark, full_bar_bytes, layer_bytes
from pyvllm.entrypoints.tables import (
    PLACES,
    Document,
    Rows,
    head_rows,
    kind_rows,
    layer_title,
    note_lines,
    place_rows,
)

_STYLE = """
:root { color-scheme: light dark; }
body { font: 14px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.05rem; margin-top: 1.6rem; }
table { border-collapse: collapse; } td, th { padding: .1rem .9rem .1rem 0; text-align: right; vertical-align: top; }
td:first-child, th:first-child, #totals td { text-align: left; }
#totals td:first-child { font-weight: 600; white-space: nowrap; }
td, .bytes { font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.key { display: inline-block; width: .9em; height: .9em; margin: 0 .35em 0 1em; vertical-align: -.1em; }
.layer { position: relative; display: flex; align-items: center; min-height: 1.25rem; }
.label { flex: 0 0 4.5rem; } .track { flex: 1 1 auto; height: .95rem; } .bytes { flex: 0 0 10rem; text-align: right; }
.bar { display: flex; height: 100%; }
.cell { box-sizing: border-box; min-width: 1px; border-right: 1px solid rgba(255, 255, 255, .45); }
.tip { display: none; position: absolute; z-index: 1; left: 4.5rem; top: 100%; padding: .25rem .6rem; max-width: 90%;
       background: #222; color: #fff; border-radius: .25rem; pointer-events: none; overflow-wrap: anywhere; }
.cell:hover, .cell:focus { outline: 2px solid currentColor; }
.cell:hover .tip, .cell:focus .tip { display: block; }
"""


def plan_page(document: Document, model: str) -> str:
    """Build the page: totals and the bus bound on top, then kinds, then a row for each layer.

    A row's length is the layer's share of the largest decoder layer, its parts are weights, their colour is the place;
    pointing at one shows its name and bytes. The figures are the document's own, in `data-` attributes too.
    """
    layers = document["by_layer"]
    most = full_bar_bytes(document)
    weights: dict[int | None, list[Mapping[str, Any]]] = {}
    for weight in document["placements"]:
        weights.setdefault(weight["layer"], []).append(weight)
    colours = "".join(f".{place} {{ background: {colour}; }}\n" for place, colour in COLOURS.items())
    title = escape(f"Plan of {model}")
    return "\n".join([
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{title}</title>\n<style>{_STYLE}{colours}</style>\n</head>\n<body>\n<h1>{title}</h1>",
        _table("totals", [[], *head_rows(document, model)]),
        f"<h2>Places</h2>\n{_table('places', place_rows(document))}",
        f"<h2>Kinds</h2>\n{_table('kinds', kind_rows(document))}",
        f"<h2>Layers</h2>\n<p>{_legend()}</p>",
        *(_layer(layer, weights.get(layer["layer"], []), most) for layer in layers),
        *(f'<p class="note">{escape(line)}</p>' for line in note_lines(document)),
        "</body>\n</html>\n",
    ])  # fmt: skip


def _table(name: str, rows: Rows) -> str:
    head = "".join(f"<th>{escape(title)}</th>" for title in rows[0])
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:])
    return f'<table id="{name}">\n{f"<tr>{head}</tr>" if head else ""}\n{body}\n</table>'


def _legend() -> str:
    return "".join(f'<span class="key {place}"></span>{place}' for place in PLACES)


def _layer(layer: Mapping[str, Any], weights: list[Mapping[str, Any]], most: int) -> str:
    total = layer_bytes(layer)
    share = 100 * min(total / most, 1) if most else 0
    sums = " ".join(f'data-{place}-bytes="{layer[f"{place}_bytes"]}"' for place in PLACES)
    cells = "".join(map(_cell, weights))
    return (
        f'<div class="layer" data-layer="{layer_title(layer)}" {sums}><span class="label">{layer_title(layer)}</span>'
        f'<span class="track"><span class="bar" style="width: {share:.4f}%">{cells}</span></span>'
        f'<span class="bytes">{total:,}{cut_mark(layer, most)}</span></div>'
    )


def _cell(weight: Mapping[str, Any]) -> str:
    name, place, nbytes = escape(weight["name"]), escape(weight["place"]), weight["bytes"]
    why = f" ({escape(weight['why'])})" if weight["why"] else ""
    return (
        f'<span class="cell {place}" tabindex="0" style="flex: {nbytes} 1 0" data-name="{name}" '
        f'data-bytes="{nbytes}"><span class="tip">{name}: {nbytes:,} bytes, {place}{why}</span></span>'
    )
