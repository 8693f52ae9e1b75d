"""Loads tiny models through the whole path, with a memory that makes a wrong slot or an early read show."""

import threading
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.memory.cpu import CpuMemory
from pyvllm.model_loader.tensors import cpu_tensor_at
from pyvllm.sampling_params import SamplingParams

PROMPTS = ("The quick brown fox", "\x00\x7f zebra! 12345")
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


class PoisonedMemory(CpuMemory):
    """The CPU memory whose buffers hold NaN until their copy has landed, and whose copies are late.

    The poison goes in when a copy is asked for, so a slot that compute has not left, or has not waited for, shows.
    """

    def __init__(self, limit: int | None) -> None:
        super().__init__(cpu_tensor_at, limit)
        self.threads: set[int] = set()

    def allocate(self, pool, sizes):
        tensors = super().allocate(pool, sizes)
        for tensor in tensors.values():
            tensor.fill_(0xFF)
        return tensors

    def start_copy(self, copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> object:
        for destination, _ in copies:
            destination.fill_(0xFF)
        return super().start_copy(_Late(copies))


class _Late(tuple):
    """Copies that begin a moment after the reader thread has taken them."""

    def __iter__(self):
        time.sleep(0.0002)
        return super().__iter__()


@contextmanager
def loaded(model: Path, document: dict | None = None, dtype: str = "float32", **settings):
    """A loaded engine on the CPU device with poisoned memory; closed at the end."""
    offload = OffloadConfig.from_dict(document or {})
    config = EngineConfig(model=str(model), device="cpu", dtype=dtype, offload=offload, **{"threads": 1} | settings)
    engine = LLMEngine.load(config, make_memory=PoisonedMemory)
    try:
        yield engine
    finally:
        engine.close()


def greedy_ids(engine: LLMEngine) -> list[list[int]]:
    """The greedy tokens of every prompt."""
    return [engine.generate(prompt, GREEDY).token_ids for prompt in PROMPTS]


def run(model: Path, document: dict | None = None, dtype: str = "float32", **settings):
    """Greedy tokens and the report of one load."""
    with loaded(model, document, dtype, **settings) as engine:
        return greedy_ids(engine), engine.offload_report()


def logits_of(model: Path, document: dict | None, dtype: str) -> list[torch.Tensor]:
    """Logits of a prompt and of four more tokens, as the runner gives them."""
    with loaded(model, document, dtype) as engine:
        runner = engine._model.runner
        request = Request(0, list(range(3, 40)), GREEDY, block_ids=[0, 1])
        found = []
        for token_id in (7, 8, 9, 10, 11):
            step = [Scheduled(request, request.num_uncomputed_tokens)]
            found.append(runner.compute_logits(runner.execute(step)))
            request.num_computed_tokens = request.num_tokens
            request.output_token_ids.append(token_id)
        return found


def live_threads() -> list[str]:
    """Names of this process's Python threads."""
    return [thread.name for thread in threading.enumerate()]
