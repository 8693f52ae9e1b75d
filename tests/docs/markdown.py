"""What tests need of a page: its code blocks, its tables, its links."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
OFFLOAD = ROOT / "docs" / "weight-offload.md"

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
_CELL = re.compile(r"(?<!\\)\|")


def blocks(page, language):
    """The code blocks of a language, in order."""
    return [text for name, text in _BLOCK.findall(page.read_text()) if name == language]


def links(page):
    """Pairs of text and target, outside code blocks."""
    return _LINK.findall(_BLOCK.sub("", page.read_text()))


def table(page, *header):
    """The rows of the one table with these column names; code marks are taken off the cells."""
    rows = [_cells(line) for line in page.read_text().splitlines()]
    start = rows.index(list(header))
    found = []
    for row in rows[start + 2 :]:
        if len(row) != len(header):
            break
        found.append([cell[1:-1] if cell.count("`") == 2 and cell[0] == cell[-1] == "`" else cell for cell in row])
    return found


def _cells(line):
    return [cell.strip() for cell in _CELL.split(line.strip().strip("|"))]


def named(paths):
    """Readable test ids."""
    return [Path(path).name for path in paths]
