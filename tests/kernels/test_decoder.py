"""The decoder on the kernels against the same decoder on torch, for every architecture."""

import pytest
import torch

from pyvllm.config.model import ModelConfig
from pyvllm.core.request import Request
from pyvllm.core.scheduler import Scheduled
from pyvllm.models.registry import lookup
from pyvllm.sampling_params import SamplingParams
from pyvllm.worker.kv_cache import KVCache
from pyvllm.worker.model_runner import ModelRunner
from tests.checkpoint_weights import CheckpointWeights, NoScope, read_config
from tests.tiny_models import ARCHITECTURES, write_tiny

BLOCK, BLOCKS = 16, 12


def _runner(directory, kernels, dtype) -> ModelRunner:
    config: ModelConfig = read_config(directory)
    entry = lookup(config.architecture)
    weights = CheckpointWeights(directory, entry.weight_specs(config, dtype))
    weights.kernels = kernels
    cache = KVCache(config, BLOCKS, BLOCK, getattr(torch, dtype), "cpu")
    return ModelRunner(entry.model_class()(config, weights), NoScope(), cache, "cpu", kernels)


def _logits(runner, requests):
    """Logits after the last token of each (token ids, first block), computed in one step."""
    step = []
    for number, (ids, first) in enumerate(requests):
        request = Request(number, ids, SamplingParams(), block_ids=list(range(first, first + -(-len(ids) // BLOCK))))
        step.append(Scheduled(request, len(ids)))
    return runner.compute_logits(runner.execute(step))


PROMPTS = [([7, 3, 250, 9] * 8, 0), ([1], 3), ([5, 6, 7] * 13, 5)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("tied", [False, True])
def test_kernels_and_torch_give_the_same_logits_in_float32(kernels, tmp_path, architecture, tied):
    directory = write_tiny(architecture, tmp_path, tied=tied)
    ours = _logits(_runner(directory, kernels, "float32"), PROMPTS)
    theirs = _logits(_runner(directory, None, "float32"), PROMPTS)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert torch.equal(ours.argmax(-1), theirs.argmax(-1))


@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Qwen3MoeForCausalLM"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_request_has_the_same_logits_alone_and_in_a_batch(kernels, one_thread, tmp_path, architecture, dtype):
    directory = write_tiny(architecture, tmp_path, dtype=dtype)
    together = _logits(_runner(directory, kernels, dtype), PROMPTS)
    alone = [_logits(_runner(directory, one_thread, dtype), [prompt]) for prompt in PROMPTS]
    assert torch.equal(together, torch.cat(alone))


def test_only_the_rows_of_routed_experts_are_read(kernels, tmp_path):
    directory = write_tiny("Qwen3MoeForCausalLM", tmp_path, num_hidden_layers=1)
    runner = _runner(directory, kernels, "float32")
    wanted, experts = _logits(runner, [([7], 0)]), runner.model.model.layers[0].mlp.experts
    read = 0
    for expert in range(8):
        rows = [weight[expert] for weight in (experts.w13_weight, experts.w2_weight)]
        kept = [weight.clone() for weight in rows]
        for weight in rows:
            weight.fill_(torch.nan)
        found = _logits(runner, [([7], 0)])
        read += int(found.isnan().all())
        assert found.isnan().all() or torch.equal(found, wanted)
        for weight, values in zip(rows, kept, strict=True):
            weight.copy_(values)
    assert read == 2


def test_a_sliding_window_is_the_same_on_kernels_and_torch(kernels, tmp_path):
    directory = write_tiny("MistralForCausalLM", tmp_path, sliding_window=11)
    ours = _logits(_runner(directory, kernels, "float32"), PROMPTS)
    torch.testing.assert_close(ours, _logits(_runner(directory, None, "float32"), PROMPTS), rtol=1e-4, atol=1e-4)
