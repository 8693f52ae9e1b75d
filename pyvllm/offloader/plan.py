"""The plan of a load: where each weight will live, computed from configuration and headers alone.

A preview shows a plan and a load carries the same plan out. Whether a plan is allowed is for `guard.py` to say.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from pyvllm.config.model import WeightSpec
from pyvllm.config.offload import OffloadConfig
from pyvllm.memory.pinning import HostAccess
from pyvllm.offloader.base import Offloader, Place, Placement, in_plan_order, selects
from pyvllm.offloader.noop import NoopOffloader
from pyvllm.offloader.prefetch import BufferKey, PrefetchOffloader, Schedule, buffer_name
from pyvllm.offloader.staging import staging_sizes
from pyvllm.offloader.summary import (
    bus_bytes_per_token,
    bus_fields,
    by_kind,
    by_layer,
    expected_bytes,
    not_selected,
    placement_fields,
)
from pyvllm.offloader.uva import UVAOffloader

#: Version of the plan and report documents.
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Buffer:
    """A static device buffer: of the prefetch backend, or through which host weights pass on their way to many rows."""

    slot: int
    key: BufferKey
    nbytes: int

    @property
    def name(self) -> str:
        """Name of the buffer in the memory's tables."""
        return buffer_name(self.slot, self.key)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the device and the host have."""

    device_bytes: int | None
    """Bytes that the source allows on the device, before `gpu_memory_utilization`."""
    host_bytes: int
    device_name: str
    source: str
    """Who says `device_bytes`: `weight_budget_bytes`, `cudaMemGetInfo`, `MemAvailable`, ..."""
    host_source: str
    is_one_pool: bool
    usable_fraction: float = 1.0
    """Part of `device_bytes` that may be used; 1 for an explicit budget."""
    uva_refusal: str = ""
    """Why `uva` cannot be used on this device; empty where it can."""
    device: str = "cpu"
    """Which of pyvllm's memories it is: `cpu` or `cuda`."""
    free_device_bytes: int | None = None
    """What the device has free where `device_bytes` is a budget for weights; None where it is the same."""
    host_access: HostAccess | None = None
    """Of a device with memory of its own: how it may use the host's."""

    @property
    def usable_device_bytes(self) -> int | None:
        """Device bytes after the usable fraction."""
        return None if self.device_bytes is None else int(self.device_bytes * self.usable_fraction)

    @property
    def is_weight_budget(self) -> bool:
        """Whether `device_bytes` is for weights and prefetch buffers alone."""
        return self.source == "weight_budget_bytes"


