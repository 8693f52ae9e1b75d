"""The offloader's question for each weight: where shall it live?

An offloader only decides. `plan.py` asks it for every weight in order and keeps the answers; the loader carries them
out.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pyvllm.config.model import WeightSpec


class Place(StrEnum):
    """Where a weight lives between steps."""

    DEVICE = "device"
    HOST = "host"
    STREAMED = "streamed"


@dataclass(frozen=True, slots=True)
class Placement:
    """A weight, its place, and why it has it."""

    spec: WeightSpec
    place: Place
    why: str = ""
    """Of a weight that stays on the device: what kept it from being offloaded. Empty for the others."""
    nbytes: int = field(init=False)
    """Bytes of the weight, multiplied out once: sums over a large model ask for them again and again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", self.spec.nbytes)


class Offloader(ABC):
    """One backend's rule for placing weights."""

    def __init__(self, params: Sequence[str] = ()) -> None:
        """Take the selectors of the configuration; none selects every weight."""
        self.params = tuple(params)

    @abstractmethod
    def consider(self, spec: WeightSpec) -> Place:
        """Decide about the next weight, in the plan's order."""

    @abstractmethod
    def why_not(self, spec: WeightSpec) -> str:
        """Say why the weight that was just considered stays on the device."""

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
