"""The weight-offload document: the JSON object of vLLM's `OffloadConfig`, read, checked and resolved.

Source of fields, rules and texts: vLLM 0.33.0, `vllm/config/offload.py`. Where this project is stricter on purpose
(blank text, bools and strings as numbers, repeated keys, overflowing budgets) the reason is that a setting must act
or be refused by name. Only `json` and `dataclasses` are imported: a refusal has to cost milliseconds.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyvllm.config._fields import (
    Pairs,
    Problems,
    Rule,
    Written,
    boolean,
    check_fields,
    choice,
    found,
    gibibytes,
    integer,
    read_object,
    selectors,
)
from pyvllm.errors import InvalidArgument

GIB = 1024**3

_UVA: Mapping[str, Rule] = {"cpu_offload_gb": gibibytes, "cpu_offload_params": selectors}
_PREFETCH: Mapping[str, Rule] = {
    "offload_group_size": integer(0),
    "offload_num_in_group": integer(1),
    "offload_prefetch_step": integer(0),
    "offload_params": selectors,
}
_DEVICE_FIT: Mapping[str, Rule] = {"weight_budget_bytes": integer(0), "auto": boolean}
_BACKEND = choice("auto", "uva", "prefetch")

_UVA_AND_PREFETCH = (
    "Both UVA and prefetch offload fields are set with offload_backend='auto'. Prefetch backend will be selected. "
    "Set offload_backend explicitly to suppress this warning."
)


@dataclass(frozen=True, slots=True)
class UVAOffloadConfig:
    """What the `uva` backend keeps in host memory. Raises InvalidArgument, naming every bad field."""

    cpu_offload_gb: float = 0.0
    """GiB of weights that leave the device; 0 is off. Bytes are `int(gb * 1024**3)`."""
    cpu_offload_params: tuple[str, ...] = ()
    """Whole dotted name segments that may leave, such as `experts`; empty is all. Sorted, without duplicates."""

    def __post_init__(self) -> None:
        check_fields(self, "uva", _UVA)


@dataclass(frozen=True, slots=True)
class PrefetchOffloadConfig:
    """What the `prefetch` backend streams. Raises InvalidArgument, naming every bad field."""

    offload_group_size: int = 0
    """Decoder layers in a group; 0 is off. Of each group the last `offload_num_in_group` are streamed."""
    offload_num_in_group: int = 1
    """Streamed layers of each group: with group size 8 and 2 in a group, layers 6, 7, 14, 15, ..."""
    offload_prefetch_step: int = 1
    """How many streamed layers ahead a copy starts, which is also how many sets of buffers the device holds."""
    offload_params: tuple[str, ...] = ()
    """Whole dotted name segments that are streamed; empty is all. Sorted, without duplicates."""

    def __post_init__(self) -> None:
        check_fields(self, "prefetch", _PREFETCH)


@dataclass(frozen=True, slots=True)
class DeviceFitConfig:
    """How much of the device the weights may take."""

    weight_budget_bytes: int | None = None
    """Bytes of weights and prefetch buffers that the device may hold; 0 or None asks the device."""
    auto: bool = False
    """Choose backend, selectors and budget from what the model needs and the device has."""

    def __post_init__(self) -> None:
        given = {name: rule for name, rule in _DEVICE_FIT.items() if getattr(self, name) is not None}
        check_fields(self, "vllm_cpp.device_fit", {**given, "auto": boolean})

    def to_dict(self) -> dict[str, object]:
        """Return what was given."""
        given: dict[str, object] = {"weight_budget_bytes": self.weight_budget_bytes, "auto": self.auto or None}
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, slots=True)
class VllmCppConfig:
    """Settings that vLLM does not have; a key of its own keeps them out of vLLM's."""

    device_fit: DeviceFitConfig | None = None

    def __post_init__(self) -> None:
        check_fields(self, "vllm_cpp", {"device_fit": _instance(DeviceFitConfig, optional=True)})


def _instance(kind: type, optional: bool = False) -> Rule:
    def rule(value: object, path: str, problems: Problems) -> object:
        if not (isinstance(value, kind) or (optional and value is None)):
            problems.add(f"{path} must be a {kind.__name__}, found {found(value)}")
        return value

    return rule


def _section(build: Callable[..., object], fields: Mapping[str, Rule]) -> Rule:
    return lambda value, path, problems: read_object(value, path, fields, build, problems)


