"""A Jinja environment for templates that nobody vouches for: what they may call, and how much they may make.

Jinja's own sandbox keeps a template away from Python, not from memory and time. Every operation that can make a text or
a list longer than its inputs is charged here against a budget of the render, and what cannot be charged is left out.
"""

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, is_internal_attribute
from jinja2.utils import Namespace

#: Numbers that `range` may give in one render, all its calls together. Jinja's own limit is one per call.
MAX_RANGE = 100_000
#: Entries of one list or dict that a template makes, those of what it holds included.
MAX_NODES = 100_000
_MAX_INT = 2**63
_MAX_INDENT = 16
_MAX_FORMAT_CHARS = 64

#: Methods of a text that a template may call: those whose result is no longer than the text, and two that are charged.
_TEXT_METHODS = frozenset(
    (
        "capitalize", "casefold", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii", "isdecimal",
        "isdigit", "isidentifier", "islower", "isnumeric", "isprintable", "isspace", "istitle", "isupper", "join",
        "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex", "rpartition",
        "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
    )
)  # fmt: skip
#: Filters that real templates use; the rest can make wide texts or long lists, or reach for the environment.
_FILTERS = (
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float", "forceescape", "groupby",
    "int", "items", "join", "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace",
    "reverse", "safe", "select", "selectattr", "sort", "string", "striptags", "title", "trim", "truncate", "unique",
    "upper", "wordcount",
)  # fmt: skip
_PLAIN_NUMBERS = (int, float)
_CONTAINERS = (list, tuple, dict)
#: What `str` and `repr` write in a time that goes with its size.
_SCALARS = (str, int, float, type(None), Undefined, range)


class RefusedByTemplate(TemplateError):
    """What a template says with `raise_exception`."""


class Budget:
    """What one render may still make."""

    def __init__(self, chars: int, output_chars: int) -> None:
        """chars: of all texts that are made on the way; output_chars: of the result, and of any one text."""
        self.chars, self.output_chars, self.numbers = chars, output_chars, MAX_RANGE

    def charge(self, chars: int, longest: int = 0) -> None:
        """Count texts about to be made. Raises SecurityError."""
        self.chars -= chars
        if longest > self.output_chars:
            raise SecurityError(f"the template makes a text of more than {self.output_chars} characters")
        if self.chars < 0:
            raise SecurityError("the template makes more text than its messages give reason for")

    def take_numbers(self, count: int) -> None:
        """Count numbers that `range` is about to give. Raises OverflowError."""
        self.numbers -= count
        if self.numbers < 0:
            raise OverflowError(f"range may give {MAX_RANGE} numbers in one render")


class _Compiler(CodeGenerator):
    """Writes code that joins and slices through the environment, and that computes nothing at compile time."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        """Write `a ~ b` as a call that joins within the budget."""
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        """Write a list so that its entries are counted."""
        self.write("environment.weighed(")
        super().visit_List(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        """Write a dict so that its entries are counted."""
        self.write("environment.weighed(")
        super().visit_Dict(node, frame)
        self.write(")")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        """Write a tuple so that its entries are counted; one that is assigned to is left as it is."""
        if node.ctx != "load":
            super().visit_Tuple(node, frame)
            return
        self.write("environment.weighed(")
        super().visit_Tuple(node, frame)
        self.write(")")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """Write `x[a:b:c]` as a call that slices within the budget; other subscripts are Jinja's own."""
        if not isinstance(node.arg, nodes.Slice):
            super().visit_Getitem(node, frame)
            return
        self.write("environment.sliced(")
        self.visit(node.node, frame)
        for bound in (node.arg.start, node.arg.stop, node.arg.step):
            self.write(", ")
            if bound is None:
                self.write("None")
            else:
                self.visit(bound, frame)
        self.write(")")

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible


