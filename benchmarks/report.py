"""Medians over the rounds, and the tables that are printed, in Markdown."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from peers.measuring import FOREIGN_SHARE
from rows import Row, Sizes

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Figure:
    """A median of some rounds."""

    value: float
    foreign: float = 0.0
    """Share of a core that others used meanwhile; more than FOREIGN_SHARE only when no round was quiet."""

    @property
    def is_loud(self) -> bool:
        """Whether the figure was never measured on a quiet machine."""
        return self.foreign > FOREIGN_SHARE


@dataclass(frozen=True, slots=True)
class Result:
    """What a row came to."""

    row: Row
    figures: Mapping[str, Figure]
    versions: Mapping[str, str]
    sizes: Mapping[str, int]
    error: str | None = None


def summarise(row: Row, answers: Sequence[Mapping[str, object]], columns: Sequence[str]) -> Result:
    """Take the median of each figure over the rounds in which nothing else used the machine, or over all."""
    errors = [str(answer["error"]) for answer in answers if "error" in answer]
    if errors or not answers:
        return Result(row, {}, {}, {}, errors[0] if errors else "no round was run")
    figures = {"start": Figure(median(answer["loaded_s"] for answer in answers))}
    for moment in ("loaded", "after_token"):
        for kind in ("rss", "pss"):
            figures[f"{moment} {kind}"] = Figure(median(answer[moment][kind] for answer in answers))
    for column in columns:
        rounds = [(answer["foreign"][column], answer[column]) for answer in answers if answer.get(column)]
        if rounds:
            kept = [pair for pair in rounds if pair[0] <= FOREIGN_SHARE] or rounds
            figures[column] = Figure(median(value for _, value in kept), min(share for share, _ in kept))
    return Result(row, figures, answers[0]["versions"], answers[0]["sizes"])


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Lay a table out."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *lines))


def figures_table(results: Sequence[Result], sizes: Sizes) -> str:
    """Print every row. A figure with a star was measured while others used the machine."""
    header = ["", "start → loaded, s", "loaded, MiB RSS (PSS)", "after a token"]
    header += [f"tokens/s, {column}" for column in sizes.columns[:-1]] + [f"prefill {sizes.prefill}, tokens/s"]
    return markdown(header, [_line(result, sizes) for result in results if result.error is None])


def _line(result: Result, sizes: Sizes) -> list[str]:
    figures = result.figures
    line = [result.row.name, f"{figures['start'].value:.2f}"]
    for moment in ("loaded", "after_token"):
        rss, pss = (figures[f"{moment} {kind}"].value / MIB for kind in ("rss", "pss"))
        line.append(f"{rss:,.0f} ({pss:,.0f})")
    for column in sizes.columns:
        figure = figures.get(column)
        line.append("–" if figure is None else f"{figure.value:,.1f}{'*' if figure.is_loud else ''}")
    return line


def ratios_table(results: Sequence[Result], sizes: Sizes) -> str:
    """Print each of our rows over each peer of the same weights: above 1 is ahead in every column.

    Seconds and bytes are turned round for it: the peer's over ours.
    """
    good = [result for result in results if result.error is None]
    lines = []
    for ours in (result for result in good if result.row.is_ours):
        for peer in (result for result in good if not result.row.is_ours and result.row.kind == ours.row.kind):
            line = [f"{ours.row.name} / {peer.row.name}"]
            for name in ("start", "loaded rss", "after_token rss"):
                line.append(f"{peer.figures[name].value / ours.figures[name].value:.2f}")
            for name in sizes.columns:
                both = ours.figures.get(name), peer.figures.get(name)
                line.append("–" if None in both else f"{both[0].value / both[1].value:.2f}")
            lines.append(line)
    if not lines:
        return "No peer of the same weights ran beside a row of this project, so there is no ratio."
    return markdown(["ours / peer", "start", "loaded", "after a token", *sizes.columns], lines)


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure must reach."""

    text: str
    value: float | None
    limit: float
    is_ceiling: bool = False
    """Whether the figure must be at most the limit, rather than at least."""

    @property
    def is_met(self) -> bool:
        """Whether the figure is there and on the right side."""
        if self.value is None:
            return False
        return self.value <= self.limit if self.is_ceiling else self.value >= self.limit

    def line(self) -> list[str]:
        """Say it in a row of a table, with the distance where it is not met."""
        if self.value is None:
            return [self.text, f"{self.limit:,.2f}", "–", "not measured"]
        distance = abs(self.value / self.limit - 1)
        state = "met" if self.is_met else f"{distance:.0%} {'above' if self.is_ceiling else 'below'}"
        sign = "≤" if self.is_ceiling else "≥"
        return [self.text, f"{sign} {self.limit:,.2f}", f"{self.value:,.2f}", state]


def bars_table(bars: Sequence[Bar]) -> str:
    """Print every bar."""
    return markdown(["bar", "wanted", "measured", ""], [bar.line() for bar in bars])


def notes(results: Sequence[Result], skipped: Mapping[str, str]) -> list[str]:
    """Say what is not in the tables and why, what ran in which version, and what was measured beside other load."""
    said = [f"- skipped: {name}: {why}" for name, why in skipped.items()]
    said += [f"- failed: {result.row.name}: {result.error}" for result in results if result.error]
    versions: dict[str, str] = {}
    for result in results:
        versions |= result.versions
    if versions:
        said.append("- versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    loud = [figure.foreign for result in results for figure in result.figures.values() if figure.is_loud]
    if loud:
        said.append(
            f"- *: no measurement, for in every try other processes used more than {FOREIGN_SHARE:.0%} of a core "
            f"({len(loud)} figures; {min(loud):.0%} to {max(loud):.0%})"
        )
    return said


def write_into(page: Path, name: str, text: str) -> None:
    """Put a text between the marks `<!-- serve NAME -->` and `<!-- end NAME -->` of a page."""
    before, start, rest = page.read_text().partition(f"<!-- serve {name} -->\n")
    _, end, after = rest.partition(f"<!-- end {name} -->\n")
    if not start or not end:
        sys.exit(f"{page}: has no lines '<!-- serve {name} -->' and '<!-- end {name} -->' to write between")
    page.write_text(f"{before}{start}{text}\n{end}{after}")
