"""The GGUF container: its keys and its tensor directory, checked in full before anybody trusts a number of them.

What the keys mean for a model is in `gguf_model.py`.
Source of the format: docs/gguf.md of ggml-org/ggml; type ids and block sizes: ggml.h and ggml-common.h of the same.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.model_loader.paths import OpenFile
from pyvllm.model_loader.tensor_info import QUANTISED_BLOCKS, TensorInfo, check_tensor_name

MAX_TENSORS = 100_000
MAX_KEYS = 65_536
MAX_STRING_BYTES = 2**20
MAX_ARRAY_STRING_BYTES = 2**16
#: Elements of all arrays of one file together; the tokenizer arrays of a vocabulary of 256 Ki take about a million.
MAX_ARRAY_ELEMENTS = 2**24
MAX_DIMS = 4
MAX_ALIGNMENT = 2**20
_MAX_INT = 2**63 - 1
_WINDOW_BYTES = 2**20

#: Names of all tensor types by id, also of those that ggml has taken out again.
TYPE_NAMES: Sequence[str] = (
    "F32", "F16", "Q4_0", "Q4_1", "Q4_2", "Q4_3", "Q5_0", "Q5_1", "Q8_0", "Q8_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS", "I8", "I16", "I32",
    "I64", "F64", "IQ1_M", "BF16", "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0", "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8",
    "IQ4_NL_8_8", "MXFP4", "NVFP4", "Q1_0",
)  # fmt: skip

#: (elements, bytes) of one block of every type that is read.
_BLOCKS: Mapping[str, tuple[int, int]] = {"F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), **QUANTISED_BLOCKS}

#: struct code of the fixed-size value types, by id.
_SCALARS: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_READ = f"types that are read: {', '.join(_BLOCKS)}"
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NO_DEFAULT = object()


def brief(value: object) -> str:
    """Show a key's value in an error: whole if it is short, otherwise its beginning or its length."""
    return f"an array of {len(value)} elements" if isinstance(value, list) else f"{value!r:.100}"


