"""The weight-offload configuration: vLLM's `OffloadConfig` as checked values, and what they resolve to.

The rules, and why some are stricter than vLLM's, are in `offload_rules`.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pyvllm.config._fields import Problems, Rule, boolean, check_fields, found
from pyvllm.config.offload_rules import (
    BACKEND,
    DEVICE_FIT,
    PREFETCH,
    UVA,
    check_across_fields,
    judge,
    judge_text,
    refuse_beside_auto,
)

GIB = 1024**3

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
        check_fields(self, "uva", UVA)


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
        check_fields(self, "prefetch", PREFETCH)


@dataclass(frozen=True, slots=True)
class DeviceFitConfig:
    """How much of the device the weights may take."""

    weight_budget_bytes: int | None = None
    """Bytes of weights and prefetch buffers that the device may hold; 0 or None asks the device."""
    auto: bool = False
    """Choose backend, selectors and budget from what the model needs and the device has."""

    def __post_init__(self) -> None:
        given = {name: rule for name, rule in DEVICE_FIT.items() if getattr(self, name) is not None}
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


def _vllm_cpp(device_fit: Mapping[str, object] | None = None) -> VllmCppConfig:
    return VllmCppConfig(None if device_fit is None else DeviceFitConfig(**device_fit))  # type: ignore[arg-type]


def _instance(kind: type, optional: bool = False) -> Rule:
    def rule(value: object, path: str, problems: Problems) -> object:
        if not (isinstance(value, kind) or (optional and value is None)):
            problems.add(f"{path} must be a {kind.__name__}, found {found(value)}")
        return value

    return rule


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
        check_fields(self, "", {"offload_backend": BACKEND, **sections, **own})
        if self.is_fit_automatic:
            refuse_beside_auto(self._set_by_hand())
        ahead = self.prefetch
        check_across_fields(
            self.offload_backend, ahead.offload_group_size, ahead.offload_num_in_group, ahead.offload_prefetch_step
        )

    def _set_by_hand(self) -> list[str]:
        """Name the fields of vLLM's that are not at their defaults."""
        pairs = (
            ("uva", UVA, self.uva, UVAOffloadConfig()),
            ("prefetch", PREFETCH, self.prefetch, PrefetchOffloadConfig()),
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
        return cls._build(judge_text(text))

    @classmethod
    def from_dict(cls, document: Mapping[str, object]) -> "OffloadConfig":
        """Read the document from the mapping that its JSON text would give; the same rules hold."""
        return cls._build(judge(document))

    @classmethod
    def _build(cls, given: dict[str, object]) -> "OffloadConfig":
        """Build the classes from the plain fields that a judged document gives."""
        build = {"uva": UVAOffloadConfig, "prefetch": PrefetchOffloadConfig, "vllm_cpp": _vllm_cpp}
        return cls(**{name: build[name](**value) if name in build else value for name, value in given.items()})  # type: ignore[arg-type,operator]

    def to_dict(self) -> dict[str, object]:
        """Return the normalised document: every field of vLLM's, and `vllm_cpp` as it was given.

        Where the fit is automatic, vLLM's two sections are left out: they are what it chooses.
        """
        document: dict[str, object] = {"offload_backend": self.offload_backend}
        if not self.is_fit_automatic:
            for section, fields in (("uva", UVA), ("prefetch", PREFETCH)):
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
