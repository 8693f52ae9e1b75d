"""A model's parameters are the tensors it was given, each asked for once, and used only while they are in place."""

from contextlib import contextmanager

import pytest
import torch

from pyvllm.models.registry import lookup
from tests.checkpoint_weights import BookAttention, build, logits
from tests.tiny_models import ARCHITECTURES, write_tiny

TOKENS = list(b"where every byte went")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_parameter_is_the_tensor_taken_under_its_name(architecture, tied, tmp_path):
    model, config, weights = build(write_tiny(architecture, tmp_path, tied=tied))
    names = [spec.name for spec in lookup(architecture).weight_specs(config, "float32")]
    assert sorted(weights.taken) == sorted(names)
    parameters = dict(model.named_parameters())
    assert sorted(parameters) == sorted(names)
    for name, parameter in parameters.items():
        assert parameter.data_ptr() == weights.tensors[name].data_ptr(), name
        assert not parameter.requires_grad
    assert not list(model.buffers())


class StreamedScope:
    """Keeps the weights of every layer but the current one full of NaN."""

    def __init__(self, weights, specs):
        self.specs = [spec for spec in specs if spec.layer is not None]
        self.tensors = weights.tensors
        self.saved = {spec.name: weights.tensors[spec.name].clone() for spec in self.specs}
        for spec in self.specs:
            self.tensors[spec.name].fill_(torch.nan)
        self.visited = []

    def is_streamed(self, index):
        return True

    @contextmanager
    def layer(self, index):
        self.visited.append(index)
        mine = [spec.name for spec in self.specs if spec.layer == index]
        for name in mine:
            self.tensors[name].copy_(self.saved[name])
        yield
        for name in mine:
            self.tensors[name].fill_(torch.nan)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_weights_of_a_layer_are_used_only_inside_its_scope(architecture, tmp_path):
    model, config, weights = build(write_tiny(architecture, tmp_path))
    expected = logits(model, TOKENS)
    scope = StreamedScope(weights, lookup(architecture).weight_specs(config, "float32"))
    with torch.inference_mode():
        positions = torch.arange(len(TOKENS))
        hidden = model(torch.tensor(TOKENS), positions, BookAttention(), scope)
        assert torch.equal(model.compute_logits(hidden), expected)
    assert scope.visited == list(range(config.num_hidden_layers))
