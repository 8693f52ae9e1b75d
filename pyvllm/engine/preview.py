"""From a configuration to a plan that is allowed: everything a load decides before it reads a weight.

Torch is never imported here, and no weight file is opened before the guard has spoken.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pyvllm import logger
from pyvllm.config.engine import EngineConfig
from pyvllm.config.model import DTYPE_BYTES, ModelConfig, WeightSpec, model_config
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.weight_form import (
    WHY_EXPANDED,
    can_stay_stored,
    choose_instruction_set,
    expansion_note,
    prefers_expanded,
)
from pyvllm.errors import DoesNotFit, InvalidArgument, ModelLoadError
from pyvllm.memory.base import Room
from pyvllm.memory.cpu import host_room
from pyvllm.memory.cuda import device_facts, probe
from pyvllm.memory.pinning import DeviceAttributes, Environment, HostAccess, read_environment
from pyvllm.model_loader.checkpoint import Checkpoint, ModelSource, open_model
from pyvllm.model_loader.coverage import check_tensors
from pyvllm.model_loader.stored import keep_stored
from pyvllm.models.registry import ModelEntry, lookup
from pyvllm.offloader.fit import plan_fit
from pyvllm.offloader.guard import check_architecture, check_plan
from pyvllm.offloader.plan import SCHEMA, Capacity, Demand, Plan, configuration_fields, fit_fields

#: `max_num_batched_tokens` of a dense model and of a mixture of experts.
BATCHED_TOKENS, BATCHED_TOKENS_MOE = 2048, 4096
#: Bytes of a key-value cache that nobody sized, on the CPU device.
DEFAULT_CACHE_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class CacheSizes:
    """The key-value cache and the batch, with every default resolved."""

    num_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    scheduling_policy: str
    enable_prefix_caching: bool


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model that may be loaded: its files open, its plan made and allowed."""

    config: EngineConfig
    source: ModelSource
    entry: ModelEntry
    model_config: ModelConfig
    checkpoint: Checkpoint
    dtype: str
    max_model_len: int
    cache: CacheSizes
    plan: Plan
    instruction_set: str | None
    """What the CPU kernels compute on; None where torch computes."""
    notes: tuple[str, ...]
    """What a load says of what it chose: why `auto` became the CPU, what quantised weights grow to."""


#: How an assumed device uses host memory: as a graphics card in a slot does, without limits on pinning.
_ORDINARY_ACCESS = HostAccess(
    DeviceAttributes(
        is_integrated=False,
        can_map_host_memory=True,
        has_unified_addressing=True,
        reads_pageable_memory=False,
        uses_host_page_tables=False,
    ),
    Environment(),
)


@dataclass(frozen=True, slots=True)
class AssumedRoom:
    """A CUDA device that is not here: a plan can be made for it, a load cannot."""

    device_bytes: int | None = None
    """Free bytes of a device with memory of its own; None asks this machine's device."""
    host_bytes: int | None = None
    """Free bytes of the host beside it; None asks this machine."""


@dataclass(frozen=True, slots=True)
class _Ground:
    """What all plans of a load have in common, in whatever form the weights are kept."""

    config: EngineConfig
    entry: ModelEntry
    model: ModelConfig
    dtype: str
    max_model_len: int
    capacity: Capacity
    file_bytes: int
    notes: Sequence[str]

    def plan(self, specs: Sequence[WeightSpec]) -> tuple[CacheSizes, Plan]:
        """Size the cache, and plan the load of these weights. Raises DoesNotFit, or InvalidArgument."""
        weight_bytes = sum(spec.nbytes for spec in specs)
        cache, demand = _demand(
            self.config, self.model, self.dtype, self.max_model_len, self.capacity, weight_bytes, self.file_bytes
        )
        entry, offload = self.entry, self.config.offload
        plan = plan_fit(
            entry.architecture, entry.supports_weight_offload, specs, offload, demand, self.capacity, self.notes
        )
        check_plan(plan)
        return cache, plan

    def expand_within_memory(
        self, specs: Sequence[WeightSpec], cache: CacheSizes, plan: Plan
    ) -> tuple[CacheSizes, Plan, str]:
        """Plan expanded weights, which are faster, in place of stored ones; not where that costs cache or offload.

        specs: the expanded weights. cache, plan: those of the stored weights. Returns what was chosen, and a line that
        says which and why.
        """
        try:
            wide_cache, wide_plan = self.plan(specs)
            fits = wide_cache == cache and wide_plan.offload == plan.offload
        except DoesNotFit:
            fits = False
        if fits:
            return wide_cache, wide_plan, f"gguf_weights auto: expanded, {WHY_EXPANDED}"
        nbytes = sum(spec.nbytes for spec in specs)
        why = f"{WHY_EXPANDED}, but its {nbytes} bytes do not fit beside the cache"
        return cache, plan, f"gguf_weights auto: stored; expanded is {why}"


