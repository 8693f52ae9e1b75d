"""Every reason for which a load is refused although the configuration is well formed.

Before a weight file is opened: an architecture that cannot offload. Before a weight is read: a plan that frees nothing
or does not fit. After the load: a loader that did not do what the plan said.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pyvllm.config.offload import OffloadConfig
from pyvllm.errors import DoesNotFit, InvalidArgument, LoaderDefect
from pyvllm.memory.base import Region, overhead_bytes
from pyvllm.offloader.base import Place
from pyvllm.offloader.budget import smallest_cpu_offload_gb
from pyvllm.offloader.plan import Plan, suggestion

#: How allocators say that there is no memory. Source: torch's CPU and CUDA allocators, and the CUDA runtime.
_EXHAUSTED = ("can't allocate memory", "out of memory", "cudaErrorMemoryAllocation")
_ASKED = re.compile(r"[Tt]ried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)")
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}

#: How many names an error lists before it only counts.
_NAMES = 5


def check_architecture(architecture: str, supports_weight_offload: bool, offload: OffloadConfig) -> None:
    """Refuse an enabled offload on an architecture that does not claim support.

    Raises InvalidArgument.
    """
    if offload.is_offloading_enabled and not supports_weight_offload:
        raise unsupported(architecture)


def unsupported(architecture: str) -> InvalidArgument:
    """Build the refusal of an architecture that cannot offload."""
    return InvalidArgument(
        f'weight offload is configured but architecture "{architecture}" does not support it: its loader does '
        "not consult "
        "the weight offloader, so every weight would stay on the device and the budget would free nothing "
        "(ENG-WEIGHT-OFFLOAD W2c). Remove --offload-config, or wire this model's loader."
    )


def check_plan(plan: Plan) -> None:
    """Refuse a plan that frees nothing, that mixes a tie with streaming, or that does not fit.

    Raises InvalidArgument or DoesNotFit, with the numbers.
    """
    if plan.offload.is_offloading_enabled:
        _check_backend(plan)
        _check_frees(plan)
        _check_ties(plan)
        _check_buffers(plan)
    _check_device(plan)
    _check_host(plan)


def _check_backend(plan: Plan) -> None:
    capacity, nbytes = plan.capacity, plan.bytes_at(Place.HOST)
    reason = capacity.uva_refusal or (capacity.host_access and capacity.host_access.why_not_in_place(nbytes))
    if reason and plan.offload.resolved_backend == "uva":
        raise DoesNotFit(f"uva cannot be used on {plan.capacity.device_name}: {reason}; use prefetch")


def _check_frees(plan: Plan) -> None:
    if any(item.place is not Place.DEVICE and item.spec.nbytes for item in plan.placements):
        return
    offload = plan.offload
    specs = [item.spec for item in plan.placements]
    if offload.params and len(plan.unmatched) == len(offload.params):
        hints = ", ".join(f"{entry!r}{suggestion(entry, specs)}" for entry in plan.unmatched)
        raise InvalidArgument(f"the offload would free nothing: no weight of {plan.architecture} matches {hints}")
    if offload.resolved_backend == "uva":
        gb = offload.uva.cpu_offload_gb
        raise InvalidArgument(
            f"the offload would free nothing: cpu_offload_gb {gb!r} is {offload.uva_max_bytes} bytes; give at least "
            f"{1 / 1024**3!r}"
        )
    layers = len({spec.layer for spec in specs if spec.layer is not None})
    prefetch = offload.prefetch
    raise InvalidArgument(
        f"the offload would free nothing: with offload_group_size {prefetch.offload_group_size} and "
        "offload_num_in_group "
        f"{prefetch.offload_num_in_group} no layer of {layers} has a weight to stream; use an offload_group_size of "
        f"at most {layers}"
    )


def _check_ties(plan: Plan) -> None:
    for spec in plan.at(Place.STREAMED):
        own_layer = spec.name.removesuffix(spec.name_in_layer)
        elsewhere = [name for name in spec.aliases if not name.startswith(own_layer)]
        if elsewhere:
            raise InvalidArgument(
                f"weight {spec.name!r} is tied to {', '.join(map(repr, elsewhere))} and cannot be streamed: a "
                "streamed weight is "
                "valid only inside its own layer; leave it out with offload_params, or use uva"
            )


def _check_buffers(plan: Plan) -> None:
    schedule, streamed = plan.schedule, plan.bytes_at(Place.STREAMED)
    if schedule is None or (plan.buffer_bytes < streamed and schedule.steps < len(schedule.layers)):
        return
    raise InvalidArgument(
        f"the offload would free nothing: offload_prefetch_step {schedule.steps} over {len(schedule.layers)} "
        "streamed layers needs "
        f"{plan.buffer_bytes} bytes of static buffers for {streamed} bytes of streamed weights; lower "
        "offload_prefetch_step or "
        "stream more layers"
    )


def _check_device(plan: Plan) -> None:
    capacity = plan.capacity
    available = capacity.usable_device_bytes
    if available is None:
        return
    parts = plan.device_parts
    needed = sum(parts.values())
    if needed <= available:
        return
    listed = ", ".join(f"{name} {nbytes}" for name, nbytes in parts.items() if nbytes)
    share = "" if capacity.usable_fraction == 1 else f" at gpu_memory_utilization {capacity.usable_fraction}"
    raise DoesNotFit(
        f"the model does not fit on the device: it needs {needed} bytes ({listed}) and {capacity.device_name} has "
        f"{available} "
        f"by {capacity.source}{share}; {_remedy(plan, available, needed)}"
    )


def _remedy(plan: Plan, available: int, needed: int) -> str:
    remedies, is_budget = [], plan.capacity.is_weight_budget
    if is_budget or not plan.capacity.is_one_pool:
        other = plan.demand.beside_weights(plan.capacity)
        params = plan.offload.uva.cpu_offload_params
        specs = [item.spec for item in plan.placements]
        smallest = smallest_cpu_offload_gb(
            specs, params, available - other, has_staging=plan.capacity.host_access is not None
        )
        chosen = f" with cpu_offload_params {list(params)}" if params else ""
        remedies.append(
            f"the smallest cpu_offload_gb that fits is {smallest}{chosen}"
            if smallest is not None
            else f"no cpu_offload_gb{chosen} would make it fit"
        )
    else:
        remedies.append("no cpu_offload_gb would make it fit, because there is one memory pool")
    if not is_budget:
        rest = available - (needed - plan.demand.kv_cache_bytes)
        tokens = rest // plan.demand.kv_bytes_per_token
        remedies.append(
            f"the largest max_model_len that fits is {tokens}" if tokens > 0 else "no max_model_len would make it fit"
        )
    return "; ".join(remedies)


def _check_host(plan: Plan) -> None:
    capacity = plan.capacity
    largest = max((item.spec.nbytes for item in plan.placements), default=0)
    needed = plan.bytes_at(Place.HOST) + plan.bytes_at(Place.STREAMED) + largest
    if capacity.is_one_pool:
        needed += (
            plan.bytes_at(Place.DEVICE) + plan.buffer_bytes + plan.demand.kv_cache_bytes + plan.demand.workspace_bytes
        )
    if needed > capacity.host_bytes:
        raise DoesNotFit(
            f"the host has not the room: it needs {needed} bytes (the largest tensor in flight is {largest}) and "
            f"{capacity.host_source} leaves {capacity.host_bytes}"
        )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation was refused."""
    if isinstance(error, DoesNotFit | RuntimeError):
        return any(phrase in str(error) for phrase in _EXHAUSTED)
    return isinstance(error, MemoryError)


