"""The rules of the offload document on plain values: what is refused is refused here, before any class is built.

Source of fields, rules and texts: vLLM 0.33.0, `vllm/config/offload.py`. Where this project is stricter on purpose
(blank text, bools and strings as numbers, repeated keys, overflowing budgets) the reason is that a setting must act
or be refused by name. Only `json` is imported, not even `dataclasses`: a refusal has to cost milliseconds.
"""

import json
from collections.abc import Mapping

from pyvllm.config._fields import (
    Pairs,
    Problems,
    Rule,
    Written,
    boolean,
    choice,
    found,
    gibibytes,
    integer,
    read_object,
    selectors,
)
from pyvllm.errors import InvalidArgument

BACKEND = choice("auto", "uva", "prefetch")
UVA: Mapping[str, Rule] = {"cpu_offload_gb": gibibytes, "cpu_offload_params": selectors}
PREFETCH: Mapping[str, Rule] = {
    "offload_group_size": integer(0),
    "offload_num_in_group": integer(1),
    "offload_prefetch_step": integer(0),
    "offload_params": selectors,
}
DEVICE_FIT: Mapping[str, Rule] = {"weight_budget_bytes": integer(0), "auto": boolean}


def _section(fields: Mapping[str, Rule]) -> Rule:
    return lambda value, path, problems: read_object(value, path, fields, problems)


_DOCUMENT: Mapping[str, Rule] = {
    "offload_backend": BACKEND,
    "uva": _section(UVA),
    "prefetch": _section(PREFETCH),
    "vllm_cpp": _section({"device_fit": _section(DEVICE_FIT)}),
}
_SECTIONS = {"uva": UVA, "prefetch": PREFETCH, "vllm_cpp.device_fit": DEVICE_FIT}
_HOMES = {name: f"{path}.{name}" for path, fields in _SECTIONS.items() for name in fields}


def judge_text(text: str | None) -> dict[str, object]:
    """Read JSON text and return what `judge` does; None, empty or blank text gives no field.

    Raises InvalidArgument for anything else than one JSON object that keeps every rule.
    """
    if text is None:
        return {}
    if not isinstance(text, str):
        raise InvalidArgument(f"offload_config must be JSON text, found {found(text)}")
    return judge(_parse(text)) if text.strip() else {}


def judge(document: object) -> dict[str, object]:
    """Check a document and return its given fields, normalised, in dictionaries as it has them.

    Raises InvalidArgument: for all bad fields together, else for the first broken rule across fields.
    """
    problems = Problems(_HOMES)
    values = read_object(document, "", _DOCUMENT, problems)
    problems.raise_if_any()
    backend = values.get("offload_backend", "auto")
    if _at(values, "vllm_cpp", "device_fit").get("auto"):
        written = [f"{section}.{name}" for section in ("uva", "prefetch") for name in _at(values, section)]
        refuse_beside_auto(([] if backend == "auto" else ["offload_backend"]) + written)
    ahead = _at(values, "prefetch")
    group, num, step = (ahead.get(name, default) for name, default in zip(PREFETCH, (0, 1, 1), strict=False))
    check_across_fields(backend, group, num, step)  # type: ignore[arg-type]
    return values


def check_across_fields(backend: object, group_size: int, num_in_group: int, prefetch_step: int) -> None:
    """Hold sound fields against each other. Raises InvalidArgument, in vLLM's words, for the first broken rule."""
    if backend != "prefetch" and group_size == 0:
        return
    if num_in_group > group_size:
        raise InvalidArgument(f"offload_num_in_group ({num_in_group}) must be <= offload_group_size ({group_size})")
    if prefetch_step < 1:
        raise InvalidArgument(
            f"offload_prefetch_step ({prefetch_step}) must be >= 1 when prefetch offloading is "
            "enabled (offload_group_size > 0)"
        )


def refuse_beside_auto(names: list[str]) -> None:
    """Refuse the fields that an automatic fit would choose, by their paths. Raises InvalidArgument if there is one."""
    if names:
        raise InvalidArgument(
            f"vllm_cpp.device_fit.auto chooses the offload and cannot stand beside {', '.join(names)}; remove "
            f"{'it' if len(names) == 1 else 'them'}, or remove auto"
        )


def _at(values: Mapping[str, object], *path: str) -> dict[str, object]:
    """Return the dictionary at a path of a sound document, empty where the document has none."""
    for name in path:
        values = values.get(name, {})  # type: ignore[assignment]
    return dict(values)


def _parse(text: str) -> object:
    """Parse JSON text; numbers stay as written and objects keep their pairs, so that no rule is lost in conversion."""
    try:
        text.encode()
        return json.loads(text, object_pairs_hook=Pairs, parse_float=Written, parse_int=Written, parse_constant=Written)
    except RecursionError as error:
        raise InvalidArgument("offload_config is nested too deeply; it must be one JSON object") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument("offload_config is not valid Unicode text: it holds a lone surrogate") from error
    except ValueError as error:
        raise InvalidArgument(f"offload_config is not valid JSON: {error}") from error
