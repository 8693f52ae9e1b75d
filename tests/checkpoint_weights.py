"""Fills weights from safetensors by the sources of their specs, and attends by the book: what model tests run on.

It is written apart from the loader and the worker, so it checks `WeightSpec.sources` and `AttentionContext` on its own.
"""

import json
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors import safe_open

from pyvllm.config.model import ModelConfig, WeightSpec, model_config
from pyvllm.models.registry import lookup


class CheckpointWeights:
    """Every weight of a checkpoint in its fused form; `taken` lists the names that the model asked for."""

    def __init__(self, directory: Path, specs: list[WeightSpec]):
        stored = {}
        for file in sorted(directory.glob("*.safetensors")):
            with safe_open(file, "pt") as tensors:
                stored |= {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
        self.tensors = {spec.name: _assemble(spec, stored) for spec in specs}
        self.unread = set(stored) - {source.tensor for spec in specs for source in spec.sources}
        self.taken = []

    def take(self, name: str) -> torch.Tensor:
        self.taken.append(name)
        return self.tensors[name]


def _assemble(spec: WeightSpec, stored: dict[str, torch.Tensor]) -> torch.Tensor:
    """Copy the sources into NaN; a row that no source fills, or that two fill, shows."""
    whole = torch.full(spec.shape, torch.nan, dtype=getattr(torch, spec.dtype))
    rows = whole.view(-1, spec.shape[-1]) if len(spec.shape) > 1 else whole.view(-1, 1)
    for source in spec.sources:
        assert tuple(stored[source.tensor].shape) == source.shape, source.tensor
        target = rows[source.first_row : source.first_row + source.num_rows]
        assert target.isnan().all(), f"{source.tensor} overlaps another source of {spec.name}"
        target.copy_(stored[source.tensor].reshape(target.shape))
    assert not whole.isnan().any(), f"{spec.name} is not filled"
    return whole


class BookAttention:
    """Softmax over an explicit loop of queries, in float64; keeps every key and value it was given."""

    def __init__(self):
        self.cache = {}

    def attend(self, layer_index, q, k, v, window):
        old_k, old_v = self.cache.get(layer_index, (k[:0], v[:0]))
        k, v = torch.cat((old_k, k)), torch.cat((old_v, v))
        self.cache[layer_index] = (k, v)
        return book_attention(q, k, v, k.shape[0] - q.shape[0], window)


def book_attention(q, k, v, first_position, window):
    """For each query and head: softmax(q . k / sqrt(D)) v over the keys it sees."""
    out = torch.empty_like(q)
    group = q.shape[1] // k.shape[1]
    for token in range(q.shape[0]):
        end = first_position + token + 1
        start = 0 if window is None else max(0, end - window)
        for head in range(q.shape[1]):
            keys, values = (x[start:end, head // group].double() for x in (k, v))
            scores = keys @ q[token, head].double() / q.shape[2] ** 0.5
            out[token, head] = (scores.softmax(0) @ values).to(q.dtype)
    return out


class NoScope:
    """Weights that are always in place."""

    def is_streamed(self, index):
        return False

    def layer(self, index):
        return nullcontext()


def read_config(directory: Path) -> ModelConfig:
    return model_config(json.loads((directory / "config.json").read_text()), "config.json")


def build(directory: Path, dtype: str = "float32"):
    """Build our model of a checkpoint; returns it with its config and the weights it took."""
    config = read_config(directory)
    entry = lookup(config.architecture)
    weights = CheckpointWeights(directory, entry.weight_specs(config, dtype))
    return entry.model_class()(config, weights), config, weights


@torch.inference_mode()
def logits(model, token_ids, steps=None):
    """Logits of every position, the tokens given in pieces of the lengths `steps` (all at once by default)."""
    attention, hidden, first = BookAttention(), [], 0
    for length in steps or [len(token_ids)]:
        positions = torch.arange(first, first + length)
        hidden.append(model(torch.tensor(token_ids)[positions], positions, attention, NoScope()))
        first += length
    return model.compute_logits(torch.cat(hidden))