@dataclass(frozen=True, slots=True)
class OffloadConfig:
    """A checked offload document. Raises InvalidArgument: for all bad fields together, else for the first broken rule.

    Build it with `from_json` or `from_dict`, or directly from its sections: the same rules hold.
    """

    offload_backend: str = "auto"
    """`auto`, `uva` or `prefetch`. A named backend wins and the other's fields are ignored, with a warning."""
    uva: UVAOffloadConfig = field(default_factory=UVAOffloadConfig)
    prefetch: PrefetchOffloadConfig = field(default_factory=PrefetchOffloadConfig)
    vllm_cpp: VllmCppConfig | None = None
    """None when the document has no such key."""

    def __post_init__(self) -> None:
        sections = {"uva": _instance(UVAOffloadConfig), "prefetch": _instance(PrefetchOffloadConfig)}
        own = {"vllm_cpp": _instance(VllmCppConfig, optional=True)}
        check_fields(self, "", {"offload_backend": _BACKEND, **sections, **own})
        self._check_across_fields()

    def _check_across_fields(self) -> None:
        if self.is_fit_automatic:
            _refuse_beside_auto(self._set_by_hand())
        ahead = self.prefetch
        if self.offload_backend != "prefetch" and ahead.offload_group_size == 0:
            return
        if ahead.offload_num_in_group > ahead.offload_group_size:
            raise InvalidArgument(
                f"offload_num_in_group ({ahead.offload_num_in_group}) must be <= "
                f"offload_group_size ({ahead.offload_group_size})"
            )
        if ahead.offload_prefetch_step < 1:
            raise InvalidArgument(
                f"offload_prefetch_step ({ahead.offload_prefetch_step}) must be >= 1 when prefetch offloading is "
                "enabled (offload_group_size > 0)"
            )

    def _set_by_hand(self) -> list[str]:
        """Name the fields of vLLM's that are not at their defaults."""
        pairs = (
            ("uva", _UVA, self.uva, UVAOffloadConfig()),
            ("prefetch", _PREFETCH, self.prefetch, PrefetchOffloadConfig()),
        )
        names = [] if self.offload_backend == "auto" else ["offload_backend"]
        for section, fields, ours, plain in pairs:
            names += [f"{section}.{name}" for name in fields if getattr(ours, name) != getattr(plain, name)]
        return names

    @classmethod
    def from_json(cls, text: str | None) -> "OffloadConfig":
        """Read the document from JSON text; None, empty or blank text means no offload.

        Raises InvalidArgument for anything else than one JSON object that keeps every rule.
        """
        if text is None:
            return cls()
        if not isinstance(text, str):
            raise InvalidArgument(f"offload_config must be JSON text, found {found(text)}")
        return cls() if not text.strip() else cls._read(_parse(text))

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> "OffloadConfig":
        """Read the document from the mapping that its JSON text would give; the same rules hold."""
        return cls._read(document)

    @classmethod
    def _read(cls, document: object) -> "OffloadConfig":
        problems = Problems(_homes())
        config = read_object(document, "", _document_fields(), cls, problems)
        problems.raise_if_any()
        if config.is_fit_automatic:  # type: ignore[attr-defined]
            _refuse_beside_auto(_written(document))
        return config  # type: ignore[return-value]

    def to_dict(self) -> dict[str, object]:
        """Return the normalised document: every field of vLLM's, and `vllm_cpp` as it was given.

        Where the fit is automatic, vLLM's two sections are left out: they are what it chooses.
        """
        document: dict[str, object] = {"offload_backend": self.offload_backend}
        if not self.is_fit_automatic:
            for section, fields in (("uva", _UVA), ("prefetch", _PREFETCH)):
                values = {name: getattr(getattr(self, section), name) for name in fields}
                document[section] = {
                    name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
                }
        if self.vllm_cpp is not None:
            fit = self.vllm_cpp.device_fit
            document["vllm_cpp"] = {} if fit is None else {"device_fit": fit.to_dict()}
        return document

    def to_short_json(self) -> str:
        """Return the shortest document that reads back as this config: what is not at its default, on one line."""
        plain = OffloadConfig().to_dict()
        short: dict[str, object] = {}
        for name, value in self.to_dict().items():
            default = plain.get(name)
            if isinstance(value, dict) and isinstance(default, dict):
                value = {key: _shortest(item) for key, item in value.items() if item != default[key]} or default
            if value != default:
                short[name] = value
        return json.dumps(short)

    @property
    def resolved_backend(self) -> str | None:
        """The backend that will be used: `uva`, `prefetch`, or None when `auto` finds neither switched on."""
        if self.offload_backend != "auto":
            return self.offload_backend
        if self.prefetch.offload_group_size > 0:
            return "prefetch"
        return "uva" if self.uva.cpu_offload_gb > 0 else None

    @property
    def is_offloading_enabled(self) -> bool:
        """Whether the resolved backend is switched on."""
        if self.resolved_backend == "prefetch":
            return self.prefetch.offload_group_size > 0
        return self.resolved_backend == "uva" and self.uva.cpu_offload_gb > 0

    @property
    def uva_max_bytes(self) -> int:
        """The budget of `uva` in bytes, truncated."""
        return int(self.uva.cpu_offload_gb * GIB)

    @property
    def weight_budget_bytes(self) -> int | None:
        """Bytes that the device may hold, or None when the device is to be asked."""
        fit = self.vllm_cpp.device_fit if self.vllm_cpp else None
        return (fit.weight_budget_bytes or None) if fit else None

    @property
    def is_fit_automatic(self) -> bool:
        """Whether the offload is to be chosen from what the model needs and the device has."""
        fit = self.vllm_cpp.device_fit if self.vllm_cpp else None
        return bool(fit and fit.auto)

    @property
    def params(self) -> tuple[str, ...]:
        """The name segments of the resolved backend; empty is every weight."""
        if self.resolved_backend == "prefetch":
            return self.prefetch.offload_params
        return self.uva.cpu_offload_params if self.resolved_backend == "uva" else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """The one warning that vLLM gives for this document, or nothing."""
        uva, prefetch = self.uva.cpu_offload_gb > 0, self.prefetch.offload_group_size > 0
        if self.offload_backend == "uva":
            ignored = "Prefetch offload fields are set but offload_backend='uva'. Prefetch settings will be ignored."
            return (ignored,) if prefetch else ()
        if self.offload_backend == "prefetch":
            ignored = "UVA offload fields are set but offload_backend='prefetch'. UVA settings will be ignored."
            return (ignored,) if uva else ()
        return (_UVA_AND_PREFETCH,) if uva and prefetch else ()

    @property
    def disabled_reason(self) -> str | None:
        """Why a document that asks for something leaves offload off; None when it is on, or asks for nothing."""
        if self.is_offloading_enabled:
            return None
        off = []
        if self.offload_backend == "uva" or self.uva.cpu_offload_params:
            off.append("cpu_offload_gb is 0")
        if self.offload_backend == "auto" and self.prefetch != PrefetchOffloadConfig():
            off.append("offload_group_size is 0")
        return f"offload is off: {' and '.join(off)}" if off else None


