"""The `options_json` object of the C API: settings that the structs of ABI 21 have no field for."""

import json
from typing import NoReturn

from pyvllm.errors import InvalidArgument

OPTIONS = ("dtype", "threads", "gguf_weights", "cpu_kernels")


def engine_options(text: str | None) -> dict[str, object]:
    """Read the object into keyword arguments of `EngineConfig`, which judges the values.

    text: JSON; None, empty or blank text means all defaults.
    Raises InvalidArgument for anything else than one JSON object, and for an unknown, repeated or null key.
    """
    if text is None or not text.strip():
        return {}
    try:
        document = json.loads(text, object_pairs_hook=_options, parse_float=_number, parse_constant=_refuse_constant)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidArgument(f"options_json is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"options_json must be one JSON object, found {text.strip()[:60]!r}")
    return document


def _options(pairs: list[tuple[str, object]]) -> dict[str, object]:
    options: dict[str, object] = {}
    for key, value in pairs:
        if key not in OPTIONS:
            raise InvalidArgument(f"options_json: unknown key {key[:60]!r}; known are {', '.join(OPTIONS)}")
        if key in options:
            raise InvalidArgument(f"options_json: key {key!r} is given twice")
        if value is None:
            raise InvalidArgument(f"options_json: {key} must not be null; leave the key out for its default")
        options[key] = value
    return options


def _number(text: str) -> int | float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**63 else number


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidArgument(f"options_json: {text} is not a JSON number")
