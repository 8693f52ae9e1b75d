"""Rules for the fields of a configuration document: every problem is collected, then named in one error.

A rule is called with a value, the path of its field and the problems found so far; it returns the normalised value.
It takes what JSON gives (`Pairs`, `Written`) and what Python gives (mappings, numbers) alike.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf, isfinite

from pyvllm.errors import InvalidArgument

GIB = 1024**3
MAX_DIGITS = 4300
"""Longest integer that CPython writes back as text (`sys.int_info.default_max_str_digits`)."""
_TOO_LONG: int = 10**MAX_DIGITS
_MAX_PROBLEMS = 50
_MAX_SHOWN = 60


class Pairs(list[tuple[str, object]]):
    """A JSON object as its pairs, so that a repeated key stays visible."""


class Written:
    """A JSON number as it was written, `NaN` and `Infinity` included."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


class Problems:
    """What is wrong with a document, in the order of its fields."""

    __slots__ = ("_texts", "count", "homes")

    def __init__(self, homes: Mapping[str, str] | None = None) -> None:
        """Take `homes`: for a key that stands in the wrong object, the full path where it belongs."""
        self.homes = homes or {}
        self.count = 0
        self._texts: list[str] = []

    @property
    def is_full(self) -> bool:
        """Whether a further text would not be shown."""
        return self.count >= _MAX_PROBLEMS

    def add(self, text: str) -> None:
        """Note one problem."""
        if not self.is_full:
            self._texts.append(text)
        self.count += 1

    def raise_if_any(self) -> None:
        """Raise InvalidArgument with every text, if there is one."""
        if self.count:
            more = self.count - len(self._texts)
            texts = [*self._texts, f"and {more} more problems"] if more else self._texts
            raise InvalidArgument("offload_config: " + "; ".join(texts))


Rule = Callable[[object, str, Problems], object]


def check_fields(instance: object, path: str, fields: Mapping[str, Rule]) -> None:
    """Apply the rules to the attributes of a frozen dataclass and store the normalised values.

    Raises InvalidArgument that names every bad field.
    """
    problems = Problems()
    for name, rule in fields.items():
        value = rule(getattr(instance, name), _join(path, name), problems)
        object.__setattr__(instance, name, value)
    problems.raise_if_any()


def read_object(value: object, path: str, fields: Mapping[str, Rule], problems: Problems) -> dict[str, object]:
    """Read a JSON object (or a mapping) whose keys are `fields` and return the values of those that it gives.

    A bad field, an unknown key and a key that is given twice are problems.
    """
    if not isinstance(value, Pairs | Mapping):
        problems.add(f"{path or 'the document'} must be an object, found {found(value)}")
        return {}
    given: dict[str, object] = {}
    for key, item in value if isinstance(value, Pairs) else value.items():
        if key in given:
            problems.add(f"{path or 'the document'}: key {_short(repr(key))} is given twice")
        given[key] = item
    values = {name: rule(given[name], _join(path, name), problems) for name, rule in fields.items() if name in given}
    for key in given:
        if key not in fields:
            problems.add("" if problems.is_full else _unknown(key, path, tuple(fields), problems.homes))
    return values


def choice(*allowed: str) -> Rule:
    """Make the rule of a string that is one of `allowed`, spelled exactly so.

    The rule gives the value back, and adds a problem with the nearest of the allowed for any other.
    """

    def rule(value: object, path: str, problems: Problems) -> object:
        """Give the value back; add a problem when it is none of `allowed`."""
        if isinstance(value, str) and value in allowed:
            return allowed[allowed.index(value)]
        near = _nearest(value, allowed) if isinstance(value, str) else None
        hint = f"; did you mean {near!r}?" if near else ""
        problems.add(f"{path} must be one of {', '.join(map(repr, allowed))}, found {found(value)}{hint}")
        return value

    return rule


def integer(low: int) -> Rule:
    """Make the rule of an integer >= `low`. `8.0` and `8e0` are integers below 2**63; plain digits may be larger.

    The rule gives an int; None, after adding a problem, for a value that is none or too low.
    """

    def rule(value: object, path: str, problems: Problems) -> object:
        whole = _whole(value)
        if whole is None or whole < low:
            problems.add(f"{path} must be an integer >= {low}, found {found(value)}{_integer_hint(value, whole)}")
        return whole

    return rule


def boolean(value: object, path: str, problems: Problems) -> object:
    """Check a bool; 0, 1 and "true" are not bools."""
    if not isinstance(value, bool):
        problems.add(f"{path} must be true or false, found {found(value)}")
    return value


