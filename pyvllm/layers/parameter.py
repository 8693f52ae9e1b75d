"""How a layer gets its weights: it asks for them by name and allocates nothing itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from pyvllm.layers.kernel_library import TYPE_NUMBERS
from pyvllm.layers.kernels import Kernels, Rows, plain_rows


class Weights(Protocol):
    """The weights of one load, each in the place that the plan gave it."""

    def take(self, name: str) -> torch.Tensor:
        """Return the tensor of the weight with that vLLM name; asking is what counts as wiring a weight.

        The values may not be there before the load ends; those of a streamed weight only inside its layer's scope.
        Raises LoaderDefect for a name that the plan does not have.
        """
        ...


#: Gives the tensor of a weight's values for a computation of so many rows: the weight itself, or a copy that is valid
#: until the next weight of as many dimensions is read.
Read = Callable[[torch.Tensor, int], torch.Tensor]


def in_place(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Compute with the weight where it is."""
    return weight


def reader(weights: Weights) -> Read:
    """Ask the weights of a load how they want to be read; those that do not care are read in place."""
    read: Read = getattr(weights, "read", in_place)
    return read


@dataclass(frozen=True, slots=True)
class StoredParts:
    """How a weight that is kept as GGUF stores it is laid out: its tensor is bytes."""

    columns: int
    parts: tuple[tuple[str, int, int], ...]
    """(block type, rows, bytes), one below the other."""


def stored_parts(weights: Weights, name: str) -> StoredParts | None:
    """Ask the weights of a load how the weight of that name is stored; None: it is numbers of its tensor's dtype."""
    ask: Callable[[str], StoredParts | None] | None = getattr(weights, "stored_parts", None)
    return None if ask is None else ask(name)


def matrix_rows(weight: torch.Tensor, stored: StoredParts | None) -> tuple[list[Rows], int]:
    """Describe a matrix, or a stack of them, to the kernels: its rows, and how many columns it has."""
    if stored is None:
        return [plain_rows(weight.flatten(0, -2))], weight.shape[-1]
    pieces = torch.split(weight.view(-1), [nbytes for _, _, nbytes in stored.parts])
    rows = [
        Rows(piece, TYPE_NUMBERS[kind], count) for piece, (kind, count, _) in zip(pieces, stored.parts, strict=True)
    ]
    return rows, stored.columns


def kernels_of(weights: Weights) -> Kernels | None:
    """Ask the weights of a load for the kernels to compute with; None: with torch."""
    kernels: Kernels | None = getattr(weights, "kernels", None)
    return kernels


def parameter(weights: Weights, name: str) -> nn.Parameter:
    """Wrap a weight as a parameter that shares its memory and takes no gradient."""
    return nn.Parameter(weights.take(name), requires_grad=False)
