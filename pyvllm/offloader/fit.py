"""Chooses the offload for `device_fit.auto`: nothing if the model fits, else what moves the fewest bytes a token.

A choice is an ordinary OffloadConfig: the plan is then made from it as from one that a user wrote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pyvllm.config.model import WeightSpec
from pyvllm.config.offload import (
    DeviceFitConfig,
    OffloadConfig,
    PrefetchOffloadConfig,
    UVAOffloadConfig,
    VllmCppConfig,
)
from pyvllm.errors import DoesNotFit
from pyvllm.offloader.base import Place
from pyvllm.offloader.budget import smallest_cpu_offload_gb
from pyvllm.offloader.guard import unsupported
from pyvllm.offloader.plan import Capacity, Demand, Plan, make_plan, place_weights
from pyvllm.offloader.prefetch import BufferKey, PrefetchOffloader
from pyvllm.offloader.summary import bus_bytes_per_token
from pyvllm.offloader.uva import UVAOffloader

#: Selectors that are tried on a mixture of experts, and beside "every weight" on a dense model with an untied
#: embedding, of which a token reads one row.
EXPERTS, EMBEDDING = ("experts",), ("embed_tokens",)

#: Largest group that is tried: patterns of longer groups stream too few layers to differ.
_MAX_GROUP = 256


@dataclass(frozen=True, slots=True)
class Fit:
    """A chosen offload and why it was chosen."""

    offload: OffloadConfig
    reason: str


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An offload that fits, with what it costs for each token."""

    offload: OffloadConfig
    bus_bytes: int
    moved_bytes: int
    unevenness: int = 0
    """Streamed layers in a row: copies overlap best when they are spread."""


@dataclass(frozen=True, slots=True)
class _Need:
    """What has to be made to fit, and into how much."""

    specs: Sequence[WeightSpec]
    weight_bytes: int
    room: int
    """Bytes that weights and prefetch buffers may take."""
    base: OffloadConfig
    """The configuration without `auto`, to which a choice is added."""

    @property
    def excess(self) -> int:
        """Bytes that have to leave the device."""
        return self.weight_bytes - self.room


def plan_fit(
    architecture: str,
    supports_weight_offload: bool,
    specs: Sequence[WeightSpec],
    offload: OffloadConfig,
    demand: Demand,
    capacity: Capacity,
    notes: Sequence[str] = (),
) -> Plan:
    """Make the plan of `offload`, choosing the offload first where it says `auto`.

    Arguments are those of `make_plan`. Raises DoesNotFit, with the numbers, when nothing that may be chosen fits, and
    InvalidArgument when offload is needed and the architecture does not support it.
    """
    reason = None
    if offload.is_fit_automatic:
        fit = choose_fit(architecture, supports_weight_offload, specs, offload, demand, capacity)
        offload, reason = fit.offload, fit.reason
    return make_plan(architecture, specs, offload, demand, capacity, notes, reason)


def choose_fit(
    architecture: str,
    supports_weight_offload: bool,
    specs: Sequence[WeightSpec],
    offload: OffloadConfig,
    demand: Demand,
    capacity: Capacity,
) -> Fit:
    """Choose the offload that fits and moves the fewest bytes for each token; of equals, the one that moves less.

    A mixture of experts moves experts and nothing else. Raises as `plan_fit`.
    """
    base = replace(offload, vllm_cpp=_without_auto(offload))
    usable = capacity.usable_device_bytes
    weight_bytes = sum(spec.nbytes for spec in specs)
    if usable is None:
        return Fit(base, "nothing is offloaded: the device has no known limit")
    need = _Need(specs, weight_bytes, usable - demand.beside_weights(capacity), base)
    if need.excess <= 0:
        return Fit(base, f"nothing is offloaded: {weight_bytes} bytes of weights fit into {need.room}")
    if not supports_weight_offload:
        raise unsupported(architecture)
    is_moe = any(spec.num_experts for spec in specs)
    candidates = [] if _is_hopeless(capacity) else _candidates(need, capacity, is_moe)
    if not candidates:
        raise DoesNotFit(_refusal(need, demand, capacity, is_moe))
    best = min(candidates, key=lambda one: (one.bus_bytes, one.moved_bytes, one.unevenness))
    reason = (
        f"{best.offload.resolved_backend} was chosen: {weight_bytes} bytes of weights are {need.excess} more than the "
        f"{need.room} that the device has for them; it moves {best.moved_bytes} bytes off the device and about "
        f"{best.bus_bytes} across the bus for each token"
    )
    return Fit(best.offload, reason)


def _without_auto(offload: OffloadConfig) -> VllmCppConfig | None:
    budget = offload.weight_budget_bytes
    return None if budget is None else VllmCppConfig(DeviceFitConfig(budget))


def _is_hopeless(capacity: Capacity) -> bool:
    """Whether moving weights cannot make room: one pool of memory, and no budget for a part of it."""
    return capacity.is_one_pool and not capacity.is_weight_budget


