"""Plans and reports as rows, and as plain text for people; `docs/plan.md` describes the documents themselves."""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

PLACES = ("device", "host", "streamed")
_PLACE_TITLES = ("on device", "on host", "streamed")
_OTHERS = ("buffer", "kv_cache", "workspace")

#: What the kinds of weight are called in tables.
KIND_TITLES: Mapping[str, str] = {
    "attention": "attention",
    "dense": "dense feed-forward",
    "experts": "experts",
    "embedding": "embeddings",
    "head": "head",
    "norm": "norms",
    "other": "other (routers)",
}

#: One of the two documents that `vllm_offload_plan` and `vllm_engine_offload_report` return.
Document = Mapping[str, Any]
Rows = list[list[str]]


def offload_line(document: Document) -> str:
    """Say in one line which backend is used, what was asked and what is planned; bytes are exact."""
    asked, planned = document["asked"]["host_bytes"], document["planned"]
    backend = document["resolved_backend"] if document["enabled"] else "none"
    places = ", ".join(f"{place} {planned[f'{place}_bytes']}" for place in (*PLACES, "buffer"))
    return f"offload {backend}; asked {'nothing' if asked is None else f'{asked} bytes'}; planned bytes: {places}"


def plan_text(document: Document, model: str, *, with_names: bool = False) -> str:
    """Lay out a plan or a report: totals, bytes of each place, kind and layer, weights of each name, notes."""
    parts = [
        [f"{name:<15}{text}" for name, text in head_rows(document, model)],
        columns(place_rows(document)),
        columns(kind_rows(document)),
        columns(layer_rows(document)),
        columns(weight_rows(document) if with_names else name_rows(document)),
        note_lines(document),
    ]
    return "\n\n".join("\n".join(lines) for lines in parts if lines)


def head_rows(document: Document, model: str) -> Rows:
    """Give what a reader wants first: the model, the offload, totals against the device, and the bus."""
    weights, asked = document["weights"], document["asked"]
    rows = [
        ["model", model],
        ["architecture", document["architecture"]],
        ["weights", f"{weights['count']} with {weights['bytes']:,} bytes; file {weights['file_bytes']:,} bytes"],
        ["offload", document["resolved_backend"] if document["enabled"] else "none"],
    ]
    if document["fit"]["auto"]:
        rows.append(["fit", document["fit"]["reason"]])
        rows.append(["same plan", f"--offload-config {quote(document['fit']['offload_config'])}"])
    if asked["host_bytes"] is not None:
        over = asked["overshoot_bytes"]
        rows.append(["asked", f"{asked['host_bytes']:,} bytes; the last weight goes {over:,} beyond"])
    return [*rows, *bus_rows(document), *room_rows(document)]


def bus_rows(document: Document) -> Rows:
    """Give the bytes that cross the bus for a token, and the rate they bound where a bandwidth was given."""
    per_token, bus = document["bus_bytes_per_token"], document["bus"]
    text = f"at most {per_token['worst']:,} bytes; expected {per_token['expected']:,}"
    if bus["experts_of"] is not None:
        dense, experts = bus["dense_bytes"]["expected"], bus["experts_bytes"]["expected"]
        text += f" (dense {dense:,}, experts {experts:,} with top-{bus['experts_used']} of {bus['experts_of']})"
    rows = [["bus per token", text]]
    if rates := bus["tokens_per_s"]:
        bound = "; ".join(f"{name} {rate_text(rates[name])}" for name in ("worst", "expected"))
        rows.append(["bus bound", f"at {bus['gb_per_s']:g} GB/s one sequence gets at most: {bound}"])
    return rows


def rate_text(rate: float | None) -> str:
    """Write a rate that the bus bounds; None is no bound."""
    return "no bound" if rate is None else f"{rate:,.2f} tokens/s"


def room_rows(document: Document) -> Rows:
    """Give what device and host have, and the device's total against it."""
    capacity = document["capacity"]
    device, spare = capacity["device_bytes"], capacity["spare_device_bytes"]
    room = "not known" if device is None else f"{device:,} bytes"
    total = f"{capacity['needed_device_bytes']:,} bytes"
    if spare is not None:
        total += f" of {capacity['usable_device_bytes']:,} usable; {spare:,} to spare"
    return [
        ["device room", f"{room} ({capacity['device_name']}, {capacity['source']})"],
        ["device total", total],
        ["host room", f"{capacity['host_bytes']:,} bytes ({capacity['host_source']})"],
    ]


def place_rows(document: Document) -> Rows:
    """Give the bytes of each place, planned and, in a report, measured."""
    planned, measured = document["planned"], document["measured"]
    rows = [["place", "planned bytes", *(["measured bytes"] if measured else [])]]
    for place in (*PLACES, *_OTHERS):
        row = [place.replace("_", " "), f"{planned[f'{place}_bytes']:,}"]
        if measured:
            row.append(f"{measured[key]:,}" if (key := f"{place}_bytes") in measured else "")
        rows.append(row)
    if measured:
        rows.append(["overhead", "", f"{measured['overhead_bytes']:,}"])
    return rows


def kind_rows(document: Document) -> Rows:
    """Give the bytes of each kind of weight, by place."""
    rows = [["kind", "weights", *_PLACE_TITLES, "bus per token"]]
    for kind in document["by_kind"]:
        title = KIND_TITLES.get(kind["kind"], kind["kind"])
        rows.append([title, f"{kind['count']:,}", *_bytes_of(kind), f"{kind['bus_bytes_per_token']['expected']:,}"])
    return rows


def layer_rows(document: Document) -> Rows:
    """Give the bytes of each layer, by place."""
    rows = [["layer", *_PLACE_TITLES, "bus per token"]]
    for layer in document["by_layer"]:
        rows.append([layer_title(layer), *_bytes_of(layer), f"{layer['bus_bytes_per_token']['expected']:,}"])
    return rows


def layer_title(layer: Mapping[str, Any]) -> str:
    """Name a row of `by_layer`."""
    return "outside" if layer["layer"] is None else str(layer["layer"])


def _bytes_of(sums: Mapping[str, Any]) -> list[str]:
    return [f"{sums[f'{place}_bytes']:,}" if sums[f"{place}_bytes"] else "-" for place in PLACES]


def name_rows(document: Document) -> Rows:
    """Give one row for each name: the same name in every layer is one."""
    names: dict[str, dict[str, list[int]]] = {}
    for weight in document["placements"]:
        name, layer = weight["name"], weight["layer"]
        shared = name if layer is None else name.replace(f".{layer}.", ".*.", 1)
        names.setdefault(shared, {place: [] for place in PLACES})[weight["place"]].append(weight["bytes"])
    rows = [["weight", *_PLACE_TITLES]]
    for name, places in names.items():
        rows.append([name, *(f"{len(sizes)}: {sum(sizes):,}" if sizes else "-" for sizes in places.values())])
    return rows


def weight_rows(document: Document) -> Rows:
    """Give one row for each weight, with why it stayed where it did."""
    rows = [["weight", "bytes", "place", "why"]]
    for weight in document["placements"]:
        rows.append([weight["name"], f"{weight['bytes']:,}", weight["place"], weight["why"]])
    return rows


def note_lines(document: Document) -> list[str]:
    """Give what was not selected and why, selectors without a match, and warnings."""
    stayed = [f"on device: {item['count']} weights, {item['bytes']:,} bytes: {item['why']}"
              for item in document["not_selected"]]  # fmt: skip
    unmatched = [f"selects nothing: {entry!r}" for entry in document["unmatched"]]
    return [*stayed, *unmatched, *(f"warning: {text}" for text in document["warnings"])]


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows: the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
