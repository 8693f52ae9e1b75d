"""The offloader's question for each weight: where shall it live?

An offloader only decides. `plan.py` asks it for every weight in order and keeps the answers; the loader carries them
out.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from enum import StrEnum

from pyvllm.config.model import WeightSpec


class Place(StrEnum):
    """Where a weight lives between steps."""

    DEVICE = "device"
    HOST = "host"
    STREAMED = "streamed"


class Offloader(ABC):
    """One backend's rule for placing weights."""

    def __init__(self, params: Sequence[str] = ()) -> None:
        """Take the selectors of the configuration; none selects every weight."""
        self.params = tuple(params)

    @abstractmethod
    def consider(self, spec: WeightSpec) -> Place:
        """Decide about the next weight, in the plan's order."""

    def is_targeted(self, spec: WeightSpec) -> bool:
        """Whether the selectors admit the weight under any of its names."""
        return not self.params or any(selects(entry, spec) for entry in self.params)


def selects(entry: str, spec: WeightSpec) -> bool:
    """Whether a selector entry matches whole dotted segments of one of the weight's names.

    Source: vLLM 0.33 `offloader/uva.py`, `any(f".{p}." in f".{name}." ...)`.
    """
    return any(f".{entry}." in f".{name}." for name in (spec.name, *spec.aliases))


def in_plan_order(specs: Iterable[WeightSpec]) -> list[WeightSpec]:
    """Decoder layers first to last, each in registration order, then what is outside the layers."""
    return sorted(specs, key=lambda spec: (spec.layer is None, spec.layer or 0))
