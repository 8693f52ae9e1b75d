"""A plan on a terminal: tables, and a bar for every layer whose colours are the places of its bytes.

rich is imported only here, and only when a terminal is there to be written to.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyvllm.entrypoints.tables import (
    PLACES,
    Document,
    Rows,
    head_rows,
    kind_rows,
    layer_title,
    name_rows,
    note_lines,
    place_rows,
    weight_rows,
)

if TYPE_CHECKING:
    from rich.console import Console

#: Colours of the places, here and on the page.
COLOURS: Mapping[str, str] = {"device": "#2e8b57", "host": "#d08c1c", "streamed": "#3b7dd8"}
BAR_WIDTH = 40


def print_plan(document: Document, model: str, *, with_names: bool = False, console: "Console | None" = None) -> bool:
    """Print a plan on the terminal; false when rich is not installed.

    document: a plan or report document of `docs/plan.md`, sizes in bytes. model: what to call it.
    with_names: list every weight. console: where to print; by default stdout.
    """
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    target = console or Console(highlight=False)

    def table(rows: Rows) -> Table:
        """Lay out a head row and its rows; numbers stand to the right."""
        made = Table(box=None, pad_edge=False, header_style="bold")
        for position, title in enumerate(rows[0]):
            made.add_column(title, justify="left" if position == 0 else "right", overflow="fold")
        for row in rows[1:]:
            made.add_row(*(Text(cell) for cell in row))
        return made

    head = Table(box=None, pad_edge=False, show_header=False)
    head.add_column(style="bold", no_wrap=True)
    head.add_column(overflow="fold")
    for name, text in head_rows(document, model):
        head.add_row(name, Text(text))
    target.print(head, "", table(place_rows(document)), "", table(kind_rows(document)), "", sep="\n")
    _print_bars(target, document)
    target.print("", table(weight_rows(document) if with_names else name_rows(document)), sep="\n")
    for line in note_lines(document):
        target.print(Text(line))
    return True


def _print_bars(console: "Console", document: Document) -> None:
    from rich.text import Text

    legend = Text("layer     ")
    for place in PLACES:
        legend.append("█ ", COLOURS[place]).append(f"{place}  ")
    console.print(legend)
    most = full_bar_bytes(document)
    for layer in document["by_layer"]:
        line = Text(f"{layer_title(layer):<10}")
        for place, cells in bar_cells(layer, most).items():
            line.append("█" * cells, COLOURS[place])
        line.append(cut_mark(layer, most)).append(f" {layer_bytes(layer):,}")
        console.print(line, overflow="ellipsis", no_wrap=True)


def layer_bytes(layer: Mapping[str, Any]) -> int:
    """Sum a row of `by_layer`."""
    return sum(layer[f"{place}_bytes"] for place in PLACES)


def full_bar_bytes(document: Document) -> int:
    """Say how many bytes fill a bar: those of the largest decoder layer, beside which the embedding may be huge."""
    sizes = {layer["layer"]: layer_bytes(layer) for layer in document["by_layer"]}
    outside = sizes.pop(None, 0)
    return max(sizes.values(), default=outside)


def cut_mark(layer: Mapping[str, Any], most: int) -> str:
    """Mark a bar that would be longer than a full one."""
    return f" (bar cut: {layer_bytes(layer) / most:.1f} times as long)" if most and layer_bytes(layer) > most else ""


def bar_cells(layer: Mapping[str, Any], most: int, width: int = BAR_WIDTH) -> dict[str, int]:
    """Share a bar of at most `width` cells out among the places of a layer; `most` bytes fill it, and more fill it too.

    The ends of the parts are rounded, not their lengths, so that bars of equal bytes are of equal length.
    """
    cells, end, done, most = {}, 0, 0, max(most, layer_bytes(layer))
    for place in PLACES:
        done += layer[f"{place}_bytes"]
        cells[place] = round(width * done / most) - end if most else 0
        end += cells[place]
    return cells