def explain_failure(plan: Plan, error: BaseException) -> str:
    """Give an error's text; where memory ran out, also what the offload was, what it freed, and what would fit."""
    text = str(error) or type(error).__name__
    if not is_out_of_memory(error):
        return text
    device = plan.capacity.device_name
    return f"{device} is out of memory: {text.strip()} [{_offload_done(plan)}; {_more_room(plan, text)}]"


def _offload_done(plan: Plan) -> str:
    offload, device = plan.offload, plan.bytes_at(Place.DEVICE)
    away = plan.weight_bytes - device
    expected = f"workspace {plan.demand.workspace_bytes} and key-value cache {plan.demand.kv_cache_bytes} were planned"
    if not offload.is_offloading_enabled:
        return f"offload is off: all {device} bytes of weights are on the device, {expected}"
    return (
        f"offload is {offload.resolved_backend} with {offload.to_short_json()}: it took {away} of {plan.weight_bytes} "
        f"bytes of weights off the device, where {device} and {plan.buffer_bytes} bytes of buffers remain, {expected}"
    )


def _more_room(plan: Plan, text: str) -> str:
    """Say what would make room for the bytes that the text says were asked for, else for one more workspace."""
    lower = "a lower max_num_batched_tokens, max_num_seqs or max_model_len needs less"
    if plan.capacity.is_one_pool and not plan.capacity.is_weight_budget:
        return f"there is one memory pool, so more offload frees nothing; {lower}"
    found = _ASKED.search(text)
    missing = int(float(found[1]) * _UNITS[found[2]]) if found else plan.demand.workspace_bytes
    params = plan.offload.uva.cpu_offload_params
    smallest = smallest_cpu_offload_gb(
        [item.spec for item in plan.placements],
        params,
        plan.bytes_at(Place.DEVICE) + plan.buffer_bytes - missing,
        has_staging=plan.capacity.host_access is not None,
    )
    chosen = f" with cpu_offload_params {list(params)}" if params else ""
    if smallest is None:
        return f"no cpu_offload_gb{chosen} frees {missing} bytes more; {lower}"
    return f"cpu_offload_gb {smallest}{chosen} would free {missing} bytes more; {lower}"


