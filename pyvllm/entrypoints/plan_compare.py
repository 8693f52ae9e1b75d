"""Two plans side by side: what each asks for, and what that does to bytes and to the bus."""

from collections.abc import Sequence

from pyvllm.entrypoints.tables import KIND_TITLES, PLACES, Document, Rows, columns, rate_text


def comparison_text(documents: Sequence[Document], names: Sequence[str]) -> str:
    """Lay two plans out as columns, with the difference of every figure."""
    one, other = documents
    models = {str(document["architecture"]) for document in documents}
    lines = columns(comparison_rows(one, other, names))
    if len(models) > 1 or one["weights"]["bytes"] != other["weights"]["bytes"]:
        lines.append("these are plans of different models")
    return "\n".join(lines)


def comparison_rows(one: Document, other: Document, names: Sequence[str]) -> Rows:
    """Give the rows of a comparison: name, first, second, and second minus first."""
    figures, of_other = _figures(one), _figures(other)
    rows = [["", *names, "difference"]]
    for title, of_document in (("backend", _backend), ("offload_config", lambda doc: doc["fit"]["offload_config"])):
        rows.append([title, of_document(one), of_document(other), ""])
    for name in {**figures, **of_other}:
        first, second = figures.get(name, 0), of_other.get(name, 0)
        rows.append([name, *(_number(value) for value in (first, second)), _difference(first, second)])
    rates = [document["bus"]["tokens_per_s"] for document in (one, other)]
    if all(rates):
        rows.append(["bus bound, expected", *(rate_text(rate["expected"]) for rate in rates), ""])
    return rows


def _backend(document: Document) -> str:
    return str(document["resolved_backend"]) if document["enabled"] else "none"


def _figures(document: Document) -> dict[str, int | None]:
    """Name every figure that two plans can be compared by."""
    planned, per_token, capacity = document["planned"], document["bus_bytes_per_token"], document["capacity"]
    figures: dict[str, int | None] = {name.replace("_", " "): nbytes for name, nbytes in planned.items()}
    figures |= {f"bus per token, {name}": nbytes for name, nbytes in per_token.items()}
    figures["device total"] = capacity["needed_device_bytes"]
    figures["device to spare"] = capacity["spare_device_bytes"]
    for kind in document["by_kind"]:
        for place in PLACES:
            if nbytes := kind[f"{place}_bytes"]:
                figures[f"{KIND_TITLES.get(kind['kind'], kind['kind'])} on {place}"] = nbytes
    return figures


def _number(value: int | None) -> str:
    return "not known" if value is None else f"{value:,}"


def _difference(first: int | None, second: int | None) -> str:
    if first is None or second is None or first == second:
        return ""
    return f"{second - first:+,}"
