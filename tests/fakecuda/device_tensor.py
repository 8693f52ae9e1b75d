"""Torch tensors on the imagined device: every torch operation on one is a kernel on the compute stream.

A tensor subclass and not a dispatch mode, because a mode is only seen by the thread that entered it and an engine
computes on a thread of its own.
"""

from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

from pyvllm.memory.cuda_memory import TorchSide
from pyvllm.model_loader.tensors import cpu_tensor_at
from tests.fakecuda.machine import Machine

#: Rows of a matrix kernel's smallest tile: a weight is read once for each tile of rows.
TILE_ROWS = 8


class Device:
    """The compute stream of a machine, and tensors on it."""

    def __init__(self, machine: Machine) -> None:
        from cuda.bindings import runtime

        self.machine = machine
        self._runtime = runtime
        self.stream = int(runtime.cudaStreamCreateWithFlags(runtime.cudaStreamNonBlocking)[1])

    def close(self) -> None:
        """Destroy the compute stream."""
        self._runtime.cudaStreamDestroy(self.stream)

    def torch_side(self) -> TorchSide:
        """The two hand-ins of a CUDA memory; torch itself computes on the CPU here."""
        return TorchSide(self.tensor_at, lambda: self.stream, cpu_tensor_at, "cpu")

    def tensor_at(self, address: int, nbytes: int, owner: object) -> torch.Tensor:
        """A flat uint8 tensor whose every use is a kernel."""
        return wrap(cpu_tensor_at(address, nbytes, owner), self)


class DeviceTensor(torch.Tensor):
    """A tensor of the imagined device."""

    device_side: Device

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, DeviceTensor)]
        side = leaves[0].device_side
        if func.is_view or func.name().startswith("aten::detach"):
            with no_dispatch():
                out = func(*args, **kwargs or {})
            return torch.utils._pytree.tree_map_only(torch.Tensor, lambda view: wrap(view, side), out)
        with side.machine.kernel(side.stream, touches(func, args, kwargs or {})), no_dispatch():
            return func(*args, **kwargs or {})


def wrap(plain: torch.Tensor, side: Device) -> DeviceTensor:
    """Make a tensor of the device over the same memory."""
    with no_dispatch():
        tensor = torch.Tensor._make_subclass(DeviceTensor, plain)
    tensor.device_side = side
    return tensor


def touches(func: Any, args: Any, kwargs: Any) -> list[tuple[int, int, bool, int]]:
    """What an operation reads and writes of the device's memory: address, bytes, whether written, times read."""
    found = []
    arguments = func._schema.arguments
    given = [*zip(arguments, args, strict=False), *((one, kwargs[one.name]) for one in arguments if one.name in kwargs)]
    for argument, value in given:
        is_write = argument.alias_info is not None and argument.alias_info.is_write
        for leaf in tree_leaves(value):
            if isinstance(leaf, DeviceTensor) and leaf.numel():
                found += _ranges(func.name(), args, leaf, is_write)
    return found


def _ranges(name: str, args: Any, leaf: torch.Tensor, is_write: bool) -> list[tuple[int, int, bool, int]]:
    with no_dispatch():
        address, row_bytes = leaf.data_ptr(), leaf.stride(0) * leaf.element_size() if leaf.dim() else 0
        if name == "aten::embedding":
            return [(address + row * row_bytes, row_bytes, False, 1) for row in args[1].flatten().tolist()]
        span = sum((size - 1) * stride for size, stride in zip(leaf.shape, leaf.stride(), strict=True)) + 1
        return [(address, span * leaf.element_size(), is_write, _times(args, leaf))]


def _times(args: Any, leaf: torch.Tensor) -> int:
    """How often a kernel reads a weight: once for each tile of the other operand's rows; a vector once for each row."""
    others = [one for one in tree_leaves(args) if isinstance(one, torch.Tensor) and one is not leaf and one.dim() > 1]
    rows = max((one.numel() // one.shape[-1] for one in others if not isinstance(one, DeviceTensor)), default=1)
    return rows if leaf.dim() == 1 else -(-rows // TILE_ROWS)