def check_taken(plan: Plan, taken: Iterable[str]) -> None:
    """Refuse an architecture that did not ask for every planned weight.

    taken: names that the architecture took through `weights.take`. Raises LoaderDefect naming what is missing.
    """
    names = set(taken)
    missing = [item.spec.name for item in plan.placements if item.spec.name not in names]
    if not missing:
        return
    if len(missing) == len(plan.placements):
        raise LoaderDefect(
            f"defect of the loader of {plan.architecture}: it took no parameter through weights.take, so nothing is "
            "where the "
            f"plan says ({len(missing)} weights planned)"
        )
    raise LoaderDefect(f"defect of the loader of {plan.architecture}: it never took {_listed(missing)}")


@dataclass(frozen=True, slots=True)
class Live:
    """Where a live tensor's bytes are."""

    address: int
    nbytes: int


def recount(
    architecture: str,
    parameters: Mapping[str, Live],
    sources: Sequence[Live],
    buffers: Sequence[Live],
    regions: Sequence[Region],
) -> tuple[dict[str, Place | None], dict[str, int]]:
    """Find out where live parameters really are, without looking at the plan.

    parameters: the model's parameters by name. sources: host copies that are streamed. buffers: the static buffers.
    Returns each parameter's place (None: in no region) and the `measured` fields of the report. Raises LoaderDefect if
    a streamed copy or a buffer is not where it belongs.
    """
    spans = set(buffers)
    places: dict[str, Place | None] = {}
    for name, live in parameters.items():
        pool = _pool_of(live, regions)
        if live in spans:
            places[name] = Place.STREAMED
        elif pool is None:
            places[name] = None
        else:
            places[name] = Place.DEVICE if pool == "device" else Place.HOST
    # A tied weight has several names and its bytes only once.
    resident = {live: place for live, place in zip(parameters.values(), places.values(), strict=True)}
    totals = {
        f"{place.value}_bytes": sum(live.nbytes for live, found in resident.items() if found is place)
        for place in (Place.DEVICE, Place.HOST)
    }
    for what, pool, tensors in (("streamed weight", "host", sources), ("prefetch buffer", "device", buffers)):
        if any(_pool_of(live, regions) != pool for live in tensors):
            raise LoaderDefect(f"defect of the loader of {architecture}: a {what} is not in {pool} memory")
    streamed, buffered = (sum(live.nbytes for live in tensors) for tensors in (sources, buffers))
    overhead = overhead_bytes(regions, totals["device_bytes"] + totals["host_bytes"] + streamed + buffered)
    return places, {**totals, "streamed_bytes": streamed, "buffer_bytes": buffered, "overhead_bytes": overhead}


def check_recount(plan: Plan, places: Mapping[str, Place | None], measured: Mapping[str, int]) -> None:
    """Hold a recount against the plan.

    Raises LoaderDefect naming every weight that is elsewhere, or the place whose bytes differ.
    """
    wrong = []
    for item in plan.placements:
        found = [places[name] for name in (item.spec.name, *item.spec.aliases) if name in places]
        for place in found or [None]:
            if place is not item.place:
                wrong.append(f"{item.spec.name} (planned {item.place}, found {place or 'in no region of this engine'})")
    known = {name for item in plan.placements for name in (item.spec.name, *item.spec.aliases)}
    wrong += [f"{name} (not planned)" for name in places if name not in known]
    if wrong:
        raise LoaderDefect(
            f"the recount of {plan.architecture} found weights that are not where the plan put them: {_listed(wrong)}"
        )
    planned = {
        "device_bytes": plan.bytes_at(Place.DEVICE),
        "host_bytes": plan.bytes_at(Place.HOST),
        "streamed_bytes": plan.bytes_at(Place.STREAMED),
        "buffer_bytes": plan.buffer_bytes,
    }
    for field, nbytes in planned.items():
        if measured[field] != nbytes:
            raise LoaderDefect(
                f"the recount of {plan.architecture} measured {measured[field]} {field} where {nbytes} were planned"
            )


def _pool_of(live: Live, regions: Sequence[Region]) -> str | None:
    return next((region.pool for region in regions if region.holds(live.address, live.nbytes)), None)


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES} more"