def announce(offload: OffloadConfig) -> None:
    """Print the configuration's warning, if it has one."""
    for text in offload.warnings:
        logger.warning(f"offload_config: {text}")


def prepare(config: EngineConfig, assumed: AssumedRoom | None = None) -> Prepared:
    """Plan the load of a model and check that the plan is allowed.

    assumed: plan for a machine with this room instead of for this one. Raises InvalidArgument or ModelLoadError. The
    caller closes `checkpoint`.
    """
    announce(config.offload)
    source = open_model(config.model)
    entry = lookup(source.architecture)
    check_architecture(entry.architecture, entry.supports_weight_offload, config.offload)
    model = model_config(source.document, source.origin)
    max_model_len = _max_model_len(config, model)
    assumed = assumed or AssumedRoom()
    device, note = resolve_device(config.device) if assumed.device_bytes is None else ("cuda", "")
    capacity = _capacity(config, device, assumed)
    checkpoint = source.headers()
    try:
        dtype = _dtype(config, checkpoint)
        specs = entry.weight_specs(model, dtype)
        file_bytes, notes = check_tensors(source.name, specs, checkpoint.tensors, entry.known_extras)
        ground = _Ground(config, entry, model, dtype, max_model_len, capacity, file_bytes, notes)
        instruction_set = choose_instruction_set(config, device)
        can_stay, choice = can_stay_stored(config, entry, checkpoint, device, instruction_set), ""
        cache, plan = ground.plan(keep_stored(specs, checkpoint.tensors) if can_stay else specs)
        if can_stay and prefers_expanded(config, instruction_set):
            cache, plan, choice = ground.expand_within_memory(specs, cache, plan)
    except BaseException:
        checkpoint.close()
        raise
    grown = expansion_note([item.spec for item in plan.placements], checkpoint, dtype)
    said = tuple(filter(None, (note, choice, grown)))
    return Prepared(config, source, entry, model, checkpoint, dtype, max_model_len, cache, plan, instruction_set, said)


def plan_document(config: EngineConfig, assumed: AssumedRoom | None = None) -> dict[str, object]:
    """Give the plan of a model as `vllm_offload_plan` returns it. Arguments and errors are those of `prepare`."""
    prepared = prepare(config, assumed)
    prepared.checkpoint.close()
    return prepared.plan.to_document()


def configuration_document(offload: OffloadConfig) -> dict[str, object]:
    """Give what can be said of a configuration without a model, under the keys of a plan."""
    announce(offload)
    warnings = [*offload.warnings, *([offload.disabled_reason] if offload.disabled_reason else [])]
    unknown = ("weights", "planned", "measured", "bus_bytes_per_token", "bus", "capacity")
    fit = fit_fields(offload, None) if not offload.is_fit_automatic else dict.fromkeys(fit_fields(offload, None))
    asked = offload.uva_max_bytes if offload.resolved_backend == "uva" and offload.is_offloading_enabled else None
    return {
        "schema": SCHEMA,
        "architecture": None,
        **configuration_fields(offload),
        **({"enabled": None} if offload.is_fit_automatic else {}),
        "asked": {"host_bytes": asked, "overshoot_bytes": 0},
        **dict.fromkeys(unknown),
        "fit": {**fit, "auto": offload.is_fit_automatic},
        **{name: [] for name in ("by_layer", "by_kind", "not_selected", "placements")},
        "unmatched": [],
        "warnings": warnings,
    }


def resolve_device(device: str) -> tuple[str, str]:
    """Choose the device to compute on. A named device that is absent is an error, never replaced by another.

    device: `auto`, `cpu` or `cuda`. Returns `cpu` or `cuda`, and why `auto` became the CPU, if it did. Raises
    ModelLoadError.
    """
    if device == "cpu":
        return "cpu", ""
    found = probe()
    if device == "auto" and found.is_absent:
        return "cpu", f"no CUDA device ({found.text or 'none is visible'}): computing on the CPU"
    if found.error or not found.device_count:
        raise ModelLoadError(
            f"device {device}: CUDA was asked for and is not usable: {found.text or 'no device'}; use device cpu"
        )
    return "cuda", ""


def _max_model_len(config: EngineConfig, model: ModelConfig) -> int:
    wanted = config.max_model_len
    if wanted is not None and wanted > model.max_position_embeddings:
        raise InvalidArgument(
            f"max_model_len ({wanted}) must be at most the model's own max_position_embeddings "
            f"({model.max_position_embeddings})"
        )
    return wanted or model.max_position_embeddings


def _dtype(config: EngineConfig, checkpoint: Checkpoint) -> str:
    if config.dtype != "auto":
        return config.dtype
    if checkpoint.is_quantised:
        return "bfloat16"
    stored = checkpoint.stored_dtype
    if stored is None or stored not in DTYPE_BYTES:
        raise ModelLoadError(
            f"the checkpoint's tensors are stored as {stored}; name the dtype to load them as, one of "
            f"{', '.join(DTYPE_BYTES)}"
        )
    return stored