class Keys(Mapping[str, object]):
    """The keys of one GGUF file, with typed access: a wrong type is one error in one place."""

    def __init__(self, values: Mapping[str, object], origin: str) -> None:
        self._values = values
        self.origin = origin
        """Name of the file, for errors."""

    def __getitem__(self, key: str) -> object:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def _get(self, key: str, default: object) -> object:
        value = self._values.get(key, default)
        if value is _NO_DEFAULT:
            raise FormatError(f"{self.origin}: key '{key}' is missing")
        return value

    def _wrong(self, key: str, rule: str, value: object) -> FormatError:
        return FormatError(f"{self.origin}: key '{key}': must be {rule}, found {brief(value)}")

    def integer(self, key: str, default: object = _NO_DEFAULT, low: int = 1, high: int = 2**31 - 1) -> int:
        """An integer of any width, from `low` to `high`."""
        value = self._get(key, default)
        if type(value) is not int or not low <= value <= high:
            raise self._wrong(key, f"an integer from {low} to {high}", value)
        return value

    def number(self, key: str, default: object = _NO_DEFAULT) -> float:
        """A positive, finite number."""
        value = self._get(key, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e30:
            raise self._wrong(key, "a positive number", value)
        return float(value)

    def text(self, key: str, default: object = _NO_DEFAULT) -> str:
        """A string."""
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def strings(self, key: str) -> list[str]:
        """An array of strings; empty when the key is absent."""
        value = self._get(key, [])
        if not isinstance(value, list) or (value and not isinstance(value[0], str)):
            raise self._wrong(key, "an array of strings", value)
        return value


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """What stands before the data of one GGUF file. The tensors keep GGUF's names, in the order of their bytes."""

    keys: Keys
    tensors: tuple[TensorInfo, ...]


class _Cursor:
    """Reads the header front to back; no length leaves it before it is held against the bytes that are left."""

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.position = 0
        self.elements = 0
        self._window = b""
        self._start = 0

    def error(self, text: str) -> FormatError:
        return FormatError(f"{self.file.name}: {text}")

    def require(self, length: int, what: str) -> None:
        """Refuse unless `length` more bytes are in the file."""
        if length > self.file.size - self.position:
            left = self.file.size - self.position
            raise self.error(f"truncated: {what} needs {length} bytes at byte {self.position}, {left} are left")

    def take(self, length: int, what: str) -> bytes:
        """Read the next `length` bytes and move on, through a window that is read ahead.

        what: names the field in errors. Raises FormatError where the file ends before them.
        """
        at = self.position - self._start
        if at + length > len(self._window):
            self.require(length, what)
            size = min(max(length, _WINDOW_BYTES), self.file.size - self.position)
            self._window, self._start, at = self.file.read(self.position, size), self.position, 0
        self.position += length
        return self._window[at : at + length]

    def scalar(self, code: str, what: str) -> int | float:
        layout = struct.Struct(f"<{code}")
        value: int | float = layout.unpack(self.take(layout.size, what))[0]
        return value

    def integer(self, code: str, what: str) -> int:
        return int(self.scalar(code, what))

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        """Read a string: 8 bytes of length, little-endian, then that many of UTF-8.

        limit: most bytes that are read. Raises FormatError for a longer one, one that is cut off, and bad UTF-8.
        """
        length = int.from_bytes(self.take(8, what), "little")
        if length > limit:
            raise self.error(f"{what}: a string has at most {limit} bytes, found {length}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what}: a string is not valid UTF-8") from None

    def strings(self, count: int, what: str) -> Iterator[str]:
        """Read `count` strings of an array; vocabularies have 100,000 of them, so most are cut from the window here."""
        for _ in range(count):
            at = self.position - self._start + 8
            length = int.from_bytes(self._window[at - 8 : at], "little")
            if at <= len(self._window) and length <= MAX_ARRAY_STRING_BYTES and at + length <= len(self._window):
                try:
                    text = self._window[at : at + length].decode("utf-8")
                except UnicodeDecodeError:
                    raise self.error(f"{what}: a string is not valid UTF-8") from None
                self.position += 8 + length
                yield text
            else:
                yield self.string(what, MAX_ARRAY_STRING_BYTES)


def read_header(file: OpenFile) -> GGUFHeader:
    """Read and check everything before the data of one GGUF file.

    Raises FormatError, naming file, key or tensor, and rule; ModelLoadError for a tensor type that is not read.
    """
    cursor = _Cursor(file)
    num_tensors, num_keys = _counts(cursor)
    values: dict[str, object] = {}
    for _ in range(num_keys):
        key = _key(cursor, values)
        values[key] = _value(cursor, f"key '{key}'")
    keys = Keys(values, file.name)
    alignment = keys.integer("general.alignment", 32, high=MAX_ALIGNMENT)
    if alignment & (alignment - 1):
        raise FormatError(f"{file.name}: key 'general.alignment': must be a power of two, found {alignment}")
    described = [_description(cursor) for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors = _placed(file, described, data_start, alignment)
    return GGUFHeader(keys, tensors)


def _counts(cursor: _Cursor) -> tuple[int, int]:
    if (magic := cursor.take(4, "the magic")) != b"GGUF":
        raise cursor.error(f"not a GGUF file: it must start with b'GGUF', found {magic!r}")
    version = cursor.integer("I", "the version")
    if version not in (2, 3):
        big = ", which is the byte order of a big-endian file" if version and version % 2**16 == 0 else ""
        raise cursor.error(f"GGUF version {version} is not read{big}; versions 2 and 3, little-endian, are")
    num_tensors = cursor.integer("Q", "the tensor count")
    num_keys = cursor.integer("Q", "the key count")
    if not 1 <= num_tensors <= MAX_TENSORS:
        raise cursor.error(f"must have from 1 to {MAX_TENSORS} tensors, found {num_tensors}")
    if num_keys > MAX_KEYS:
        raise cursor.error(f"has {num_keys} keys; at most {MAX_KEYS} are read")
    # The smallest key is a length, one byte of name, a type and one byte; the smallest tensor has one dimension.
    cursor.require(num_keys * 14 + num_tensors * 33, f"a header of {num_keys} keys and {num_tensors} tensors")
    return num_tensors, num_keys


def _key(cursor: _Cursor, seen: Mapping[str, object]) -> str:
    key = cursor.string(f"key {len(seen)}", MAX_ARRAY_STRING_BYTES - 1)
    if not key or not key.isprintable():
        raise cursor.error(f"key {len(seen)}: a key must be printable and not empty, found {key[:100]!r}")
    if key in seen:
        raise cursor.error(f"key {key[:100]!r} is repeated")
    return key


def _value(cursor: _Cursor, what: str) -> object:
    kind = cursor.integer("I", what)
    if kind == _STRING:
        return cursor.string(what)
    if kind == _ARRAY:
        return _array(cursor, what)
    if kind not in _SCALARS:
        raise cursor.error(f"{what}: value type {kind} is unknown")
    if kind == _BOOL:
        return _booleans(cursor, 1, what)[0]
    return cursor.scalar(_SCALARS[kind], what)


def _array(cursor: _Cursor, what: str) -> list[object]:
    kind, count = cursor.integer("I", what), cursor.integer("Q", what)
    if kind == _ARRAY:
        raise cursor.error(f"{what}: arrays of arrays are not read")
    if kind != _STRING and kind not in _SCALARS:
        raise cursor.error(f"{what}: element type {kind} is unknown")
    cursor.elements += count
    if cursor.elements > MAX_ARRAY_ELEMENTS:
        raise cursor.error(f"{what}: an array of {count} elements; all together have at most {MAX_ARRAY_ELEMENTS}")
    size = 8 if kind == _STRING else struct.calcsize(f"<{_SCALARS[kind]}")
    cursor.require(count * size, f"{what}: an array of {count} elements")
    if kind == _STRING:
        return [*cursor.strings(count, what)]
    if kind == _BOOL:
        return [*_booleans(cursor, count, what)]
    return list(struct.unpack(f"<{count}{_SCALARS[kind]}", cursor.take(count * size, what)))


def _booleans(cursor: _Cursor, count: int, what: str) -> list[bool]:
    data = cursor.take(count, what)
    if data.strip(b"\0\1"):
        raise cursor.error(f"{what}: a boolean is stored as 0 or 1, found {max(data)}")
    return [byte == 1 for byte in data]


@dataclass(frozen=True, slots=True)
class _Description:
    """One row of the tensor directory; `offset` counts from the start of the data."""

    name: str
    shape: tuple[int, ...]
    stored_type: str
    offset: int
    nbytes: int


def _description(cursor: _Cursor) -> _Description:
    name = cursor.string("a tensor name", MAX_ARRAY_STRING_BYTES)
    check_tensor_name(name, cursor.file.name)
    what = f"tensor {name!r}"
    num_dims = cursor.integer("I", what)
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(f"{what}: must have from 1 to {MAX_DIMS} dimensions, found {num_dims}")
    dims = struct.unpack(f"<{num_dims}Q", cursor.take(8 * num_dims, what))
    kind, offset = cursor.integer("I", what), cursor.integer("Q", what)
    if kind >= len(TYPE_NAMES):
        raise ModelLoadError(f"{cursor.file.name}: {what}: tensor type id {kind} is unknown; {_READ}")
    stored_type = TYPE_NAMES[kind]
    if stored_type not in _BLOCKS:
        raise ModelLoadError(f"{cursor.file.name}: {what}: type {stored_type} (id {kind}) is not supported; {_READ}")
    elements, size = _BLOCKS[stored_type]
    if min(dims) < 1 or prod(dims) > _MAX_INT // size:
        raise cursor.error(f"{what}: dimensions must be at least 1 and make less than 2**63 bytes, found {list(dims)}")
    if dims[0] % elements:
        raise cursor.error(f"{what}: rows of {stored_type} must be a multiple of {elements} elements, found {dims[0]}")
    return _Description(name, dims[::-1], stored_type, offset, prod(dims) // elements * size)


def _placed(file: OpenFile, described: list[_Description], start: int, alignment: int) -> tuple[TensorInfo, ...]:
    names: set[str] = set()
    tensors = []
    for item in described:
        where = f"{file.name}: tensor {item.name!r}"
        if item.name in names:
            raise FormatError(f"{where}: the name is repeated")
        names.add(item.name)
        if item.offset % alignment:
            raise FormatError(f"{where}: its offset must be a multiple of {alignment}, found {item.offset}")
        if (end := start + item.offset + item.nbytes) > file.size:
            raise FormatError(f"{where}: truncated: the header describes {end} bytes, the file has {file.size}")
        tensors.append(TensorInfo(item.name, item.shape, item.stored_type, 0, start + item.offset, item.nbytes))
    tensors.sort(key=lambda info: info.offset)
    for before, after in pairwise(tensors):
        if after.offset < before.offset + before.nbytes:
            raise FormatError(f"{file.name}: tensor {after.name!r}: overlaps tensor {before.name!r}")
    return tuple(tensors)