def gibibytes(value: object, path: str, problems: Problems) -> object:
    """Check a number of GiB: finite, >= 0, and its bytes finite too. Returns a float, never -0.0."""
    if isinstance(value, bool) or not isinstance(value, Written | int | float):
        problems.add(f"{path} must be a number >= 0 (GiB), found {found(value)}")
        return value
    number = _float(value)
    if not number >= 0:
        problems.add(f"{path} must be a number >= 0 (GiB), found {found(value)}")
    elif not isfinite(number * GIB):
        problems.add(f"{path} is too large: found {found(value)}, but its bytes (GiB * 1024**3) must be finite")
    return number + 0.0


def selectors(value: object, path: str, problems: Problems) -> object:
    """Check an array of strings. Returns them sorted by code point, without duplicates, as a tuple."""
    if isinstance(value, Pairs) or not isinstance(value, list | tuple | set | frozenset):
        problems.add(f"{path} must be an array of strings, found {found(value)}")
        return value
    texts: set[str] = set()
    for index, item in enumerate(value):
        if not isinstance(item, str):
            problems.add(f"{path}[{index}] must be a string, found {found(item)}")
        elif _has_surrogate(item):
            problems.add(f"{path}[{index}] must be valid Unicode, found a lone surrogate in {found(item)}")
        else:
            texts.add(str.__str__(item))
    return tuple(sorted(texts))


def found(value: object) -> str:
    """Describe a value for an error text, shortened, in the words of JSON where it has some."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a bool)"
    if isinstance(value, str):
        return f"{_short(repr(str.__str__(value)))} (a string)"
    if isinstance(value, Written):
        return _short(value.text)
    if isinstance(value, int):
        return _short(str(value)) if _has_text(value) else f"an integer of more than {MAX_DIGITS} digits"
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, Pairs | Mapping):
        return "an object"
    return "an array" if isinstance(value, list | tuple | set | frozenset) else f"a {type(value).__name__}"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}... ({len(text)} characters)"


def _has_text(number: int) -> bool:
    return abs(number) < _TOO_LONG


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _float(value: Written | int | float) -> float:
    try:
        return float(value.text if isinstance(value, Written) else value)
    except OverflowError:
        return inf if not isinstance(value, int) or value > 0 else -inf


def _whole(value: object) -> int | None:
    """Return the integer that a value is, exactly, or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value) if _has_text(value) else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and value < 2**63 else None
    if not isinstance(value, Written):
        return None
    if value.text.lstrip("-").isdigit():
        return int(value.text) if len(value.text.lstrip("-")) <= MAX_DIGITS else None
    return _whole_decimal(value.text)


def _whole_decimal(text: str) -> int | None:
    """Evaluate a number with fraction or exponent from its digits: a float would round, and 1e99999999 is not built."""
    mantissa, _, power = text.lower().partition("e")
    before, _, after = mantissa.lstrip("-").partition(".")
    if not before.isdigit():
        return None
    digits = (before + after).strip("0")
    if not digits:
        return 0
    if len(power.lstrip("+-").lstrip("0")) > 18:
        return None
    zeros = len(before + after) - len((before + after).rstrip("0"))
    exponent = int(power or 0) - len(after) + zeros
    if exponent < 0 or len(digits) + exponent > 19:
        return None
    whole = int(digits) * 10**exponent * (-1 if text.startswith("-") else 1)
    return whole if whole < 2**63 else None


def _integer_hint(value: object, whole: int | None) -> str:
    if whole is not None or isinstance(value, bool) or not isinstance(value, Written | int | float):
        return ""
    if isinstance(value, int) or (isinstance(value, Written) and value.text.lstrip("-").isdigit()):
        return f" (at most {MAX_DIGITS} digits)"
    return " (with a fraction or an exponent it must still be whole, and below 2**63)"


def _unknown(key: object, path: str, known: tuple[str, ...], homes: Mapping[str, str]) -> str:
    shown = key if isinstance(key, str) and key.isidentifier() and len(key) <= _MAX_SHOWN else _short(repr(key))
    near = None
    if isinstance(key, str):
        near = _nearest(key, known) or homes.get(_nearest(key, homes) or "")
    hint = f"; did you mean {near!r}?" if near else ""
    return f"{_join(path, str(shown))} is not a known key{hint} (known: {', '.join(known)})"


def _nearest(text: str, known: Collection[str]) -> str | None:
    """Return the known word that `text` is probably a slip of."""
    if not text or not known or len(text) > _MAX_SHOWN:
        return None
    plain = text.strip().lower().replace("-", "_")

    def is_part(word: str) -> bool:
        return len(plain) > 2 and (plain in word or word in plain)

    best = min(known, key=lambda word: (not is_part(word), _edits(plain, word)))
    return best if is_part(best) or _edits(plain, best) * 3 <= len(best) else None


def _edits(one: str, other: str) -> int:
    """Count the letters to insert, delete or replace (Levenshtein distance)."""
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, wanted in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (letter != wanted))
    return row[-1]