def _shortest(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _written(document: object) -> list[str]:
    """Name the fields of vLLM's two sections that a sound document gives, defaults included."""
    top = dict(document)  # type: ignore[call-overload]
    return [f"{section}.{name}" for section in ("uva", "prefetch") for name in dict(top.get(section, ()))]


def _refuse_beside_auto(names: list[str]) -> None:
    if names:
        raise InvalidArgument(
            f"vllm_cpp.device_fit.auto chooses the offload and cannot stand beside {', '.join(names)}; remove "
            f"{'it' if len(names) == 1 else 'them'}, or remove auto"
        )


def _document_fields() -> dict[str, Rule]:
    device_fit = _section(DeviceFitConfig, _DEVICE_FIT)
    return {
        "offload_backend": _BACKEND,
        "uva": _section(UVAOffloadConfig, _UVA),
        "prefetch": _section(PrefetchOffloadConfig, _PREFETCH),
        "vllm_cpp": _section(VllmCppConfig, {"device_fit": device_fit}),
    }


def _homes() -> dict[str, str]:
    sections = {"uva": _UVA, "prefetch": _PREFETCH, "vllm_cpp.device_fit": _DEVICE_FIT}
    return {name: f"{path}.{name}" for path, fields in sections.items() for name in fields}


def _parse(text: str) -> object:
    """Parse JSON text; numbers stay as written and objects keep their pairs, so that no rule is lost in conversion."""
    try:
        text.encode()
        return json.loads(
            text, object_pairs_hook=Pairs, parse_float=Written, parse_int=Written, parse_constant=Written
        )
    except RecursionError as error:
        raise InvalidArgument("offload_config is nested too deeply; it must be one JSON object") from error
    except UnicodeEncodeError as error:
        raise InvalidArgument("offload_config is not valid Unicode text: it holds a lone surrogate") from error
    except ValueError as error:
        raise InvalidArgument(f"offload_config is not valid JSON: {error}") from error
