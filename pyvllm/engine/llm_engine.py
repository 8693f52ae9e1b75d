"""The engine: loads a model as planned, and answers prompts in turn.

This is the seam where batching goes: whoever calls `generate` from many threads is served one after the other.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from pyvllm import logger
from pyvllm.config.engine import EngineConfig
from pyvllm.config.model import ModelConfig
from pyvllm.engine.output_processor import OutputProcessor
from pyvllm.engine.preview import Prepared, prepare
from pyvllm.engine.progress import Progress, ProgressLine
from pyvllm.errors import DoesNotFit, GenerationError, InvalidArgument, ModelLoadError
from pyvllm.memory.base import Memory
from pyvllm.memory.cpu import CpuMemory
from pyvllm.model_loader.loader import Weights, cpu_tensor_at, live_parameters
from pyvllm.offloader.base import Place
from pyvllm.offloader.guard import check_recount, check_taken, recount
from pyvllm.offloader.plan import Plan
from pyvllm.sample.sampler import Sampler
from pyvllm.sampling_params import SamplingParams
from pyvllm.tokenizer.tokenizer import Tokenizer, load_tokenizer, tokenizer_from_gguf
from pyvllm.worker.model_runner import ModelRunner
from pyvllm.worker.sequence_cache import SequenceCache

#: Hears new text and whether it is the last; false stops the generation.
OnText = Callable[[str, bool], bool]


@dataclass(frozen=True, slots=True)
class Completion:
    """What a prompt was answered with."""

    text: str
    token_ids: list[int]
    finish_reason: str
    """`stop`, `length` or `abort`."""
    prompt_token_ids: list[int]


class LLMEngine:
    """A loaded model. Any thread may call; `close` waits for what runs."""

    def __init__(
        self, prepared: Prepared, tokenizer: Tokenizer, memory: Memory, weights: Weights, runner: ModelRunner
    ) -> None:
        """Take the loaded parts; use `load`."""
        self.prepared = prepared
        self.tokenizer = tokenizer
        self._memory = memory
        self._weights = weights
        self._runner = runner
        self._turn = threading.Lock()
        self._idle = threading.Condition()
        self._callers: list[int] = []
        self._is_closed = False

    @classmethod
    def load(
        cls,
        config: EngineConfig,
        progress: Progress | None = None,
        make_memory: Callable[[int | None], Memory] = lambda limit: CpuMemory(cpu_tensor_at, limit),
    ) -> "LLMEngine":
        """Plan the load, carry it out, and recount.

        progress: hears bytes done, bytes planned and a weight's name; false cancels. make_memory: builds the memory
        from the device's limit in bytes. Raises InvalidArgument, ModelLoadError or Cancelled; nothing stays then.
        """
        start = time.monotonic()
        prepared = prepare(config)
        memory = make_memory(config.offload.weight_budget_bytes)
        try:
            torch.set_num_threads(config.threads or len(os.sched_getaffinity(0)))
            for text in prepared.plan.warnings:
                if text not in config.offload.warnings:
                    logger.warning(text)
            engine = cls._build(prepared, memory, ProgressLine(progress))
            engine.offload_report()
        except BaseException:
            memory.close()
            raise
        finally:
            prepared.checkpoint.close()
        logger.info(_loaded_line(prepared.plan, time.monotonic() - start))
        return engine

    @classmethod
    def _build(cls, prepared: Prepared, memory: Memory, progress: Progress) -> "LLMEngine":
        tokenizer = _tokenizer(prepared)
        with torch.inference_mode():
            weights = Weights(prepared.plan, prepared.checkpoint, memory, progress)
            model = prepared.entry.model_class()(prepared.model_config, weights)
            check_taken(prepared.plan, weights.taken)
            dtype = getattr(torch, prepared.dtype)
            try:
                cache = SequenceCache(prepared.model_config, prepared.max_model_len, dtype, memory.torch_device)
            except RuntimeError as error:
                raise DoesNotFit(
                    f"the key-value cache of {prepared.plan.demand.kv_cache_bytes} bytes could not be allocated: "
                    f"{error}; lower "
                    "max_model_len"
                ) from error
            runner = ModelRunner(model, weights.layer_scope(), cache, prepared.prefill_tokens, memory.torch_device)
        return cls(prepared, tokenizer, memory, weights, runner)

    @property
    def model_config(self) -> ModelConfig:
        """The model's configuration."""
        return self.prepared.model_config

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and answer together."""
        return self.prepared.max_model_len

    def offload_report(self) -> dict[str, object]:
        """Recount where every weight is and give the report document: asked, planned, measured.

        Raises LoaderDefect, a ModelLoadError, when a weight is not where the plan put it; InvalidArgument once closed.
        """
        with self._call():
            plan, weights = self.prepared.plan, self._weights
            places, measured = recount(
                plan.architecture,
                live_parameters(self._runner.model),
                weights.live_sources(),
                weights.live_buffers(),
                self._memory.regions(),
            )
            check_recount(plan, places, measured)
            return plan.to_document(measured, considered=len(weights.taken))

    def generate(
        self, prompt: str | Sequence[int], params: SamplingParams, on_text: OnText | None = None
    ) -> Completion:
        """Answer one prompt. Calls are served in turn; the calling thread computes.

        prompt: text or token ids. on_text: hears new text as it is certain, and last with finished true; false stops
        early, and is not called again then. Raises InvalidArgument for a prompt that is empty, too long or out of the
        vocabulary, and GenerationError when the computation fails.
        """
        with self._call():
            prompt_token_ids = self._prompt_token_ids(prompt)
            with self._turn:
                return self._answer(prompt_token_ids, params, on_text)

    def close(self) -> None:
        """Wait for the running calls and give everything back. A second call does nothing.

        Raises InvalidArgument from inside a callback of this engine.
        """
        with self._idle:
            if threading.get_ident() in self._callers:
                raise InvalidArgument("the engine cannot be closed from inside one of its own callbacks")
            if self._is_closed:
                return
            self._is_closed = True
            self._idle.wait_for(lambda: not self._callers)
        self._memory.close()
        del self._runner, self._weights

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Count a call in, so that `close` waits for it."""
        me = threading.get_ident()
        with self._idle:
            if self._is_closed:
                raise InvalidArgument("the engine is closed")
            if me in self._callers:
                raise InvalidArgument(
                    "the engine was called from inside one of its own callbacks; calls are served in turn"
                )
            self._callers.append(me)
        try:
            yield
        finally:
            with self._idle:
                self._callers.remove(me)
                self._idle.notify_all()

    def _prompt_token_ids(self, prompt: str | Sequence[int]) -> list[int]:
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            raise InvalidArgument("the prompt has no tokens")
        if len(ids) >= self.max_model_len:
            raise InvalidArgument(
                f"the prompt has {len(ids)} tokens and max_model_len is {self.max_model_len}: there is no room for "
                "an answer"
            )
        vocab = self.model_config.vocab_size
        for token_id in ids:
            if not 0 <= token_id < vocab:
                raise InvalidArgument(f"prompt token id {token_id} is outside the vocabulary of {vocab}")
        return ids

    def _answer(self, prompt_token_ids: list[int], params: SamplingParams, on_text: OnText | None) -> Completion:
        tell = on_text or (lambda text, finished: True)
        output = OutputProcessor(self.tokenizer, params, self.tokenizer.eos_token_ids)
        sampler = Sampler(params)
        room = self.max_model_len - len(prompt_token_ids)
        token_ids: list[int] = []
        try:
            logits = self._runner.begin(prompt_token_ids)
            while True:
                token_ids.append(sampler.sample(logits))
                text = output.push(token_ids[-1])
                if output.finish_reason or len(token_ids) == room:
                    break
                if text and not tell(text, False):
                    return Completion(output.text, token_ids, "abort", prompt_token_ids)
                logits = self._runner.extend(token_ids[-1])
        except (RuntimeError, MemoryError) as error:
            raise GenerationError(f"generation failed after {len(token_ids)} tokens: {error}") from error
        tell(text + output.flush(), True)
        return Completion(output.text, token_ids, output.finish_reason or "length", prompt_token_ids)


