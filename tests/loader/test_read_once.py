"""A load reads each weight once, and nothing before the plan is allowed; the kernel's own count is the witness."""

import os
from pathlib import Path

import pytest

from pyvllm.config.engine import EngineConfig
from pyvllm.engine.preview import plan_document
from tests.offload.engines import loaded
from tests.tiny_models import write_tiny

#: Configuration, tokenizer, headers and what the kernel says of this machine's memory.
BESIDE_WEIGHTS = 200_000
pytestmark = pytest.mark.skipif(
    not os.access("/proc/self/io", os.R_OK), reason="this kernel counts no bytes in /proc/self/io"
)


def read_bytes() -> int:
    """Bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().partition("rchar:")[2].split()[0])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose weights are far larger than what stands beside them; loaded once, so that all code is read."""
    directory = write_tiny(
        "LlamaForCausalLM", tmp_path_factory.mktemp("once") / "model", hidden_size=256, intermediate_size=512, shards=3
    )
    with loaded(directory):
        return directory


@pytest.mark.parametrize(
    "document",
    [None, {"uva": {"cpu_offload_gb": 0.004}}, {"prefetch": {"offload_group_size": 2}}],
    ids=["resident", "uva", "prefetch"],
)
def test_a_load_reads_each_weight_once(model, document):
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    before = read_bytes()
    with loaded(model, document):
        found = read_bytes() - before
    assert weights > 20 * BESIDE_WEIGHTS
    assert weights <= found < weights + BESIDE_WEIGHTS


def test_a_plan_reads_no_weight(model):
    before = read_bytes()
    plan_document(EngineConfig(model=str(model), device="cpu"))
    assert read_bytes() - before < BESIDE_WEIGHTS