@dataclass(frozen=True, slots=True)
class Demand:
    """What a model needs beside its weights, and what it is read from."""

    kv_cache_bytes: int
    kv_bytes_per_token: int
    workspace_bytes: int
    """Estimated activations of one step, and the device's context."""
    file_bytes: int
    """Stored bytes of the tensors that fill the weights."""

    def beside_weights(self, capacity: Capacity) -> int:
        """Bytes that count against the device's capacity and are neither weights nor prefetch buffers."""
        return 0 if capacity.is_weight_budget else self.workspace_bytes + self.kv_cache_bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """Every weight's place with the sums that follow from it."""

    architecture: str
    offload: OffloadConfig
    placements: tuple[Placement, ...]
    schedule: Schedule | None
    buffers: tuple[Buffer, ...]
    demand: Demand
    capacity: Capacity
    unmatched: tuple[str, ...]
    warnings: tuple[str, ...]
    fit_reason: str | None = None
    """Why the offload is what it is, where nobody chose it: `device_fit.auto`."""

    def at(self, place: Place) -> list[WeightSpec]:
        """List the weights of a place, in plan order."""
        return [item.spec for item in self.placements if item.place is place]

    def bytes_at(self, place: Place) -> int:
        """Sum the weights of a place."""
        return sum(item.nbytes for item in self.placements if item.place is place)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(item.nbytes for item in self.placements)

    @property
    def device_parts(self) -> dict[str, int]:
        """What counts against the device's capacity, in bytes by name."""
        buffers = "prefetch buffers" if self.schedule is not None else "staging buffers"
        parts = {"weights": self.bytes_at(Place.DEVICE), buffers: self.buffer_bytes}
        if self.capacity.is_weight_budget:
            return parts
        parts |= {"workspace": self.demand.workspace_bytes, "key-value cache": self.demand.kv_cache_bytes}
        if self.capacity.is_one_pool:
            parts["host weights"] = self.bytes_at(Place.HOST) + self.bytes_at(Place.STREAMED)
        return parts

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the static buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def asked_host_bytes(self) -> int | None:
        """The budget in bytes that `uva` was given; None when nobody asked for one."""
        is_uva = self.offload.resolved_backend == "uva" and self.offload.is_offloading_enabled
        return self.offload.uva_max_bytes if is_uva else None

    def to_document(
        self, measured: Mapping[str, int] | None = None, considered: int | None = None
    ) -> dict[str, object]:
        """Give the document that `vllm_offload_plan` and the offload report return; `docs/plan.md` describes it.

        measured: what a recount found; None in a preview. considered: how many weights the architecture took.
        """
        asked, host, placements = self.asked_host_bytes, self.bytes_at(Place.HOST), self.placements
        return {
            "schema": SCHEMA,
            "architecture": self.architecture,
            **configuration_fields(self.offload),
            "weights": {
                "count": len(placements),
                "considered": considered,
                "bytes": self.weight_bytes,
                "file_bytes": self.demand.file_bytes,
            },
            "asked": {"host_bytes": asked, "overshoot_bytes": max(0, host - asked) if asked is not None else 0},
            "planned": self._planned_fields(),
            "measured": dict(measured) if measured is not None else None,
            "bus_bytes_per_token": bus_bytes_per_token(placements),
            "bus": bus_fields(placements),
            "capacity": self._capacity_fields(),
            "fit": fit_fields(self.offload, self.fit_reason),
            "by_layer": by_layer(placements),
            "by_kind": by_kind(placements),
            "not_selected": not_selected(placements),
            "placements": [placement_fields(item) for item in placements],
            "unmatched": list(self.unmatched),
            "warnings": list(self.warnings),
        }

    def _planned_fields(self) -> dict[str, object]:
        return {
            **{f"{place.value}_bytes": self.bytes_at(place) for place in Place},
            "buffer_bytes": self.buffer_bytes,
            "kv_cache_bytes": self.demand.kv_cache_bytes,
            "workspace_bytes": self.demand.workspace_bytes,
        }

    def _capacity_fields(self) -> dict[str, object]:
        capacity, needed = self.capacity, sum(self.device_parts.values())
        usable = capacity.usable_device_bytes
        return {
            "device_bytes": capacity.device_bytes,
            "host_bytes": capacity.host_bytes,
            "device_name": capacity.device_name,
            "source": capacity.source,
            "host_source": capacity.host_source,
            "one_pool": capacity.is_one_pool,
            "usable_device_bytes": usable,
            "needed_device_bytes": needed,
            "spare_device_bytes": None if usable is None else usable - needed,
        }


def fit_fields(offload: OffloadConfig, reason: str | None) -> dict[str, object]:
    """Give a document's `fit`: whether the offload was chosen, why, and the text that gives the same plan."""
    return {"auto": reason is not None, "reason": reason, "offload_config": offload.to_short_json()}


def configuration_fields(offload: OffloadConfig) -> dict[str, object]:
    """Give the part of a plan document that the configuration alone decides."""
    return {
        "config": offload.to_dict(),
        "resolved_backend": offload.resolved_backend,
        "enabled": offload.is_offloading_enabled,
    }


def create_offloader(offload: OffloadConfig) -> Offloader:
    """Give the offloader that the configuration asks for; the no-op when offload is off."""
    if not offload.is_offloading_enabled:
        return NoopOffloader()
    if offload.resolved_backend == "uva":
        return UVAOffloader(offload.uva_max_bytes, offload.uva.cpu_offload_params)
    return PrefetchOffloader(offload.prefetch)


def place_weights(specs: Iterable[WeightSpec], offloader: Offloader) -> tuple[Placement, ...]:
    """Ask the offloader about every weight, in plan order."""
    return tuple(_place(spec, offloader) for spec in in_plan_order(specs))


def _place(spec: WeightSpec, offloader: Offloader) -> Placement:
    place = offloader.consider(spec)
    return Placement(spec, place, offloader.why_not(spec) if place is Place.DEVICE else "")


