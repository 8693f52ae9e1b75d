"""Where one tensor of a checkpoint lies, and which stored types can be turned into weights."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

from pyvllm.errors import FormatError

#: Stored float types and what torch calls them.
FLOAT_DTYPES: Mapping[str, str] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

#: Stored block-quantised types that can be read: (elements of a block, bytes of a block).
#: Source: the block structs of ggml (ggml-common.h, QK_K = 256).
QUANTISED_BLOCKS: Mapping[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}

#: Longest tensor name in bytes of UTF-8.
MAX_NAME_BYTES = 512
#: Most bytes that UTF-8 needs for one character.
_MAX_UTF8 = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checkpoint."""

    name: str
    """Hugging Face name, also for tensors of a GGUF file."""
    shape: tuple[int, ...]
    """Row-major, in Hugging Face's order."""
    stored_type: str
    """Type as the file names it: `F32`, `BF16`, `Q8_0`, ..."""
    file: int
    """Which file of the checkpoint holds it."""
    offset: int
    """First byte, counted from the start of the file; no alignment is promised."""
    nbytes: int
    """Stored bytes."""
    rope_heads: int = 0
    """Above 0: the rows are in GGUF's interleaved rotary order, for that many heads; the reader puts them back."""

    @property
    def numel(self) -> int:
        """How many elements the tensor has."""
        return prod(self.shape)

    @property
    def is_quantised(self) -> bool:
        """Whether the stored values are quantised blocks."""
        return self.stored_type in QUANTISED_BLOCKS

    @property
    def is_readable(self) -> bool:
        """Whether the stored type can become a weight."""
        return self.stored_type in FLOAT_DTYPES or self.is_quantised


def check_tensor_names(names: Collection[str], file_name: str) -> None:
    """Hold every name to the rule of `check_tensor_name`; sound names cost a fraction of one call each."""
    longest = max(map(len, names), default=0)
    if all(names) and "".join(names).isprintable() and longest * _MAX_UTF8 <= MAX_NAME_BYTES:
        return
    for name in names:
        check_tensor_name(name, file_name)


def check_tensor_name(name: str, file_name: str) -> None:
    """Refuse a tensor name that is empty, not printable, or longer than `MAX_NAME_BYTES`.

    A name is only ever a key, never a path; the rule keeps error texts and logs readable.
    """
    if not name or not name.isprintable():
        raise FormatError(f"{file_name}: tensor {name[:100]!r}: a tensor name must be printable and not empty")
    if (length := len(name.encode("utf-8"))) > MAX_NAME_BYTES:
        raise FormatError(
            f"{file_name}: tensor {name[:100]!r}...: a tensor name has at most {MAX_NAME_BYTES} bytes, found {length}"
        )
