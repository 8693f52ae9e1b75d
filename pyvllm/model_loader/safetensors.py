"""The safetensors format: header and index, checked in full before anybody trusts a number of them.

Source of the format rules: the safetensors format description (README of huggingface/safetensors) and the validation of
its reference implementation. Stricter here: repeated, unprintable and overlong names and unknown fields are refused.
"""

from collections.abc import Mapping
from math import prod

from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.model_loader.paths import OpenFile, check_shard_name
from pyvllm.model_loader.strict_json import json_object
from pyvllm.model_loader.tensor_info import TensorInfo, check_tensor_names

#: The format's own limit.
MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS_PER_FILE = 100_000
MAX_DIMS = 8
MAX_SHARDS = 1_000
MAX_INDEX_BYTES = 64 * 2**20
#: Tensors that an index may list, with its few other fields.
MAX_INDEX_ITEMS = 500_000

#: Bytes of one element. Integers are listed because a checkpoint may carry buffers that no weight uses.
_ITEM_BYTES: Mapping[str, int] = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
    "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
_FIELDS = frozenset(("dtype", "shape", "data_offsets"))
_MAX_INT = 2**63 - 1


def read_header(file: OpenFile, index: int) -> list[TensorInfo]:
    """Read and check the header of one safetensors file.

    index: what to write into `TensorInfo.file`.
    Returns the tensors in the order of their bytes; together they cover the file's data exactly.
    Raises FormatError, naming file, tensor and rule.
    """
    header, data_start = _header(file)
    document = json_object(header, file.name)
    _check_metadata(document.pop("__metadata__", None), file.name)
    if not document:
        raise FormatError(f"{file.name}: has no tensors")
    if len(document) > MAX_TENSORS_PER_FILE:
        raise FormatError(f"{file.name}: has {len(document)} tensors; at most {MAX_TENSORS_PER_FILE} are read")
    check_tensor_names(document, file.name)
    tensors = [_tensor(file, index, data_start, name, entry) for name, entry in document.items()]
    tensors.sort(key=lambda info: (info.offset, info.offset + info.nbytes))
    _check_cover(file, data_start, tensors)
    return tensors


def _header(file: OpenFile) -> tuple[bytes, int]:
    if file.size < 8:
        raise FormatError(f"{file.name}: truncated: a safetensors file has at least 8 bytes, found {file.size}")
    length = int.from_bytes(file.read(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise FormatError(f"{file.name}: header length {length} exceeds the format's limit of {MAX_HEADER_BYTES}")
    if length + 8 > file.size:
        raise FormatError(f"{file.name}: truncated: the header needs {length + 8} bytes, the file has {file.size}")
    header = file.read(8, length)
    if not header.startswith(b"{"):
        raise FormatError(f"{file.name}: not a safetensors file: the header must start with '{{', found {header[:8]!r}")
    return header, length + 8


def _check_metadata(metadata: object, name: str) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise FormatError(f"{name}: '__metadata__' must map strings to strings")


def _tensor(file: OpenFile, index: int, data_start: int, name: str, entry: object) -> TensorInfo:
    if (fast := _plain(entry)) is not None:
        dtype, shape, begin, end = fast
        return TensorInfo(name, shape, dtype, index, data_start + begin, end - begin)
    where = f"{file.name}: tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != _FIELDS:
        found = sorted(entry) if isinstance(entry, dict) else type(entry).__name__
        raise FormatError(f"{where}: must have exactly dtype, shape and data_offsets, found {found!r:.200}")
    dtype = entry["dtype"]
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise FormatError(f"{where}: dtype {dtype!r:.40} is not supported; weights are read from F32, F16 and BF16")
    shape = _integers(entry["shape"], f"{where}: shape")
    if len(shape) > MAX_DIMS:
        raise FormatError(f"{where}: shape has {len(shape)} dimensions; at most {MAX_DIMS} are read")
    offsets = _integers(entry["data_offsets"], f"{where}: data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{where}: data_offsets must be [begin, end] with begin <= end, found {list(offsets)!r:.100}")
    needed, given = prod(shape) * _ITEM_BYTES[dtype], offsets[1] - offsets[0]
    if needed != given:
        raise FormatError(f"{where}: shape {list(shape)} of {dtype} needs {needed} bytes, data_offsets give {given}")
    return TensorInfo(name, shape, dtype, index, data_start + offsets[0], given)


def _plain(entry: object) -> tuple[str, tuple[int, ...], int, int] | None:
    """Take an entry apart that keeps every rule of `_tensor`; None for one that breaks any, whose rule is then sought.

    Headers may describe a hundred thousand tensors, and nearly all are of this kind.
    """
    try:
        shape, (begin, end), dtype = entry["shape"], entry["data_offsets"], entry["dtype"]  # type: ignore[index]
        if len(entry) == 3 and type(shape) is list and len(shape) <= MAX_DIMS and type(begin) is type(end) is int:  # type: ignore[arg-type]
            nbytes = _ITEM_BYTES[dtype]
            for size in shape:
                if type(size) is not int or not 0 <= size <= _MAX_INT:
                    return None
                nbytes *= size
            if 0 <= begin <= end <= _MAX_INT and end - begin == nbytes:
                return dtype, tuple(shape), begin, end
    except (TypeError, KeyError, ValueError):
        return None
    return None


def _integers(values: object, where: str) -> tuple[int, ...]:
    if not isinstance(values, list) or not all(type(value) is int and 0 <= value <= _MAX_INT for value in values):
        raise FormatError(f"{where} must list integers from 0 to 2**63-1, found {values!r:.100}")
    return tuple(values)


def _check_cover(file: OpenFile, data_start: int, tensors: list[TensorInfo]) -> None:
    end = max(info.offset + info.nbytes for info in tensors)
    if end > file.size:
        last = max(tensors, key=lambda info: info.offset + info.nbytes)
        raise FormatError(
            f"{file.name}: tensor {last.name!r}: truncated: the header describes {end} bytes, the file has {file.size}"
        )
    position = data_start
    for info in tensors:
        if info.offset != position:
            rule = "overlaps the tensor before it" if info.offset < position else "leaves a gap before it"
            found = f"begins at {info.offset - data_start}, expected {position - data_start}"
            raise FormatError(f"{file.name}: tensor {info.name!r}: {rule}: {found}")
        position += info.nbytes
    if position != file.size:
        raise FormatError(f"{file.name}: {file.size - position} bytes follow the last tensor, which ends at {position}")


def read_index(file: OpenFile) -> dict[str, str]:
    """Read `model.safetensors.index.json`: for each tensor, the file that holds it.

    Raises FormatError for a bad document or file name, ModelLoadError for more files than are opened at once.
    """
    document = json_object(file.read_all(MAX_INDEX_BYTES), file.name, MAX_INDEX_ITEMS)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FormatError(f"{file.name}: 'weight_map' must map tensor names to file names, found {weight_map!r:.100}")
    check_tensor_names(weight_map, file.name)
    sound: set[str] = set()
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or shard not in sound:
            sound.add(check_shard_name(shard, f"{file.name}: tensor {name!r}"))
    if (count := len(sound)) > MAX_SHARDS:
        raise ModelLoadError(f"{file.name}: names {count} files; at most {MAX_SHARDS} are opened")
    return weight_map
