"""Documents of the offload grammar with, beside each, what the rules say of it: written from DESIGN section 3, in exact
arithmetic, without a line of the code under test.

A leaf is the JSON text of a value; an object is a list of (key, value) pairs, so that keys can repeat.
"""

import json
from fractions import Fraction

from hypothesis import strategies as st

SECTIONS = {
    "uva": ("cpu_offload_gb", "cpu_offload_params"),
    "prefetch": ("offload_group_size", "offload_num_in_group", "offload_prefetch_step", "offload_params"),
}
LOWEST = {"offload_group_size": 0, "offload_num_in_group": 1, "offload_prefetch_step": 0, "weight_budget_bytes": 0}
DEFAULTS = {
    "cpu_offload_gb": 0.0,
    "cpu_offload_params": [],
    "offload_group_size": 0,
    "offload_num_in_group": 1,
    "offload_prefetch_step": 1,
    "offload_params": [],
}

digits = st.from_regex(r"(0|[1-9][0-9]{0,24})", fullmatch=True)
numbers = st.builds(
    lambda sign, whole, fraction, power: sign + whole + fraction + power,
    st.sampled_from(["", "", "", "-"]),
    st.one_of(st.integers(0, 12).map(str), digits),
    st.sampled_from(["", "", "", ".0", ".5", ".25", ".00000000000000000000001"]),
    st.one_of(st.just(""), st.just(""), st.integers(-400, 400).map(lambda power: f"e{power}")),
)
small = st.integers(0, 9).map(str)
others = st.one_of(
    st.sampled_from(["null", "true", "false", "NaN", "Infinity", "-Infinity", "[]", "{}", '""', '"8"']),
    st.text(max_size=5).map(json.dumps),
)
strings = st.sampled_from(["experts", "w13_weight", "mlp.down_proj", "", "é", "a b", "qkv_proj"]).map(json.dumps)
arrays = st.lists(st.one_of(strings, strings, strings, others), max_size=4).map(lambda items: f"[{','.join(items)}]")


def _value(name, sound):
    if name.endswith("params"):
        good = st.lists(strings, max_size=4).map(lambda items: f"[{','.join(items)}]")
        return good if sound else st.one_of(arrays, others)
    if name == "cpu_offload_gb":
        good = st.one_of(small, st.sampled_from(["0.1", "1e-9", "2.5e3", "1e40", "-0.0", "0"]))
    else:
        good = st.one_of(small, st.sampled_from(["4.0", "3e0", "9223372036854775807.0", "1" * 30])).filter(
            lambda text: name != "offload_num_in_group" or text != "0"
        )
    return good if sound else st.one_of(numbers, others)


def _object(fields, sound):
    one = st.one_of(*(st.tuples(st.just(name), value) for name, value in fields.items()))
    known = st.lists(one, max_size=len(fields), unique_by=lambda pair: pair[0])
    stray = st.tuples(st.sampled_from(["bogus", "", "Uva", "experts"]), small)
    more = st.lists(st.one_of(one, stray), max_size=1)
    return known if sound else st.tuples(known, more).map(lambda both: [*both[0], *both[1]])


def _documents(sound):
    """Make documents whose fields are each sound, or documents of anything."""

    def section(fields):
        inner = _object(fields, sound)
        return inner if sound else st.one_of(inner, others)

    names = {name: {field: _value(field, sound) for field in fields} for name, fields in SECTIONS.items()}
    fit = section({"weight_budget_bytes": _value("weight_budget_bytes", sound)})
    backends = st.sampled_from(['"auto"', '"uva"', '"prefetch"'])
    fields = {
        "offload_backend": backends if sound else st.one_of(backends, others),
        "vllm_cpp": section({"device_fit": fit}),
    }
    return _object({**fields, **{name: section(inner) for name, inner in names.items()}}, sound)


sound_documents = _documents(True)
documents = st.booleans().flatmap(lambda sound: sound_documents if sound else _documents(False))


def render(value):
    """Write the JSON text."""
    if isinstance(value, str):
        return value
    return "{" + ", ".join(f"{json.dumps(key)}: {render(item)}" for key, item in value) + "}"


class Judge:
    """Walks one document: `bad` collects the paths to be named, `document` becomes the normalised value."""

    def __init__(self, pairs):
        self.bad = set()
        top = self.fields(pairs, "", ("offload_backend", "uva", "prefetch", "vllm_cpp"))
        backend = top.get("offload_backend", '"auto"')
        if backend not in ('"auto"', '"uva"', '"prefetch"'):
            self.bad.add("offload_backend")
        self.document = {"offload_backend": backend.strip('"') if isinstance(backend, str) else None}
        for name, known in SECTIONS.items():
            given = self.fields(top.get(name, []), name, known)
            self.document[name] = {field: self.leaf(given, name, field) for field in known}
        if "vllm_cpp" in top:
            self.document["vllm_cpp"] = self.own(top["vllm_cpp"])

    def fields(self, value, path, known):
        if value == "{}":
            value = []
        if isinstance(value, str):
            self.bad.add(path)
            return {}
        names = [name for name, _ in value]
        if len(set(names)) < len(names):
            self.bad.add(f"{path or 'the document'}: key")
        self.bad.update(f"{path}.{name}".strip(".") or "''" for name in names if name not in known)
        return dict(value)

    def own(self, value):
        given = self.fields(value, "vllm_cpp", ("device_fit",))
        if "device_fit" not in given:
            return {}
        inner = self.fields(given["device_fit"], "vllm_cpp.device_fit", ("weight_budget_bytes",))
        has_budget = "weight_budget_bytes" in inner
        budget = {"weight_budget_bytes": self.leaf(inner, "vllm_cpp.device_fit", "weight_budget_bytes")}
        return {"device_fit": budget if has_budget else {}}

    def leaf(self, given, path, field):
        if field not in given:
            return DEFAULTS.get(field)
        text = given[field]
        rule = _strings if field.endswith("params") else _gib if field == "cpu_offload_gb" else _integer
        value = rule(text, LOWEST.get(field)) if isinstance(text, str) else None
        if value is None:
            self.bad.add(f"{path}.{field}")
        return value

    @property
    def broken_rule(self):
        """The text of the first broken rule across fields, or None."""
        group, num, step = (self.document["prefetch"][name] for name in list(LOWEST)[:3])
        if self.document["offload_backend"] != "prefetch" and group == 0:
            return None
        if num > group:
            return f"offload_num_in_group ({num}) must be <= offload_group_size ({group})"
        after = "must be >= 1 when prefetch offloading is enabled (offload_group_size > 0)"
        return f"offload_prefetch_step ({step}) {after}" if step < 1 else None


def _number(text):
    is_number = text[0] in "-0123456789" and text != "-Infinity"
    return Fraction(text) if is_number else None


def _integer(text, lowest):
    number = _number(text)
    if number is None or number < lowest or number.denominator != 1:
        return None
    return int(number) if text.isdigit() or number < 2**63 else None


def _gib(text, _lowest):
    if _number(text) is None or not 0 <= float(text) < float("inf"):
        return None
    is_finite = Fraction(float(text)) * 2**30 < 2**1024
    return float(text) + 0.0 if is_finite else None


def _strings(text, _lowest):
    items = json.loads(text)
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        return None
    return sorted(set(items))
