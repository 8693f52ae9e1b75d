"""The engine: a loaded model that answers many requests at once, from any thread."""

import atexit
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count

from pyvllm.config.engine import EngineConfig
from pyvllm.config.model import ModelConfig
from pyvllm.core.kv_cache_manager import KVCacheManager
from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduler
from pyvllm.engine.devices import MakeMemory, release_caches
from pyvllm.engine.engine_core import EngineCore, EngineRequest, Listener
from pyvllm.engine.exit_guard import renew_exit_guard
from pyvllm.engine.loading import LoadedModel, load_model
from pyvllm.engine.model_tokenizer import take_tokenizer
from pyvllm.engine.output_processor import OutputProcessor
from pyvllm.engine.pooling import is_embedding_model
from pyvllm.engine.preview import Prepared, prepare
from pyvllm.engine.progress import Progress
from pyvllm.engine.request_sampling import SamplerFactory
from pyvllm.errors import InvalidArgument
from pyvllm.offloader.guard import explain_failure
from pyvllm.offloader.prefetch import LayerStream
from pyvllm.offloader.summary import InPlaceReads
from pyvllm.sample.adjust import LogitsProcessor
from pyvllm.sampling_params import SamplingParams
from pyvllm.tokenizer.tokenizer import Tokenizer

_EMBEDS = "this model gives embeddings and no text: use vllm_embed, LLM.embed or /v1/embeddings"
_GENERATES = (
    "this model generates text and gives no embeddings: use vllm_complete or vllm_chat, LLM.generate or LLM.chat, "
    "/v1/completions or /v1/chat/completions; an embedding model has a modules.json that asks for last-token pooling, "
    "or an architecture such as Qwen3Model"
)

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


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the engine is doing, and what it has done since it was loaded."""

    num_running: int
    """Requests in the batch."""
    num_waiting: int
    """Requests that wait for the batch."""
    cache_usage: float
    """Part of the key-value cache that requests hold."""
    num_preemptions: int
    num_steps: int
    bus_bytes: int
    """Bytes of offloaded weights that steps read: copied ahead, or in place as `InPlaceReads` counts them."""
    prefetch_waits: int
    """Times that compute came to a streamed layer."""
    prefetch_wait_s: float
    """Seconds that the engine thread waited for streamed layers."""


class LLMEngine:
    """A loaded model with one thread that computes. Any thread may call; `close` waits for what runs."""

    def __init__(self, model: LoadedModel, is_embedding: bool = False) -> None:
        """Start the engine thread over a loaded model; use `load`."""
        self._model = model
        self.is_embedding = is_embedding
        """Whether the model gives embeddings; it gives no text then."""
        self.prepared = prepared = model.prepared
        """What the load was decided from, with its plan."""
        self.tokenizer = model.tokenizer
        sizes = prepared.cache
        manager = KVCacheManager(sizes.num_blocks, sizes.block_size, sizes.enable_prefix_caching)
        scheduler = Scheduler(manager, sizes.max_num_seqs, sizes.max_num_batched_tokens, sizes.scheduling_policy)
        explain, reads = partial(explain_failure, prepared.plan), InPlaceReads(prepared.plan.placements)
        self._core = EngineCore(scheduler, model.runner, prepared.max_model_len, explain, reads.of_step)
        self._samplers = SamplerFactory(model.tokenizer)
        self._ids = count()
        self._idle = threading.Condition()
        self._callers: list[int] = []
        self._is_closed = False
        self._news = threading.Condition()
        self._inbox: list[EngineRequest] = []
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="vllm-engine", daemon=True)
        self._thread.start()
        # A thread inside torch, or the last one to hold a tensor, when Python takes itself apart would end the process
        # with an abort.
        atexit.register(self._stop)

    @classmethod
    def load(
        cls, config: EngineConfig, progress: Progress | None = None, make_memory: MakeMemory | None = None
    ) -> "LLMEngine":
        """Plan a load, carry it out, recount, and start.

        progress: hears bytes done, bytes planned and a weight's name; false cancels. make_memory: builds the memory
        from the device's limit in bytes; that of `config.device` by default. Raises InvalidArgument, ModelLoadError or
        Cancelled; nothing stays then.
        """
        return cls.load_prepared(*take_tokenizer(prepare(config)), progress, make_memory)

    @classmethod
    def load_prepared(
        cls,
        prepared: Prepared,
        tokenizer: Tokenizer,
        progress: Progress | None = None,
        make_memory: MakeMemory | None = None,
    ) -> "LLMEngine":
        """Carry a prepared load out, recount, and start. Other arguments and errors are those of `load`."""
        try:
            is_embedding = is_embedding_model(prepared.source)
        except BaseException:
            prepared.checkpoint.close()
            raise
        return cls(load_model(prepared, tokenizer, progress, make_memory), is_embedding)

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
        with self.call():
            return self._model.offload_report()

    def stats(self) -> EngineStats:
        """Say what the engine is doing. It is never held up, so numbers may be of two neighbouring steps.

        Raises InvalidArgument once closed.
        """
        with self.call():
            scheduler, scope = self._core.scheduler, self._model.runner.scope
            stream = scope if isinstance(scope, LayerStream) else None
            return EngineStats(
                num_running=len(scheduler.running),
                num_waiting=len(scheduler.waiting) + len(self._inbox),
                cache_usage=scheduler.cache.usage,
                num_preemptions=scheduler.num_preemptions,
                num_steps=self._core.num_steps,
                bus_bytes=self._core.in_place_bytes + (stream.copied_bytes if stream else 0),
                prefetch_waits=stream.num_waits if stream else 0,
                prefetch_wait_s=stream.wait_s if stream else 0.0,
            )

    def submit(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        listener: Listener | None = None,
        *,
        priority: int = 0,
        needs_hidden: bool = False,
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> EngineRequest:
        """Queue a prompt and return at once.

        prompt: text or token ids. listener: hears new text on the engine thread. priority: smaller is served earlier
        under the `priority` policy. needs_hidden: compute the prompt's last hidden state instead of an answer.
        logits_processors: change the logits before each token is chosen, on the engine thread. Raises InvalidArgument
        for a prompt that is empty, too long or out of the vocabulary, for a token of the parameters that is, for a
        grammar that cannot be compiled, and for what the model does not do: an embedding model gives no text, every
        other no hidden state.
        """
        self.check_kind(needs_hidden)
        params.check_vocabulary(self.model_config.vocab_size)
        prompt_token_ids = self._prompt_token_ids(prompt)
        request = Request(next(self._ids), prompt_token_ids, params, priority, needs_hidden)
        output = OutputProcessor(self.tokenizer, params, self.tokenizer.eos_token_ids, prompt_token_ids)
        sampler = self._samplers.make(params, prompt_token_ids, request.output_token_ids, logits_processors)
        item = EngineRequest(request, output, sampler, listener)
        with self._news:
            if self._is_stopping:
                raise InvalidArgument("the engine is closed")
            self._inbox.append(item)
            self._news.notify()
        return item

    def check_kind(self, needs_hidden: bool) -> None:
        """Raise InvalidArgument, naming what to call instead, where the model does not do what is asked of it."""
        if needs_hidden != self.is_embedding:
            raise InvalidArgument(_EMBEDS if self.is_embedding else _GENERATES)

    def cancel(self, item: EngineRequest) -> None:
        """Ask for the end of a request; it is done, with finish reason `abort`, after the step that runs."""
        with self._news:
            item.is_cancelled = True
            self._news.notify()

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        on_text: OnText | None = None,
        logits_processors: Sequence[LogitsProcessor] = (),
    ) -> Completion:
        """Answer one prompt and wait for it.

        on_text: hears new text as it is certain, and last with finished true, on the calling thread; false stops early,
        and it is not called again then. Raises InvalidArgument for a prompt that is empty, too long or out of the
        vocabulary, and GenerationError when the computation fails.
        """
        with self.call():
            if on_text is None:
                item = self.submit(prompt, params, logits_processors=logits_processors)
                item.wait()
                return _completion(item)
            texts: queue.SimpleQueue[tuple[str, bool, int]] = queue.SimpleQueue()
            item = self.submit(prompt, params, lambda *news: texts.put(news), logits_processors=logits_processors)
            return self._tell(item, texts, on_text)

    def close(self) -> None:
        """Wait for the running calls, end what was only submitted, and give everything back.

        A second call does nothing. Raises InvalidArgument from inside a callback of this engine.
        """
        with self._idle:
            if threading.get_ident() in (*self._callers, self._thread.ident):
                raise InvalidArgument("the engine cannot be closed from inside one of its own callbacks")
            if self._is_closed:
                return
            self._is_closed = True
            self._idle.wait_for(lambda: not self._callers)
        self._stop()
        atexit.unregister(self._stop)
        memory = self._model.memory
        del self._model, self._core
        release_caches(memory)

    def _stop(self) -> None:
        """End the engine thread after the step that runs, and with it every request; then the memory's own threads."""
        with self._news:
            self._is_stopping = True
            self._news.notify()
        self._thread.join()
        self._model.memory.close()

    def _tell(
        self, item: EngineRequest, texts: "queue.SimpleQueue[tuple[str, bool, int]]", on_text: OnText
    ) -> Completion:
        shown = ""
        while True:
            text, finished, num_tokens = texts.get()
            if item.error is not None:
                raise item.error
            shown += text
            try:
                goes_on = on_text(text, finished)
            except BaseException:
                self.cancel(item)
                raise
            if finished:
                return _completion(item)
            if not goes_on:
                self.cancel(item)
                item.wait()
                request = item.request
                return Completion(shown, request.output_token_ids[:num_tokens], "abort", request.prompt_token_ids)

    @contextmanager
    def call(self) -> Iterator[None]:
        """Count a call in, so that `close` waits for it.

        Raises InvalidArgument once closed, and on the engine's own thread, which would wait for itself.
        """
        if threading.get_ident() == self._thread.ident:
            raise InvalidArgument("a logits processor cannot call the engine that it runs for")
        with self._idle:
            if self._is_closed:
                raise InvalidArgument("the engine is closed")
            self._callers.append(threading.get_ident())
        try:
            yield
        finally:
            with self._idle:
                self._callers.remove(threading.get_ident())
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

    def _run(self) -> None:
        """The engine thread: take in what was submitted, step while there is something to do."""
        core = self._core
        while True:
            renew_exit_guard()
            with self._news:
                self._news.wait_for(lambda: self._inbox or core.has_requests or self._is_stopping)
                arrived, self._inbox = self._inbox, []
                is_stopping = self._is_stopping
            for item in arrived:
                core.add(item)
            if is_stopping:
                core.abort_all()
                return
            core.step()


def _completion(item: EngineRequest) -> Completion:
    if item.error is not None:
        raise item.error
    request = item.request
    return Completion(
        item.output.text, request.output_token_ids, item.finish_reason or "abort", request.prompt_token_ids
    )
