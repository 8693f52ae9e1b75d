"""One step after the other: schedule, compute, choose tokens, hand out text. Runs on the engine thread alone."""

import threading
from collections.abc import Callable, Sequence

import torch

from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled, Scheduler
from pyvllm.engine.output_processor import OutputProcessor
from pyvllm.errors import GenerationError, VllmError
from pyvllm.sample.batch import RequestSampler, choose_tokens
from pyvllm.sample.logprobs import TokenLogprobs, token_logprobs
from pyvllm.worker.model_runner import ModelRunner

#: Hears new text, whether it is the last, and how many tokens there are now. Called on the engine thread: be quick.
Listener = Callable[[str, bool, int], None]


class EngineRequest:
    """A submitted request: what its caller may ask, and what the engine thread keeps for it."""

    def __init__(
        self, request: Request, output: OutputProcessor, sampler: RequestSampler, listener: Listener | None
    ) -> None:
        """Take the parts; the engine makes it."""
        self.request = request
        self.output = output
        self.sampler = sampler
        self.listener = listener
        self.is_cancelled = False
        self.finish_reason: str | None = None
        """`stop`, `length` or `abort` once done; None before, and after an error."""
        self.error: VllmError | None = None
        self.logprobs: list[TokenLogprobs] = []
        """One for each token of the answer, when the request asked for them."""
        self.hidden: torch.Tensor | None = None
        """Last hidden state [E], when the request asked for it."""
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self._done.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the request is done; false when the time ran out first."""
        return self._done.wait(timeout_s)

    def finish(self, reason: str | None, text: str = "", error: VllmError | None = None) -> None:
        """End the request, once: tell the listener the last text and wake who waits."""
        if self.is_done:
            return
        self.finish_reason, self.error = reason, error
        self.tell(text, True)
        self._done.set()

    def tell(self, text: str, finished: bool) -> None:
        """Pass text on."""
        if self.listener is not None and (text or finished):
            self.listener(text, finished, len(self.request.output_token_ids))


class EngineCore:
    """The scheduler, the runner, and the requests between them."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        max_model_len: int,
        explain: Callable[[Exception], str] = str,
        reads_in_place: Callable[[int], int] = lambda num_tokens: 0,
    ) -> None:
        """Start without requests.

        explain: gives the text of a computation's failure. reads_in_place: bytes of offloaded weights that a step of so
        many tokens reads where they are.
        """
        self.scheduler = scheduler
        self.runner = runner
        self.num_steps = 0
        """Steps that were computed."""
        self.in_place_bytes = 0
        """Bytes of offloaded weights that those steps read where they are."""
        self._reads_in_place = reads_in_place
        self._max_model_len = max_model_len
        self._explain = explain
        self._requests: dict[int, EngineRequest] = {}

    @property
    def has_requests(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests)

    def add(self, item: EngineRequest) -> None:
        """Queue a request."""
        self._requests[item.request.request_id] = item
        self.scheduler.add(item.request)

    def step(self) -> None:
        """Drop what was cancelled, then compute one step and hand out its tokens.

        A failure of the computation ends the requests of that step with a GenerationError and leaves the others.
        """
        for item in [item for item in self._requests.values() if item.is_cancelled]:
            self._end(item, "abort", item.output.flush())
        step = self.scheduler.schedule()
        if not step:
            return
        ending = [self._requests[part.request.request_id] for part in step if part.is_last_chunk]
        try:
            hidden = self.runner.execute(step)
            self.num_steps += 1
            self.in_place_bytes += self._reads_in_place(sum(part.num_scheduled_tokens for part in step))
            self.scheduler.commit(step)
            self._deliver(ending, hidden)
        except Exception as error:  # whatever a model raises must reach its requests' callers, not end this thread
            self._fail(step, error)

    def abort_all(self) -> None:
        """End every request."""
        for item in list(self._requests.values()):
            self._end(item, "abort", item.output.flush())

    def _deliver(self, ending: Sequence[EngineRequest], hidden: torch.Tensor) -> None:
        if not ending:
            return
        choosing = [row for row, item in enumerate(ending) if not item.request.needs_hidden]
        for row, item in enumerate(ending):
            if item.request.needs_hidden:
                item.hidden = hidden[row]
                self._end(item, "stop")
        if not choosing:
            return
        rows = hidden if len(choosing) == len(ending) else hidden[choosing]
        chosen = [ending[row] for row in choosing]
        logits = self.runner.compute_logits(rows)
        tokens = choose_tokens(logits, self.runner.highest(logits), [item.sampler for item in chosen])
        for row, (item, token) in enumerate(zip(chosen, tokens, strict=True)):
            if isinstance(token, GenerationError):
                self._end(item, None, error=token)
                continue
            num_top = item.request.params.logprobs
            if num_top is not None:
                item.logprobs.append(token_logprobs(logits[row], token, num_top))
            self._take(item, token)

    def _take(self, item: EngineRequest, token_id: int) -> None:
        item.request.output_token_ids.append(token_id)
        text = item.output.push(token_id)
        reason = item.output.finish_reason
        if reason is None and item.sampler.is_complete:
            reason, text = "stop", text + item.output.flush()
        if reason is None and item.request.num_tokens >= self._max_model_len:
            reason, text = "length", text + item.output.flush()
        if reason is None:
            item.tell(text, False)
        else:
            self._end(item, reason, text)

    def _end(self, item: EngineRequest, reason: str | None, text: str = "", error: VllmError | None = None) -> None:
        self.scheduler.finish(item.request)
        del self._requests[item.request.request_id]
        item.finish(reason, text, error)

    def _fail(self, step: Sequence[Scheduled], error: Exception) -> None:
        for part in step:
            item = self._requests.get(part.request.request_id)
            if item is not None:
                count = len(part.request.output_token_ids)
                text = f"generation failed after {count} tokens: {self._explain(error)}"
                self._end(item, None, error=GenerationError(text))