class _GenerationTag(Extension):
    """`{% generation %}`, with which training marks the assistant's words: its body is kept as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class HardenedEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's immutable sandbox with every measure above. Several threads may render at once."""

    code_generator_class = _Compiler
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=self._text,
            extensions=[LoopControlExtension, _GenerationTag],
        )
        self._of_thread = threading.local()
        self.concat = self._concat  # type: ignore[method-assign]
        self.filters = {name: self._charged(self.filters[name]) for name in _FILTERS}
        self.filters.update(
            tojson=self._tojson, sum=_sum, replace=self._replace_filter, join=self._join_filter, string=self._text
        )
        self.globals = {
            "namespace": Namespace,
            "dict": dict,
            "range": self._range,
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
        }

    def compiled(self, source: str) -> Template:
        """Compile a template. Raises whatever Jinja or Python find wrong with it."""
        return self.from_string(source)

    def variables(self, source: str) -> frozenset[str]:
        """Give the names that a template which compiles may ask of whoever renders it."""
        return frozenset(meta.find_undeclared_variables(self.parse(source))) - self.globals.keys()

    def rendered(self, template: Template, names: Mapping[str, object], budget: Budget) -> str:
        """Render on this thread within a budget."""
        self._of_thread.budget = budget
        try:
            return template.render(names)
        finally:
            del self._of_thread.budget

    def handle_exception(self, source: str | None = None) -> NoReturn:
        """Let an error through as it is: rewriting its traceback would need the template's source."""
        raise

    # ---- what templates reach ----

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Say whether an attribute may be used: of texts a list of methods, of numbers and bytes none."""
        if isinstance(obj, str):
            return attr in _TEXT_METHODS
        if isinstance(obj, int | float | bytes):
            return False
        return super().is_safe_attribute(obj, attr, value) and not is_internal_attribute(obj, attr)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Give no substitute for `str.format`: it pads."""
        return None

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call what a template calls, after charging what it will make."""
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            __self._charge_method(owner, __obj.__name__, args, kwargs)
            if __obj.__name__ == "join":
                return __self._joined_by(owner, args[0] if args else ())
        return __self.weighed(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute `+`, `*` and `%` within bounds; `**` is refused."""
        if operator == "+" and not isinstance(left, _PLAIN_NUMBERS):
            return self._added(context, left, right)
        if operator == "**" or type(left) not in _PLAIN_NUMBERS or type(right) not in _PLAIN_NUMBERS:
            raise SecurityError(
                f"the operator {operator!r} is for plain numbers only"
                if operator != "**"
                else "the operator '**' is not available"
            )
        found = super().call_binop(context, operator, left, right)
        if isinstance(found, int) and abs(found) >= _MAX_INT:
            raise SecurityError(f"a number beyond 2^63 from the operator {operator!r}")
        return found

    def joined(self, parts: Iterable[object]) -> str:
        """Do what `~` does."""
        return self._concat(self._text(part) for part in parts)

    def weighed(self, value: Any) -> Any:
        """Give a container back if it is no larger than MAX_NODES, counting what it holds as often as it holds it.

        A list that holds another one twice, again and again, is small in memory and without end for whoever writes it
        out or compares it.
        """
        left, stack = MAX_NODES, [value] if isinstance(value, _CONTAINERS) else []
        while stack:
            item = stack.pop()
            held = [*item, *item.values()] if isinstance(item, dict) else item
            left -= len(held)
            if left < 0:
                raise SecurityError(f"the template makes a list or dict of more than {MAX_NODES} entries")
            stack += [entry for entry in held if isinstance(entry, _CONTAINERS)]
        return value

    def sliced(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Do what `value[start:stop:step]` does."""
        found = value[start:stop:step]
        if isinstance(found, str | list | tuple):
            self._budget.charge(len(found))
        return found

    # ---- within the budget ----

    @property
    def _budget(self) -> Budget:
        budget: Budget = self._of_thread.budget
        return budget

    def _concat(self, parts: Iterable[str]) -> str:
        budget, kept, size = self._budget, [], 0
        for part in parts:
            size += len(part)
            budget.charge(len(part), size)
            kept.append(part)
        return "".join(kept)

    def _added(self, context: Context, left: Any, right: Any) -> Any:
        for kind in (str, list, tuple):
            if isinstance(left, kind) and isinstance(right, kind):
                self._budget.charge(len(left) + len(right), len(left) + len(right))
                return self.weighed(super().call_binop(context, "+", left, right))
        raise TypeError(f"cannot add {type(left).__name__} and {type(right).__name__}")

    def _charge_method(self, owner: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if name == "replace" and len(args) >= 2:
            self._charge_replace(owner, args[0], args[1])
        self._budget.charge(len(owner) + sum(len(value) for value in args if isinstance(value, str)))

    def _charge_replace(self, text: str, old: object, new: object) -> None:
        if isinstance(old, str) and isinstance(new, str):
            size = len(text) + text.count(old) * max(len(new) - len(old), 0)
            self._budget.charge(size, size)

    def _joined_by(self, separator: str, items: Iterable[object]) -> str:
        return self._concat(_between(separator, (self._text(item) for item in items)))

    def _charged(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Charge a filter for the texts it is given, whose length its result does not exceed by much."""

        @wraps(function)
        def charged(*args: Any, **kwargs: Any) -> Any:
            self._budget.charge(sum(len(value) for value in args if isinstance(value, str)))
            return self.weighed(function(*args, **kwargs))

        return charged

    def _replace_filter(self, value: object, old: str, new: str, count: int | None = None) -> str:
        text = self._text(value)
        self._charge_replace(text, old, new)
        return text.replace(old, new, -1 if count is None else count)

    def _join_filter(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        items = value if attribute is None else (self.getitem(item, attribute) for item in value)
        return self._joined_by(self._text(d), items)

    def _text(self, value: object) -> str:
        """Write a value as `str` does, but part by part for what holds others."""
        if isinstance(value, _CONTAINERS):
            return self._concat(_written(value))
        return str(value) if isinstance(value, _SCALARS) else f"<{type(value).__name__}>"

    def _tojson(
        self,
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Write JSON as transformers' filter of that name does: not escaped for HTML."""
        if indent is not None and (not isinstance(indent, int) or not 0 <= indent <= _MAX_INDENT):
            raise SecurityError(f"tojson: indent must be from 0 to {_MAX_INDENT}")
        encoder = json.JSONEncoder(
            ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, allow_nan=False
        )
        return self._concat(encoder.iterencode(value))

    def _range(self, *bounds: int) -> range:
        numbers = range(*bounds)
        # len() cannot say more than 2^63 - 1.
        self._budget.take_numbers(len(numbers) if abs(numbers.stop - numbers.start) < _MAX_INT else MAX_RANGE + 1)
        return numbers


def _between(separator: str, items: Iterable[str]) -> Iterator[str]:
    for index, item in enumerate(items):
        if index:
            yield separator
        yield item


def _written(value: object) -> Iterator[str]:
    """Write a value as `repr` does, part by part."""
    if isinstance(value, dict):
        yield "{"
        for index, (key, item) in enumerate(value.items()):
            yield ", " if index else ""
            yield from _written(key)
            yield ": "
            yield from _written(item)
        yield "}"
    elif isinstance(value, list | tuple):
        yield "[" if isinstance(value, list) else "("
        for index, item in enumerate(value):
            yield ", " if index else ""
            yield from _written(item)
        yield "]" if isinstance(value, list) else (",)" if len(value) == 1 else ")")
    else:
        yield repr(value) if isinstance(value, _SCALARS) else f"<{type(value).__name__}>"


def _sum(values: Iterable[Any], attribute: str | None = None, start: float = 0) -> float:
    """Add numbers up; lists, which Python would copy again and again, are refused."""
    total = start
    for value in values:
        number = value[attribute] if attribute is not None else value
        if type(number) not in _PLAIN_NUMBERS or type(total) not in _PLAIN_NUMBERS:
            raise SecurityError("sum is for plain numbers only")
        total += number
    return total


def _raise_exception(message: object) -> NoReturn:
    raise RefusedByTemplate(str(message))


def _strftime_now(form: str) -> str:
    # A field may have a width, and the C library would pad to it.
    fields = form.replace("%%", "").split("%")[1:]
    if len(form) > _MAX_FORMAT_CHARS or any(field[:1] == "" or field[:1].isdigit() for field in fields):
        raise SecurityError(f"strftime_now: the format {form[:_MAX_FORMAT_CHARS]!r} is not allowed")
    return datetime.now().strftime(form)
