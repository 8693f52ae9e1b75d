"""Engines on the imagined device: the real load and generate path, with a CUDA memory and two hand-ins."""

from contextlib import contextmanager
from functools import cache

import torch

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.memory.cuda_memory import CudaMemory
from pyvllm.memory.pinning import Environment
from pyvllm.sampling_params import SamplingParams

GIB = 1024**3
#: The second prompt is longer than a tile of rows.
PROMPTS = ("abc", "\x00\x7f zebra! 12345 and so on for a few words more")
SIZES = {"max_model_len": 128, "max_num_batched_tokens": 64, "max_num_seqs": 4}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)


def uva(budget_bytes: int, params=()) -> dict:
    return {"uva": {"cpu_offload_gb": budget_bytes / GIB, "cpu_offload_params": list(params)}}


def prefetch(group: int, num: int, step: int, params=()) -> dict:
    fields = {"offload_group_size": group, "offload_num_in_group": num, "offload_prefetch_step": step}
    return {"prefetch": {**fields, "offload_params": list(params)}}


@contextmanager
def loaded(
    device,
    model,
    document=None,
    *,
    environment=None,
    memory_class=CudaMemory,
    prepare_memory=None,
    progress=None,
    **settings,
):
    """A loaded engine on the imagined device; closed at the end."""

    def make_memory(limit):
        memory = memory_class(device.torch_side(), limit, environment or Environment())
        if prepare_memory is not None:
            prepare_memory(memory)
        return memory

    settings = {**SIZES, "device": "cuda", "dtype": "float32", "threads": 2, **settings}
    offload = OffloadConfig.from_dict(document or {})
    config = EngineConfig(model=str(model), offload=offload, **settings)
    engine = LLMEngine.load(config, progress, make_memory)
    try:
        yield engine
    finally:
        engine.close()


def tokens_of(engine) -> list[list[int]]:
    return [engine.generate(prompt, GREEDY).token_ids for prompt in PROMPTS]


def run(device, model, document=None, **settings) -> tuple[list[list[int]], dict]:
    """Greedy tokens and the report of one load."""
    with loaded(device, model, document, **settings) as engine:
        return tokens_of(engine), engine.offload_report()


@cache
def on_cpu(model) -> list[list[int]]:
    """Greedy tokens of the CPU device: the same numbers by another path."""
    engine = LLMEngine.load(EngineConfig(model=str(model), device="cpu", dtype="float32", threads=1, **SIZES))
    try:
        return tokens_of(engine)
    finally:
        engine.close()


def logits_of(device, model, document, dtype) -> list[torch.Tensor]:
    """Logits of a long and a short step, as the runner gives them."""
    from pyvllm.core.request import Request
    from pyvllm.core.scheduler import Scheduled

    with loaded(device, model, document, dtype=dtype) as engine:
        runner = engine._model.runner
        request = Request(0, list(range(3, 43)), GREEDY)
        request.block_ids = list(range(8))
        found = [runner.compute_logits(runner.execute([Scheduled(request, 40)]))]
        request.num_computed_tokens = 40
        for token in (7, 8, 9):
            request.output_token_ids.append(token)
            found.append(runner.compute_logits(runner.execute([Scheduled(request, 1)])))
            request.num_computed_tokens += 1
        return found
