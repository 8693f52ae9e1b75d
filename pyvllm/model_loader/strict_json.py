"""JSON from files nobody vouches for: one helper, so that every file is held to the same rules.

What a document must contain is for its reader to say.
"""

import json
from math import isfinite
from typing import NoReturn

from pyvllm.errors import FormatError

#: Longest run of digits that an integer may have; 2**64 has 20.
MAX_INTEGER_DIGITS = 20


def json_object(data: bytes, origin: str, max_items: int = 2_000_000) -> dict[str, object]:
    """Parse `data`, the bytes of a UTF-8 JSON document that must be one object.

    origin: name of the file, for errors.
    max_items: how many members and elements the document may have, counted before anything is built.
    Raises FormatError for bad UTF-8, bad JSON, a repeated key, NaN or an infinite number, an integer of more than
    `MAX_INTEGER_DIGITS` digits, a lone surrogate, too many items, nesting too deep, or anything but an object.
    """
    # Each of these characters adds at most one object; inside strings they only make the count larger.
    if (items := data.count(b",") + data.count(b"[") + data.count(b"{")) > max_items:
        raise FormatError(f"{origin}: has about {items} items; at most {max_items} are read")
    try:
        text = data.decode("utf-8")
        document = _DECODER.decode(text)
        if "\\ud" in text or "\\uD" in text:  # only an escape can bring a surrogate in
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"{origin}: not valid UTF-8 at byte {error.start}") from None
    except UnicodeEncodeError:
        raise FormatError(f"{origin}: a string holds a lone surrogate, which is not text") from None
    except RecursionError:
        raise FormatError(f"{origin}: nested too deeply") from None
    except ValueError as error:
        raise FormatError(f"{origin}: not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise FormatError(f"{origin}: must be a JSON object, found {type(document).__name__}")
    return document


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {repeated[:100]!r} is repeated")
    return document


def _integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError(f"an integer of {len(text)} characters; at most {MAX_INTEGER_DIGITS} are read")
    return int(text)


def _float(text: str) -> float:
    if not isfinite(value := float(text)):
        raise ValueError(f"the number {text[:40]} overflows")
    return value


def _constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant)