def _tokenizer(prepared: Prepared) -> Tokenizer:
    override = prepared.config.tokenizer_config_path
    metadata = prepared.source.gguf_metadata
    if metadata is not None:
        tokenizer = tokenizer_from_gguf(metadata, override)
    else:
        tokenizer = load_tokenizer(prepared.source.path, override)
    if tokenizer.num_ids > prepared.model_config.vocab_size:
        raise ModelLoadError(
            f"{prepared.source.name}: the tokenizer has {tokenizer.num_ids} ids and the model's vocab_size is "
            f"{prepared.model_config.vocab_size}"
        )
    return tokenizer


def _loaded_line(plan: Plan, seconds: float) -> str:
    parts = [f"{place.value} {plan.bytes_at(place)}" for place in Place if plan.bytes_at(place)]
    parts += [f"buffers {plan.buffer_bytes}"] if plan.buffer_bytes else []
    asked = "" if plan.asked_host_bytes is None else f" (asked {plan.asked_host_bytes})"
    backend = plan.offload.resolved_backend if plan.offload.is_offloading_enabled else "off"
    return (
        f"loaded {plan.architecture} on {plan.capacity.device_name} in {seconds:.2f} s: {len(plan.placements)} "
        "weights, bytes "
        f"{', '.join(parts)}; offload {backend}{asked}; files {plan.demand.file_bytes}, resident {plan.weight_bytes}"
    )
