"""Gives layers the tensor to compute with: the weight itself, or its copy in a staging buffer on the device."""

from bisect import bisect_right, insort
from collections.abc import Mapping

import torch

from pyvllm.memory.base import Memory
from pyvllm.offloader.staging import IN_PLACE_ROWS, MATRIX, VECTOR


class StagedReads:
    """Reads host weights so that a step moves each of them across the bus once."""

    def __init__(self, memory: Memory, buffers: Mapping[str, torch.Tensor]) -> None:
        """Take the flat staging buffers by kind."""
        self._memory = memory
        self._buffers = {2: (buffers.get(MATRIX), IN_PLACE_ROWS), 1: (buffers.get(VECTOR), 1)}
        self._spans: list[tuple[int, int]] = []

    def add(self, view: torch.Tensor) -> None:
        """Hear of a weight that the device reads from the host: its flat device view."""
        insort(self._spans, (view.data_ptr(), view.data_ptr() + view.nbytes))

    def __call__(self, weight: torch.Tensor, rows: int) -> torch.Tensor:
        """Give the tensor of a weight's values for a computation of `rows` rows.

        weight: a matrix, a vector, or one expert's matrix of a stack. A copy is valid until the next call with a weight
        of as many dimensions.
        """
        buffer, in_place_rows = self._buffers.get(weight.dim(), (None, 0))
        if buffer is None or rows <= in_place_rows or not self._is_on_host(weight.data_ptr()):
            return weight
        staged = buffer[: weight.nbytes]
        self._memory.stage(staged, weight)
        return staged.view(weight.dtype).view(weight.shape)

    def _is_on_host(self, address: int) -> bool:
        index = bisect_right(self._spans, address, key=lambda span: span[0]) - 1
        return index >= 0 and address < self._spans[index][1]
