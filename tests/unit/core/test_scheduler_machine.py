"""The scheduler and the block pool under any order of events: no block in two tables, all free at the end."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pyvllm.core.kv_cache_manager import KVCacheManager
from pyvllm.core.request import Request, RequestStatus
from pyvllm.core.scheduler import Scheduler
from pyvllm.sampling_params import SamplingParams

BLOCK = 16
NUM_BLOCKS = 8
MAX_LEN = BLOCK * NUM_BLOCKS


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps and finishes requests at random; tokens are drawn from a tiny alphabet so that prefixes repeat."""

    @initialize(
        seqs=st.integers(1, 4),
        tokens=st.integers(1, 40),
        policy=st.sampled_from(["fcfs", "priority", "lpm"]),
        caching=st.booleans(),
    )
    def start(self, seqs, tokens, policy, caching):
        self.limits = seqs, tokens
        self.cache = KVCacheManager(NUM_BLOCKS, BLOCK, caching)
        self.scheduler = Scheduler(self.cache, seqs, tokens, policy)
        self.requests: list[Request] = []
        self.contents: dict[int, tuple[int, ...]] = {}

    @rule(length=st.integers(1, MAX_LEN - 1), token=st.integers(0, 1), priority=st.integers(0, 2))
    def add(self, length, token, priority):
        request = Request(len(self.requests), [token] * length, SamplingParams(), priority)
        self.requests.append(request)
        self.scheduler.add(request)

    @rule(token=st.integers(0, 1))
    def step(self, token):
        step = self.scheduler.schedule()
        seqs, tokens = self.limits
        assert len(step) <= seqs
        assert sum(item.num_scheduled_tokens for item in step) <= tokens
        assert bool(step) == any(r.status is not RequestStatus.FINISHED for r in self.requests)
        ending = [item.request for item in step if item.is_last_chunk]
        for item in step:
            self._compute(item)
        self.scheduler.commit(step)
        for request in ending:
            request.output_token_ids.append(token)
            if request.num_tokens >= MAX_LEN:
                self.scheduler.finish(request)

    @rule(data=st.data())
    def finish(self, data):
        alive = [r for r in self.requests if r.status is not RequestStatus.FINISHED]
        if alive:
            self.scheduler.finish(data.draw(st.sampled_from(alive)))

    def _compute(self, item):
        """Write the tokens into the blocks as a model would; what is shared must already hold the same tokens."""
        request, first = item.request, item.request.num_computed_tokens
        end = first + item.num_scheduled_tokens
        assert len(request.block_ids) * BLOCK >= end
        for position in range(end):
            block, offset = request.block_ids[position // BLOCK], position % BLOCK
            token = request.token_ids(position, position + 1)[0]
            if position < first:
                assert self.contents[block, offset] == (position, token)
            else:
                self.contents[block, offset] = (position, token)

    @invariant()
    def blocks_are_counted(self):
        users = Counter(block for r in getattr(self, "requests", []) for block in r.block_ids)
        for block in range(NUM_BLOCKS if users else 0):
            assert self.cache.block_pool.is_free(block) == (users[block] == 0)

    @invariant()
    def only_equal_full_prefixes_share_a_block(self):
        seen: dict[int, list[int]] = {}
        for request in getattr(self, "requests", []):
            for index, block in enumerate(request.block_ids):
                prefix = request.token_ids(0, (index + 1) * BLOCK)
                assert seen.setdefault(block, prefix) == prefix
                assert len(set(request.block_ids)) == len(request.block_ids)

    def teardown(self):
        for request in getattr(self, "requests", []):
            self.scheduler.finish(request)
        if hasattr(self, "cache"):
            assert self.cache.block_pool.num_free_blocks == NUM_BLOCKS
            assert not self.scheduler.has_requests


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase
