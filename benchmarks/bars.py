"""What this project's rows must reach, beside the peers of the same run and the machine's own limits."""

from collections.abc import Mapping, Sequence

from report import Bar, Result

#: Tokens a second of the fastest peer in each column on the first machine that was measured (2 cores of a Zen 4 EPYC):
#: llama.cpp at 1, compiled vLLM 0.32 at 8, 32 and in prefill. vLLM for CPU is seldom installed, so they stand here.
FIRST_MACHINE = {"1": 103.0, "8": 339.0, "32": 680.0, "prefill": 1427.0}
#: Shares of the memory's limit that decoding one sequence must reach.
DENSE_SHARE, MOE_SHARE = 0.8, 0.7
#: Bytes of a stored weight of each kind.
_BYTES = {"bf16": 2.0, "Q8_0": 34 / 32, "Q4_1": 20 / 32}


def dense_bars(results: Sequence[Result], limits: Mapping[str, float]) -> list[Bar]:
    """Give the bars of SmolLM2."""
    bars = []
    if ours := _find(results, "pyvllm bf16"):
        limit = DENSE_SHARE * limits["read_bytes_per_s"] / ours.sizes["weights"]
        bars.append(Bar(f"bf16, 1: {DENSE_SHARE:g} of memory read / weights", _value(ours, "1"), limit))
        for column, value in FIRST_MACHINE.items():
            if column in ours.figures:
                bars.append(Bar(f"bf16, {column}: first machine's fastest peer", _value(ours, column), value))
        bars += [*_ahead(ours, results), *_loading(ours, limits)]
    if stored := _find(results, "pyvllm Q4_1, stored"):
        bars += [*_ahead(stored, results), *_loading(stored, limits)]
    return bars


def moe_bars(results: Sequence[Result], limits: Mapping[str, float], active_weights: int) -> list[Bar]:
    """Give the bars of the mixture of experts. active_weights: matrix weights that a token needs."""
    bars = []
    for ours in (result for result in results if result.row.is_ours and result.error is None):
        name, kind = ours.row.name, ours.row.kind
        limit = MOE_SHARE * limits["read_bytes_per_s"] / (active_weights * _BYTES[kind])
        bars.append(Bar(f"{name}, 1: {MOE_SHARE:g} of memory read / active bytes", _value(ours, "1"), limit))
    ours, beside = _find(results, "pyvllm bf16"), _find(results, "transformers bf16")
    if ours and beside:
        for name in ("start", "loaded rss", "after_token rss"):
            figures = ours.figures[name].value, beside.figures[name].value
            bars.append(Bar(f"bf16, {name}: transformers / ours", figures[1] / figures[0], 1.0))
        bars += _ahead(ours, [beside])
    return bars


def scan_bars(results: Sequence[Result]) -> list[Bar]:
    """Give the bar of the scan: one sequence routes to as many experts whatever their number."""
    good = [result for result in results if not result.error and "1" in result.figures]
    if len(good) < 2:
        return []
    fewest, most = good[0], good[-1]
    growth = fewest.figures["1"].value / most.figures["1"].value
    text = f"step at 1: {most.row.name} over {fewest.row.name}, which stores a part of them"
    return [Bar(text, growth, 1.25, is_ceiling=True)]


def _find(results: Sequence[Result], name: str) -> Result | None:
    return next((result for result in results if result.row.name == name and result.error is None), None)


def _value(result: Result, name: str) -> float | None:
    figure = result.figures.get(name)
    return figure.value if figure else None


def _ahead(ours: Result, results: Sequence[Result]) -> list[Bar]:
    """Every column of tokens a second over the best peer of the same weights."""
    peers = [result for result in results if not result.error and not result.row.is_ours]
    peers = [result for result in peers if result.row.kind == ours.row.kind]
    bars = []
    for column in (name for name in ours.figures if name.isdigit() or name == "prefill"):
        rivals = [(result.figures[column].value, result.row.name) for result in peers if column in result.figures]
        if rivals:
            value, name = max(rivals)
            bars.append(Bar(f"{ours.row.name}, {column}: {name}", _value(ours, column), value))
    return bars


def _loading(ours: Result, limits: Mapping[str, float]) -> list[Bar]:
    cache = ours.sizes["cache"]
    loaded, least = ours.figures["loaded rss"].value, _without_cache(ours, limits)
    name = f"{ours.row.name}: (loaded RSS + cache) / (weights + cache + interpreter with torch)"
    return [
        Bar(f"{ours.row.name}: start → loaded, s", _value(ours, "start"), 2.0, is_ceiling=True),
        # None of the cache's pages is resident before it holds tokens: it is counted as though it were full.
        Bar(name, (loaded + cache) / (least + cache), 1.05, is_ceiling=True),
    ]


def bare_shares(results: Sequence[Result], limits: Mapping[str, float]) -> list[str]:
    """Say what this project's rows take once loaded where the empty cache is left out, which no bar is held to."""
    good = [result for result in results if result.row.is_ours and not result.error]
    shares = [(result.row.name, result.figures["loaded rss"].value / _without_cache(result, limits)) for result in good]
    said = ", ".join(f"{name} {share:.3f}" for name, share in shares)
    return [f"- loaded RSS / (weights + interpreter with torch), the cache left out: {said}"] if shares else []


def _without_cache(ours: Result, limits: Mapping[str, float]) -> float:
    return ours.sizes["weights"] + ours.sizes["buffers"] + limits["interpreter"]
