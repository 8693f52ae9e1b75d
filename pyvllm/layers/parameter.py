"""How a layer gets its weights: it asks for them by name and allocates nothing itself."""

from typing import Protocol

import torch
from torch import nn


class Weights(Protocol):
    """The weights of one load, each in the place that the plan gave it."""

    def take(self, name: str) -> torch.Tensor:
        """Return the tensor of the weight with that vLLM name; asking is what counts as wiring a weight.

        The values may not be there before the load ends; those of a streamed weight only inside its layer's scope.
        Raises LoaderDefect for a name that the plan does not have.
        """
        ...


def parameter(weights: Weights, name: str) -> nn.Parameter:
    """Wrap a weight as a parameter that shares its memory and takes no gradient."""
    return nn.Parameter(weights.take(name), requires_grad=False)
