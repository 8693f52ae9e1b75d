"""Order, chunks, preemption and sharing, on plain numbers."""

import pytest

from pyvllm.core.block_pool import BlockPool
from pyvllm.core.kv_cache_manager import KVCacheManager
from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduler
from pyvllm.sampling_params import SamplingParams


def request(number: int, length: int, token: int = 0, priority: int = 0) -> Request:
    return Request(number, [token] * length, SamplingParams(), priority)


def scheduler(blocks=8, seqs=4, tokens=64, policy="fcfs", caching=False) -> Scheduler:
    return Scheduler(KVCacheManager(blocks, 16, caching), seqs, tokens, policy)


def run_step(made: Scheduler) -> list[tuple[int, int]]:
    step = made.schedule()
    ending = [item.request for item in step if item.is_last_chunk]
    made.commit(step)
    for item in ending:
        item.output_token_ids.append(1)
    return [(item.request.request_id, item.num_scheduled_tokens) for item in step]


def test_a_long_prompt_is_computed_in_chunks_and_others_decode_beside_it():
    made = scheduler(tokens=20)
    made.add(request(0, 5))
    assert run_step(made) == [(0, 5)]
    made.add(request(1, 50))
    assert [run_step(made) for _ in range(3)] == [[(0, 1), (1, 19)]] * 2 + [[(0, 1), (1, 12)]]


def test_priority_serves_smaller_numbers_first_and_preempts_the_largest():
    made = scheduler(blocks=4, policy="priority")
    made.add(request(0, 16, priority=5))
    made.add(request(1, 16, priority=1))
    assert [number for number, _ in run_step(made)] == [1, 0]
    made.add(request(2, 31, priority=0))
    assert [number for number, _ in run_step(made)] == [1, 0]
    for _ in range(20):
        run_step(made)
    assert made.num_preemptions > 0
    assert all(item.num_preemptions == 0 for item in made.running if item.priority == 1)


def test_lpm_serves_the_longest_cached_prefix_first():
    made = scheduler(seqs=1, policy="lpm", caching=True)
    first = request(0, 40, token=7)
    made.add(first)
    run_step(made)
    made.finish(first)
    made.add(request(1, 40, token=3))
    made.add(request(2, 40, token=7))
    assert run_step(made) == [(2, 40 - 32)]


def test_prefix_caching_leaves_at_least_one_token_to_compute():
    made = scheduler(caching=True)
    first = request(0, 32)
    made.add(first)
    run_step(made)
    made.finish(first)
    made.add(request(1, 32))
    assert run_step(made) == [(1, 16)]


def test_a_preempted_request_is_computed_again_from_its_prompt_and_answer():
    made = scheduler(blocks=2, seqs=2)
    made.add(request(0, 16))
    made.add(request(1, 15))
    assert run_step(made) == [(0, 16), (1, 15)]
    assert run_step(made) == [(0, 1)]
    assert [item.request_id for item in made.waiting] == [1]
    assert made.waiting[0].num_uncomputed_tokens == 16


def test_more_blocks_than_are_free_are_refused():
    with pytest.raises(ValueError, match="3 blocks were asked for and 2 are free"):
        BlockPool(2).allocate(3)
