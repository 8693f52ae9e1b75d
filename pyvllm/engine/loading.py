"""Carries a prepared load out: memory, weights, model, tokenizer, cache, and the recount that ends it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from pyvllm import logger
from pyvllm.engine.devices import MakeMemory, make_memory_of, measure_workspace, release_caches
from pyvllm.engine.preview import Prepared
from pyvllm.engine.progress import Progress, ProgressLine
from pyvllm.errors import DoesNotFit
from pyvllm.layers.kernels import load_kernels
from pyvllm.memory.base import Memory
from pyvllm.memory.cpu import release_free_memory
from pyvllm.model_loader.loader import Weights, live_parameters
from pyvllm.offloader.base import Place
from pyvllm.offloader.guard import check_recount, check_taken, explain_failure, is_out_of_memory, recount
from pyvllm.offloader.plan import Plan
from pyvllm.tokenizer.tokenizer import Tokenizer
from pyvllm.worker.kv_cache import KVCache
from pyvllm.worker.model_runner import ModelRunner


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in its planned places, ready to compute."""

    prepared: Prepared
    tokenizer: Tokenizer
    memory: Memory
    weights: Weights
    runner: ModelRunner
    workspace: Mapping[str, int]
    """What a step of the largest size was measured to take, where the device can say so."""

    def offload_report(self) -> dict[str, object]:
        """Recount where every weight is and give the report document: asked, planned, measured.

        Raises LoaderDefect when a weight is not where the plan put it.
        """
        plan = self.prepared.plan
        places, measured = recount(
            plan.architecture,
            live_parameters(self.runner.model.named_parameters(remove_duplicate=False)),
            self.weights.live_sources(),
            self.weights.live_buffers(),
            self.memory.regions(),
        )
        check_recount(plan, places, measured)
        measured |= {**self.memory.measures(), **self.workspace}
        return plan.to_document(measured, considered=len(self.weights.taken))


def load_model(
    prepared: Prepared, tokenizer: Tokenizer, progress: Progress | None, make_memory: MakeMemory | None
) -> LoadedModel:
    """Carry a prepared load out, and recount.

    make_memory: builds the memory; the device's own by default. Raises InvalidArgument, ModelLoadError or Cancelled;
    nothing stays allocated or open then.
    """
    start = time.monotonic()
    config = prepared.config
    try:
        memory = (make_memory or make_memory_of(prepared.plan.capacity.device))(config.offload.weight_budget_bytes)
    except BaseException:
        prepared.checkpoint.close()
        raise
    try:
        torch.set_num_threads(config.num_threads)
        for text in prepared.notes:
            logger.info(text)
        if prepared.plan.fit_reason is not None:
            same = prepared.plan.offload.to_short_json()
            logger.info(f"device_fit: {prepared.plan.fit_reason}; the same plan: offload_config {same}")
        for text in prepared.plan.warnings:
            # The configuration's own warning was printed when it was read.
            if text not in config.offload.warnings:
                logger.warning(text)
        model = _build(prepared, tokenizer, memory, ProgressLine(progress))
        model.offload_report()
        # Reading freed its scratch; what computes next asks for other sizes.
        release_free_memory()
    except BaseException as error:
        memory.close()
        release_caches(memory)
        if is_out_of_memory(error):
            raise DoesNotFit(explain_failure(prepared.plan, error)) from error
        raise
    finally:
        prepared.checkpoint.close()
    logger.info(_loaded_line(prepared.plan, time.monotonic() - start))
    return model


def _build(prepared: Prepared, tokenizer: Tokenizer, memory: Memory, progress: Progress) -> LoadedModel:
    with torch.inference_mode():
        num_threads = prepared.config.num_threads
        kernels = load_kernels(num_threads, prepared.instruction_set) if prepared.instruction_set else None
        if kernels is not None and prepared.entry.computes_stored:
            # What is left to torch is small, and its idle threads would spin on the cores of the kernels' threads.
            torch.set_num_threads(1)
        weights = Weights(prepared.plan, prepared.checkpoint, memory, progress, num_threads, kernels)
        try:
            runner = _runner(prepared, memory, weights)
            workspace = measure_workspace(memory, runner, prepared.cache)
        except BaseException:
            weights.close()
            raise
    return LoadedModel(prepared, tokenizer, memory, weights, runner, workspace)


def _runner(prepared: Prepared, memory: Memory, weights: Weights) -> ModelRunner:
    model = prepared.entry.model_class()(prepared.model_config, weights)
    check_taken(prepared.plan, weights.taken)
    sizes, dtype = prepared.cache, getattr(torch, prepared.dtype)
    cache = KVCache(prepared.model_config, sizes.num_blocks, sizes.block_size, dtype, memory.torch_device)
    return ModelRunner(model, weights.layer_scope(), cache, memory.torch_device, weights.kernels)


def _loaded_line(plan: Plan, seconds: float) -> str:
    parts = [f"{place.value} {plan.bytes_at(place)}" for place in Place if plan.bytes_at(place)]
    parts += [f"buffers {plan.buffer_bytes}"] if plan.buffer_bytes else []
    asked = "" if plan.asked_host_bytes is None else f" (asked {plan.asked_host_bytes})"
    backend = plan.offload.resolved_backend if plan.offload.is_offloading_enabled else "off"
    return (
        f"loaded {plan.architecture} on {plan.capacity.device_name} in {seconds:.2f} s: {len(plan.placements)} "
        "weights, "
        f"bytes {', '.join(parts)}; offload {backend}{asked}; files {plan.demand.file_bytes}, resident "
        f"{plan.weight_bytes}"
    )
