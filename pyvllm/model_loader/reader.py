"""Brings one tensor of a checkpoint to the memory it was given, converted to that memory's dtype on the way.

Values go from the file straight into their place when the dtype is the stored one; otherwise in small chunks, so that
reading never holds a second copy of a tensor.
"""

import torch
from torch import Tensor

from pyvllm.errors import FormatError, InvalidArgument
from pyvllm.model_loader.checkpoint import Checkpoint
from pyvllm.model_loader.gguf_dequant import DEQUANTISE
from pyvllm.model_loader.tensor_info import FLOAT_DTYPES, QUANTISED_BLOCKS, TensorInfo

#: Elements converted at a time; with all that a conversion needs beside them this stays under 8 MiB, and in the caches.
CHUNK_ELEMENTS = 2**18


def read_tensor(checkpoint: Checkpoint, info: TensorInfo, out: Tensor) -> None:
    """Fill `out` with the values of a tensor.

    out: contiguous, float32, bfloat16 or float16, with as many elements as the tensor, on any device.
    Values are rounded as `Tensor.to` rounds; quantised ones are computed in float32 first.
    Raises FormatError for a stored type that cannot become a weight and for a file that ends early, InvalidArgument for
    an `out` that does not fit.
    """
    if not info.is_readable:
        where = f"{checkpoint.file_name(info)}: tensor {info.name!r}"
        raise FormatError(f"{where}: is stored as {info.stored_type}; a weight is read from F32, F16 or BF16")
    if out.numel() != info.numel or not out.is_contiguous() or not out.is_floating_point():
        raise InvalidArgument(
            f"tensor {info.name!r} of shape {list(info.shape)} needs a contiguous float tensor of as many elements, "
            f"found {out.dtype} of shape {list(out.shape)}"
        )
    if out.numel() == 0:
        return
    flat = out.detach().view(-1)
    if info.rope_heads:
        _read_rope_rows(checkpoint, info, flat)
    else:
        read_elements(checkpoint, info, 0, flat)


def read_elements(checkpoint: Checkpoint, info: TensorInfo, first: int, flat: Tensor) -> None:
    """Fill `flat` [N] with the elements of a readable tensor from element `first` on.

    The tensor is in the order in which it is stored (no `rope_heads`); first and N are whole blocks if it is quantised.
    """
    if flat.device.type == "cpu" and FLOAT_DTYPES.get(info.stored_type) == _dtype_name(flat):
        checkpoint.read_into(info, first * flat.itemsize, _memory(flat))
        return
    step = CHUNK_ELEMENTS // block_elements(info) * block_elements(info)
    for start in range(0, flat.numel(), step):
        part = flat[start : start + step]
        part.copy_(_values(checkpoint, info, first + start, part.numel()))


def read_stored(checkpoint: Checkpoint, info: TensorInfo, first: int, out: Tensor) -> None:
    """Fill `out` with the bytes of a quantised tensor from byte `first` on, as they are stored.

    out: flat uint8 on the CPU. Rows in rotary order are put back into theirs; such a tensor is read whole.
    """
    if not info.rope_heads:
        checkpoint.read_into(info, first, _memory(out))
        return
    rows = info.shape[0]
    stored = torch.empty((rows, info.nbytes // rows), dtype=torch.uint8)
    checkpoint.read_into(info, 0, _memory(stored))
    out.view(rows, -1)[_rope_order(info)] = stored


def block_elements(info: TensorInfo) -> int:
    """How many elements are stored together and can only be read together."""
    return QUANTISED_BLOCKS.get(info.stored_type, (1, 1))[0]


def _read_rope_rows(checkpoint: Checkpoint, info: TensorInfo, flat: Tensor) -> None:
    """Read rows that are stored as [heads, D/2, 2] into rows in the order [heads, 2, D/2].

    Source: `permute` of convert_hf_to_gguf.py in llama.cpp, which is undone here.
    """
    rows, columns = info.shape[0], info.numel // info.shape[0]
    order = _rope_order(info).to(flat.device)
    placed = flat.view(rows, columns)
    step = max(1, CHUNK_ELEMENTS // columns)
    for first in range(0, rows, step):
        destination = order[first : first + step]
        values = _values(checkpoint, info, first * columns, len(destination) * columns)
        placed[destination] = values.view(-1, columns).to(device=flat.device, dtype=flat.dtype)


def _rope_order(info: TensorInfo) -> Tensor:
    """Position in the list: the row as stored. Value: the row it becomes."""
    return torch.arange(info.shape[0]).view(info.rope_heads, 2, -1).transpose(1, 2).flatten()


def _values(checkpoint: Checkpoint, info: TensorInfo, start: int, count: int) -> Tensor:
    """Read `count` elements from element `start` on, both whole blocks; quantised ones come as float32."""
    if (dtype := FLOAT_DTYPES.get(info.stored_type)) is not None:
        values = torch.empty(count, dtype=getattr(torch, dtype))
        checkpoint.read_into(info, start * values.itemsize, _memory(values))
        return values
    elements, size = QUANTISED_BLOCKS[info.stored_type]
    blocks = torch.empty((count // elements, size), dtype=torch.uint8)
    checkpoint.read_into(info, start // elements * size, _memory(blocks))
    values = torch.empty((count // elements, elements), dtype=torch.float32)
    DEQUANTISE[info.stored_type](blocks, values)
    return values.view(-1)


def _memory(tensor: Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, writable."""
    return tensor.view(-1).view(torch.uint8).numpy().data


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