def _candidates(need: _Need, capacity: Capacity, is_moe: bool) -> list[_Candidate]:
    found: list[_Candidate] = []
    access = capacity.host_access
    # What has to leave is the least that would have to be pinned.
    is_pinnable = access is None or access.why_not_in_place(need.excess) is None
    if not capacity.uva_refusal and is_pinnable:
        for params in (EXPERTS,) if is_moe else ((), *_embedding(need.specs)):
            found += _uva(need, params, has_staging=capacity.host_access is not None)
    if is_moe:
        return found
    # A pattern streams what has to leave and, to make room for its buffers, one more layer at least.
    layers = _layer_bytes(need.specs)
    least = need.excess + min(layers.values(), default=0)
    if not found or min(one.bus_bytes for one in found) > least:
        found += _patterns(need)
    return found


def _embedding(specs: Sequence[WeightSpec]) -> tuple[tuple[str, ...], ...]:
    return (EMBEDDING,) if any(spec.kind == "embedding" and not spec.aliases for spec in specs) else ()


def _uva(need: _Need, params: tuple[str, ...], *, has_staging: bool) -> list[_Candidate]:
    """Give the smallest budget on some selectors, if any is enough."""
    gb = smallest_cpu_offload_gb(need.specs, params, need.room, has_staging=has_staging)
    if gb is None:
        return []
    offload = replace(need.base, uva=UVAOffloadConfig(float(gb), params))
    placements = place_weights(need.specs, UVAOffloader(offload.uva_max_bytes, params))
    moved = sum(item.nbytes for item in placements if item.place is Place.HOST)
    return [_Candidate(offload, bus_bytes_per_token(placements)["expected"], moved)]


def _layer_bytes(specs: Sequence[WeightSpec]) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for spec in specs:
        if spec.layer is not None:
            sizes[spec.layer] = sizes.get(spec.layer, 0) + spec.nbytes
    return sizes


def _patterns(need: _Need) -> Iterator[_Candidate]:
    """Give every group pattern that fits, with as many steps as keep copies from stalling where there is room."""
    sizes, buffers = _layer_bytes(need.specs), _layer_buffers(need.specs)
    highest = max(sizes, default=-1) + 1
    for group in range(1, min(highest, _MAX_GROUP) + 1):
        for num in range(1, group + 1):
            chosen = PrefetchOffloader(PrefetchOffloadConfig(group, num))
            layers = [layer for layer in sizes if chosen.is_selected(layer)]
            streamed = sum(sizes[layer] for layer in layers)
            one_set = sum({key: size for layer in layers for key, size in buffers[layer].items()}.values())
            spare = min(streamed - need.excess, streamed - 1)
            steps = min(num, len(layers) - 1, spare // one_set if one_set else 0)
            if steps >= 1:
                prefetch = PrefetchOffloadConfig(group, num, steps)
                yield _Candidate(replace(need.base, prefetch=prefetch), streamed, streamed, num)


def _layer_buffers(specs: Sequence[WeightSpec]) -> dict[int, dict[BufferKey, int]]:
    buffers: dict[int, dict[BufferKey, int]] = {}
    for spec in specs:
        if spec.layer is not None:
            buffers.setdefault(spec.layer, {})[BufferKey.of(spec)] = spec.nbytes
    return buffers


def _refusal(need: _Need, demand: Demand, capacity: Capacity, is_moe: bool) -> str:
    needed = need.weight_bytes + demand.beside_weights(capacity)
    parts = {"weights": need.weight_bytes}
    if not capacity.is_weight_budget:
        parts |= {"workspace": demand.workspace_bytes, "key-value cache": demand.kv_cache_bytes}
    listed = ", ".join(f"{name} {nbytes}" for name, nbytes in parts.items())
    numbers = (
        f"device_fit.auto cannot make the model fit: it needs {needed} bytes ({listed}) and {capacity.device_name} has "
        f"{capacity.usable_device_bytes} by {capacity.source}"
    )
    if need.room < 0:
        return f"{numbers}, which is too little before any weight; lower max_model_len or kv_cache_memory_bytes"
    if _is_hopeless(capacity):
        return f"{numbers}; there is one memory pool, so moving weights frees nothing; lower max_model_len"
    if not is_moe:
        why = f"uva cannot be used ({capacity.uva_refusal}) and no" if capacity.uva_refusal else "no budget and no"
        return f"{numbers}; {why} group pattern leaves {need.room} bytes or less on the device"
    if capacity.uva_refusal:
        return f"{numbers}; experts are offloaded with uva, which cannot be used: {capacity.uva_refusal}"
    return f"{numbers}; {_experts_are_not_enough(need)}"


def _experts_are_not_enough(need: _Need) -> str:
    targets = UVAOffloader(0, EXPERTS)
    experts = sum(spec.nbytes for spec in need.specs if targets.is_targeted(spec))
    return (
        f"it moves only weights that {list(EXPERTS)} selects, and with all {experts} bytes of them on the host "
        f"{need.weight_bytes - experts} bytes of weights remain where {need.room} have room: these selectors can never "
        "free enough; choose cpu_offload_params by hand"
    )
