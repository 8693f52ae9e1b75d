"""The staging buffers of a CUDA plan: sized by the largest host weights, and part of what a budget must hold."""

import pytest

from pyvllm.config.model import Source, WeightSpec
from pyvllm.config.offload import OffloadConfig
from pyvllm.memory.pinning import Environment, HostAccess
from pyvllm.offloader.base import Place
from pyvllm.offloader.budget import smallest_cpu_offload_gb
from pyvllm.offloader.plan import Capacity, Demand, make_plan
from pyvllm.offloader.staging import MATRIX, VECTOR, staging_sizes
from tests.cuda.test_pinning import DISCRETE


def spec(name, shape, layer=0, **fields):
    return WeightSpec(name, shape, "float32", layer, (Source(name, shape),), **fields)


SPECS = [
    spec("model.layers.0.a.weight", (10, 10)),
    spec("model.layers.0.b.bias", (30,)),
    spec("model.layers.1.c.weight", (4, 50), 1),
    spec("model.layers.1.experts.w", (8, 10, 10), 1, num_experts=8, experts_per_token=2, kind="experts"),
    spec("model.embed_tokens.weight", (1000, 10), None, kind="embedding"),
    spec("lm_head.weight", (60, 10), None, kind="head"),
]
GIB = 1024**3


@pytest.mark.parametrize(
    ("count", "matrix", "vector"), [(0, 0, 0), (1, 400, 0), (2, 400, 120), (3, 800, 120), (5, 800, 120), (6, 2400, 120)]
)
def test_buffers_hold_the_largest_matrix_the_largest_vector_and_one_expert(count, matrix, vector):
    assert staging_sizes(SPECS[:count]) == {MATRIX: matrix, VECTOR: vector}


def test_a_tied_embedding_is_staged_because_it_is_a_head_too():
    tied = spec("model.embed_tokens.weight", (1000, 10), None, kind="embedding", aliases=("lm_head.weight",))
    assert staging_sizes([tied])[MATRIX] == tied.nbytes


def plan(gb, budget, *, is_cuda):
    access = HostAccess(DISCRETE, Environment()) if is_cuda else None
    capacity = Capacity(budget, 2**40, "x", "weight_budget_bytes", "MemAvailable", False, host_access=access)
    offload = OffloadConfig.from_dict({"uva": {"cpu_offload_gb": float(gb)}})
    return make_plan("X", SPECS, offload, Demand(0, 1, 0, 0), capacity)


def test_only_a_device_with_memory_of_its_own_has_them():
    assert plan(1, None, is_cuda=False).buffer_bytes == 0
    assert plan(1, None, is_cuda=True).buffer_bytes == 2400 + 120


@pytest.mark.parametrize("budget", range(2600, 48_000, 1400))
def test_the_smallest_budget_is_the_smallest_that_fits_with_its_buffers(budget):
    """Held against trying every number of weights."""
    moved, fitting = 0, None
    for count in range(len(SPECS) + 1):
        taken = plan(moved / GIB, budget, is_cuda=True) if moved else None
        held = taken.bytes_at(Place.DEVICE) + taken.buffer_bytes if taken else sum(one.nbytes for one in SPECS)
        if held <= budget:
            fitting = count
            break
        moved += SPECS[count].nbytes if count < len(SPECS) else 0
    found = smallest_cpu_offload_gb(SPECS, (), budget, has_staging=True)
    if fitting is None:
        assert found is None
    elif fitting == 0:
        assert found == "0"
    else:
        placed = plan(found, budget, is_cuda=True)
        assert len(placed.at(Place.HOST)) == fitting
