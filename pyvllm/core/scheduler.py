"""Decides which requests, and how many tokens of each, the next step computes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyvllm.core.kv_cache_manager import KVCacheManager
from pyvllm.core.request import Request, RequestStatus

#: Orders the waiting requests; smaller comes first.
_Key = Callable[[Request], tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A request's part of a step."""

    request: Request
    num_scheduled_tokens: int
    """Tokens from `num_computed_tokens` on."""

    @property
    def is_last_chunk(self) -> bool:
        """Whether the step ends with the request's newest token, so that the next one can be chosen."""
        return self.num_scheduled_tokens == self.request.num_uncomputed_tokens


class Scheduler:
    """Continuous batching: every step takes one token of each running request and fills up with prompt tokens.

    Source: Orca (Yu et al. 2022) for iteration-level batching, Sarathi (Agrawal et al. 2023) for chunked prefill,
    vLLM for preemption by recomputation.
    """

    def __init__(
        self, cache: KVCacheManager, max_num_seqs: int, max_num_batched_tokens: int, policy: str = "fcfs"
    ) -> None:
        """Start with nothing to do.

        max_num_seqs: requests in a step. max_num_batched_tokens: tokens in a step. policy: `fcfs`, `priority` (smaller
        numbers first, then the earlier request) or `lpm` (the longest cached prefix first).
        """
        self.cache = cache
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._policy = policy
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.num_preemptions = 0

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.status = RequestStatus.WAITING
        self.waiting.append(request)

    def finish(self, request: Request) -> None:
        """Drop a request in whatever state it is and take its blocks back."""
        if request.status is RequestStatus.FINISHED:
            return
        (self.running if request.status is RequestStatus.RUNNING else self.waiting).remove(request)
        request.status = RequestStatus.FINISHED
        self.cache.free(request)

    @property
    def has_requests(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self.running)

    def schedule(self) -> list[Scheduled]:
        """Choose the next step: running requests first, in the order in which they were admitted."""
        budget = self._max_num_batched_tokens
        preemptions = self.num_preemptions
        step: list[Scheduled] = []
        for request in list(self.running):
            if request.status is not RequestStatus.RUNNING or not budget:
                continue
            wanted = min(request.num_uncomputed_tokens, budget)
            if self._make_room(request, wanted):
                step.append(Scheduled(request, wanted))
                budget -= wanted
        # A request that was preempted for another one has no part in this step.
        step = [item for item in step if item.request.status is RequestStatus.RUNNING]
        # Nothing is admitted in a step that had to take blocks away.
        if self.num_preemptions == preemptions:
            self._admit(step, self._max_num_batched_tokens - sum(item.num_scheduled_tokens for item in step))
        return step

    def commit(self, step: Sequence[Scheduled]) -> None:
        """Count a step's tokens as computed."""
        for item in step:
            self.cache.commit(item.request, item.num_scheduled_tokens)

    def _make_room(self, request: Request, num_tokens: int) -> bool:
        """Get blocks for a running request, preempting the least important ones; false if it preempted itself."""
        while not self.cache.allocate_slots(request, num_tokens):
            victim = max(self.running, key=self._importance())
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self.cache.free(request)
        request.status = RequestStatus.WAITING
        request.num_preemptions += 1
        self.num_preemptions += 1
        self.waiting.append(request)

    def _admit(self, step: list[Scheduled], budget: int) -> None:
        for request in sorted(self.waiting, key=self._order()):
            if not budget or len(self.running) >= self._max_num_seqs:
                return
            self.cache.admit(request)
            wanted = min(request.num_uncomputed_tokens, budget)
            if not self.cache.allocate_slots(request, wanted):
                self.cache.free(request)
                return
            self.waiting.remove(request)
            request.status = RequestStatus.RUNNING
            self.running.append(request)
            step.append(Scheduled(request, wanted))
            budget -= wanted

    def _importance(self) -> _Key:
        """Order running requests: the largest is preempted first."""
        if self._policy == "priority":
            return lambda request: (request.priority, request.request_id)
        return lambda request: (request.request_id,)

    def _order(self) -> _Key:
        if self._policy == "priority":
            return self._importance()
        if self._policy == "lpm":
            return lambda request: (-self.cache.num_cached_tokens(request), request.request_id)
        return lambda request: (request.request_id,)
