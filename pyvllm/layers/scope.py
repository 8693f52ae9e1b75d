"""The offloader's side of a forward pass, as a decoder sees it."""

from contextlib import AbstractContextManager
from typing import Protocol


class LayerScope(Protocol):
    """Who keeps the weights of a layer in place while it computes."""

    def is_streamed(self, index: int) -> bool:
        """Whether `layer` does anything for a decoder layer; those for which it does not may be computed in one go."""
        ...

    def layer(self, index: int) -> AbstractContextManager[None]:
        """Enter around the computation of a decoder layer: only inside are its streamed weights valid."""
        ...
