"""Torch tensors over memory that torch did not allocate. Whoever holds a tensor, or a view of it, holds its owner."""

import numpy as np
import torch

from pyvllm.errors import LoaderDefect


class _Span:
    """An address range under the array interface of numpy, or of CUDA's libraries."""

    def __init__(self, interface: str, address: int, nbytes: int, owner: object) -> None:
        self.owner = owner
        span = {"data": (address, False), "shape": (nbytes,), "typestr": "|u1", "strides": None, "version": 3}
        setattr(self, interface, span)


def cpu_tensor_at(address: int, nbytes: int, owner: object) -> torch.Tensor:
    """Make a flat uint8 tensor over host memory that keeps `owner` alive."""
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_numpy(np.asarray(_Span("__array_interface__", address, nbytes, owner)))


def cuda_tensor_at(address: int, nbytes: int, owner: object) -> torch.Tensor:
    """Make a flat uint8 tensor on `cuda:0` over device memory, or over host memory that the device reads.

    Raises LoaderDefect if torch made a copy, which it does in silence when the memory is another device's.
    """
    if nbytes == 0:
        return torch.empty(0, dtype=torch.uint8, device="cuda:0")
    tensor = torch.as_tensor(_Span("__cuda_array_interface__", address, nbytes, owner), device="cuda:0")
    if tensor.data_ptr() != address:
        raise LoaderDefect(f"torch copied {nbytes} bytes at {address:#x} instead of making a tensor over them")
    return tensor