def make_plan(
    architecture: str,
    specs: Sequence[WeightSpec],
    offload: OffloadConfig,
    demand: Demand,
    capacity: Capacity,
    notes: Sequence[str] = (),
    fit_reason: str | None = None,
) -> Plan:
    """Place every weight and add up.

    specs: the architecture's weights. notes: warnings about the checkpoint that the plan shall carry. fit_reason: why
    `offload` was chosen, where `device_fit.auto` chose it.
    """
    placements = place_weights(specs, create_offloader(offload))
    schedule, buffers = _stream_layout(placements, offload)
    if capacity.host_access is not None:
        buffers += _staging_buffers(placements)
    selectors = offload.params if offload.is_offloading_enabled else ()
    unmatched = tuple(entry for entry in selectors if not any(selects(entry, spec) for spec in specs))
    plan = Plan(architecture, offload, placements, schedule, buffers, demand, capacity, unmatched, (), fit_reason)
    warnings = (
        *offload.warnings,
        *_off_notes(offload),
        *_selector_warnings(unmatched, specs),
        *_plan_warnings(plan),
        *notes,
    )
    return replace(plan, warnings=warnings)


def _stream_layout(
    placements: Sequence[Placement], offload: OffloadConfig
) -> tuple[Schedule | None, tuple[Buffer, ...]]:
    streamed = [item.spec for item in placements if item.place is Place.STREAMED]
    if not streamed:
        return None, ()
    layers = tuple(sorted({spec.layer for spec in streamed if spec.layer is not None}))
    steps = offload.prefetch.offload_prefetch_step
    sizes = {BufferKey.of(spec): spec.nbytes for spec in streamed}
    buffers = tuple(Buffer(slot, key, nbytes) for slot in range(steps) for key, nbytes in sizes.items())
    return Schedule(layers, steps), buffers


def _staging_buffers(placements: Sequence[Placement]) -> tuple[Buffer, ...]:
    sizes = staging_sizes(item.spec for item in placements if item.place is Place.HOST)
    return tuple(Buffer(0, BufferKey(name, (nbytes,), "uint8"), nbytes) for name, nbytes in sizes.items() if nbytes)


def _off_notes(offload: OffloadConfig) -> list[str]:
    return [offload.disabled_reason] if offload.disabled_reason else []


def _selector_warnings(unmatched: Sequence[str], specs: Sequence[WeightSpec]) -> list[str]:
    return [f"the selector {entry!r} matches no weight of this model{suggestion(entry, specs)}" for entry in unmatched]


def suggestion(entry: str, specs: Sequence[WeightSpec]) -> str:
    """Name the segment that a selector without a match most likely meant, or nothing.

    A name of the checkpoint (`q_proj`) points to the fused weight that its tensor fills; else the nearest spelling.
    """
    for spec in specs:
        for source in spec.sources:
            if f".{entry}." in f".{source.tensor}.":
                ours, theirs = spec.name.split("."), source.tensor.split(".")
                changed = [segment for segment in ours if segment not in theirs]
                return f"; did you mean {changed[0]!r}?" if changed else ""
    segments = sorted({segment for spec in specs for segment in spec.name.split(".") if not segment.isdigit()})
    near = get_close_matches(entry, segments, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _plan_warnings(plan: Plan) -> list[str]:
    if not plan.offload.is_offloading_enabled:
        return []
    found = []
    if plan.capacity.is_one_pool:
        found.append(
            f"{plan.capacity.device_name} has one memory pool: offload moves weights to another place in it and "
            "frees no memory"
        )
    access, streamed = plan.capacity.host_access, plan.bytes_at(Place.STREAMED)
    if access is not None and streamed and (reason := access.why_not_pinned(streamed)):
        slower = "" if access.attributes.is_coherent else ", which is slower and holds the CPU up"
        found.append(f"prefetch copies from pageable memory{slower}: {reason}")
    asked, host = plan.asked_host_bytes, plan.bytes_at(Place.HOST)
    if asked is not None and host < asked:
        found.append(f"cpu_offload_gb asks for {asked} bytes and all weights it may take are {host} bytes")
    experts = [spec for spec in plan.at(Place.STREAMED) if spec.num_experts]
    if experts:
        copied = sum(spec.nbytes for spec in experts)
        needed = sum(expected_bytes(spec) for spec in experts)
        found.append(
            f"streaming expert weights copies {copied} bytes a step where a token needs {needed} "
            f"({copied / max(needed, 1):.1f} "
            f"times as many); uva on the same weights moves only routed experts"
        )
    prefetch = plan.offload.prefetch
    if plan.schedule and plan.schedule.steps < prefetch.offload_num_in_group:
        found.append(
            f"offload_prefetch_step ({plan.schedule.steps}) is below offload_num_in_group "
            f"({prefetch.offload_num_in_group}): steps "
            f"count layers, so copies stall inside each group"
        )
    return found
