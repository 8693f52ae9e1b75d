"""Plans and reports as plain text, for people; the documents themselves are in `docs/weight-offload.md`."""

from collections.abc import Mapping, Sequence
from typing import Any

PLACES = ("device", "host", "streamed")
_OTHERS = ("buffer", "kv_cache", "workspace")

#: One of the two documents that `vllm_offload_plan` and `vllm_engine_offload_report` return.
Document = Mapping[str, Any]


def offload_line(document: Document) -> str:
    """Say in one line which backend is used, what was asked and what is planned; bytes are exact."""
    asked, planned = document["asked"]["host_bytes"], document["planned"]
    backend = document["resolved_backend"] if document["enabled"] else "none"
    places = ", ".join(f"{place} {planned[f'{place}_bytes']}" for place in (*PLACES, "buffer"))
    return f"offload {backend}; asked {'nothing' if asked is None else f'{asked} bytes'}; planned bytes: {places}"


def plan_text(document: Document, model: str) -> str:
    """Lay out a plan or a report: totals, bytes of each place, weights of each kind, warnings."""
    return "\n".join([*_head(document, model), "", *_places(document), "", *_placements(document), *_notes(document)])


def _head(document: Document, model: str) -> list[str]:
    weights, asked = document["weights"], document["asked"]
    lines = [
        ["model", model],
        ["architecture", document["architecture"]],
        ["weights", f"{weights['count']} with {weights['bytes']:,} bytes; file {weights['file_bytes']:,} bytes"],
        ["offload", document["resolved_backend"] if document["enabled"] else "none"],
    ]
    if asked["host_bytes"] is not None:
        over = asked["overshoot_bytes"]
        lines.append(["asked", f"{asked['host_bytes']:,} bytes; the last weight goes {over:,} beyond"])
    bus = document["bus_bytes_per_token"]
    lines.append(["bus per token", f"at most {bus['worst']:,} bytes; expected {bus['expected']:,}"])
    capacity = document["capacity"]
    for place in ("device", "host"):
        room = capacity[f"{place}_bytes"]
        lines.append([f"{place} room", "not known" if room is None else f"{room:,} bytes"])
    lines[-2][1] += f" ({capacity['device_name']}, {capacity['source']})"
    return [f"{name:<15}{text}" for name, text in lines]


def _places(document: Document) -> list[str]:
    planned, measured = document["planned"], document["measured"]
    rows = [["place", "planned bytes", *(["measured bytes"] if measured else [])]]
    for place in (*PLACES, *_OTHERS):
        row = [place.replace("_", " "), f"{planned[f'{place}_bytes']:,}"]
        if measured:
            row.append(f"{measured[key]:,}" if (key := f"{place}_bytes") in measured else "")
        rows.append(row)
    if measured:
        rows.append(["overhead", "", f"{measured['overhead_bytes']:,}"])
    return _columns(rows)


def _placements(document: Document) -> list[str]:
    """One row for each kind of weight: the same name in every layer is one kind."""
    kinds: dict[str, dict[str, list[int]]] = {}
    for weight in document["placements"]:
        name, layer = weight["name"], weight["layer"]
        kind = name if layer is None else name.replace(f".{layer}.", ".*.", 1)
        kinds.setdefault(kind, {place: [] for place in PLACES})[weight["place"]].append(weight["bytes"])
    rows = [["weight", *(f"on {place}" for place in PLACES)]]
    for kind, places in kinds.items():
        rows.append([kind, *(f"{len(sizes)}: {sum(sizes):,}" if sizes else "-" for sizes in places.values())])
    return _columns(rows)


def _notes(document: Document) -> list[str]:
    unmatched = [f"selects nothing: {entry!r}" for entry in document["unmatched"]]
    warnings = [f"warning: {text}" for text in document["warnings"]]
    return ["", *unmatched, *warnings] if unmatched or warnings else []


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows: the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines
