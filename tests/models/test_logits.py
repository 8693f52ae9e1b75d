"""Logits equal those of transformers on tiny random checkpoints, in float32."""

import pytest
import torch
import transformers
from checkpoint_weights import build, logits
from tiny_models import ARCHITECTURES, VOCAB_SIZE, write_tiny

#: Two float32 computations of the same sums in another order: 100 units in the last place of a logit of size 1.
TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}


def prompt(length=24, seed=1):
    return torch.randint(VOCAB_SIZE, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.inference_mode()
def reference_logits(directory, token_ids):
    """What transformers itself computes from the files, with its own plain attention."""
    name = transformers.AutoConfig.from_pretrained(directory).architectures[0]
    model = getattr(transformers, name).from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval()(torch.tensor([token_ids])).logits[0]


def assert_equal_to_transformers(directory, token_ids):
    model, _, weights = build(directory)
    expected = reference_logits(directory, token_ids)
    torch.testing.assert_close(logits(model, token_ids), expected, **TOLERANCE)
    torch.testing.assert_close(logits(model, token_ids, [1] * len(token_ids)), expected, **TOLERANCE)
    torch.testing.assert_close(logits(model, token_ids, [7, 1, len(token_ids) - 8]), expected, **TOLERANCE)
    assert not weights.unread


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logits_equal_transformers(architecture, tied, tmp_path):
    assert_equal_to_transformers(write_tiny(architecture, tmp_path, tied=tied), prompt())