def _cache_blocks(config: EngineConfig, bytes_per_token: int, max_model_len: int, spare_bytes: int) -> int:
    """Size the key-value cache; every size must hold at least one sequence of `max_model_len`.

    spare_bytes: what is left for a cache that nobody sized, of which it takes one sequence for each of `max_num_seqs`.
    """
    per_block = bytes_per_token * config.block_size
    one_sequence = -(-max_model_len // config.block_size)
    if config.num_blocks is not None:
        blocks, asked = config.num_blocks, f"num_blocks ({config.num_blocks})"
    elif config.kv_cache_memory_bytes:
        blocks, asked = (
            config.kv_cache_memory_bytes // per_block,
            f"kv_cache_memory_bytes ({config.kv_cache_memory_bytes})",
        )
    else:
        wish = min(one_sequence * config.max_num_seqs, spare_bytes // per_block)
        return max(one_sequence, wish)
    if blocks < one_sequence:
        raise DoesNotFit(
            f"{asked} holds {blocks * config.block_size} tokens and one sequence of max_model_len ({max_model_len}) "
            "needs "
            f"{one_sequence} blocks of {config.block_size} tokens, {one_sequence * per_block} bytes; raise it, or "
            "lower "
            "max_model_len"
        )
    return blocks


def _demand(
    config: EngineConfig,
    model: ModelConfig,
    dtype: str,
    max_model_len: int,
    capacity: Capacity,
    weight_bytes: int,
    file_bytes: int,
) -> tuple[CacheSizes, Demand]:
    """Size the cache and the batch, and estimate the activations of the largest step."""
    element = DTYPE_BYTES[dtype]
    heads = model.num_key_value_heads * model.head_dim
    bytes_per_token = 2 * model.num_hidden_layers * heads * element
    batched = config.max_num_batched_tokens or (BATCHED_TOKENS_MOE if model.num_experts else BATCHED_TOKENS)
    wide = max(model.intermediate_size, model.moe_intermediate_size * model.num_experts_per_tok)
    attention = model.num_attention_heads * model.head_dim + 2 * heads
    rows = min(batched, max_model_len * config.max_num_seqs)
    workspace = rows * element * (4 * model.hidden_size + 2 * attention + 3 * wide) + 2 * 4 * model.vocab_size * min(
        config.max_num_seqs, rows
    )
    pool = capacity.host_bytes if capacity.is_one_pool else capacity.free_device_bytes or capacity.device_bytes or 0
    spare = int(pool * config.gpu_memory_utilization) - weight_bytes - workspace
    if capacity.device == "cpu":
        spare = min(spare, DEFAULT_CACHE_BYTES)
    blocks = _cache_blocks(config, bytes_per_token, max_model_len, max(spare, 0))
    sizes = CacheSizes(
        blocks, config.block_size, config.max_num_seqs, batched, config.scheduling_policy, config.enable_prefix_caching
    )
    return sizes, Demand(blocks * config.block_size * bytes_per_token, bytes_per_token, workspace, file_bytes)


def _capacity(config: EngineConfig, device: str, assumed: AssumedRoom) -> Capacity:
    """Ask the device and the host, or take what the document or the caller says of them."""
    room = host_room() if assumed.host_bytes is None else Room(assumed.host_bytes, "--host-bytes")
    budget, fraction = config.offload.weight_budget_bytes, config.gpu_memory_utilization
    if assumed.device_bytes is not None:
        if budget is not None:
            raise InvalidArgument(
                "--device-bytes and vllm_cpp.device_fit.weight_budget_bytes both say what the device has; give one"
            )
        return Capacity(
            assumed.device_bytes,
            room.nbytes,
            "the assumed device",
            "--device-bytes",
            room.source,
            is_one_pool=False,
            usable_fraction=fraction,
            device="cuda",
            host_access=_ORDINARY_ACCESS,
        )
    if device == "cuda":
        return _cuda_capacity(config, room)
    if budget is not None:
        return Capacity(budget, room.nbytes, "cpu", "weight_budget_bytes", room.source, is_one_pool=True)
    return Capacity(
        room.nbytes, room.nbytes, "cpu", room.source, room.source, is_one_pool=True, usable_fraction=fraction
    )


def _cuda_capacity(config: EngineConfig, room: Room) -> Capacity:
    """Ask the CUDA device. Of one pool, the host says what is free: the runtime counts the system's caches as used."""
    facts = device_facts()
    access = HostAccess(facts.attributes, read_environment())
    is_one_pool = facts.attributes.is_integrated
    device = room if is_one_pool else Room(facts.free_bytes, "cudaMemGetInfo")
    budget = config.offload.weight_budget_bytes
    return Capacity(
        device.nbytes if budget is None else budget,
        room.nbytes,
        facts.name,
        device.source if budget is None else "weight_budget_bytes",
        room.source,
        is_one_pool,
        config.gpu_memory_utilization if budget is None else 1.0,
        access.why_not_in_place(0) or "",
        "cuda",
        device.nbytes,
        access,
    )
