"""Finds libvllm_kernels.so and asks it whether it serves this processor. No torch: a plan asks it too."""

from pathlib import Path
from typing import Any

_LIBRARY = Path(__file__).parents[1] / "lib" / "libvllm_kernels.so"

#: Types that the kernels multiply with as they are stored, under the library's numbers (csrc/kernels/kernels.h, which
#: are GGUF's).
TYPE_NUMBERS = {
    "F32": 0,
    "F16": 1,
    "BF16": 30,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q5_0": 6,
    "Q5_1": 7,
    "Q8_0": 8,
    "Q4_K": 12,
    "Q5_K": 13,
    "Q6_K": 14,
}

#: Parts of unlike types that a weight can have.
MAX_PARTS = 3

#: Instruction sets that the kernels are compiled for, the fastest first, under the library's numbers
#: (csrc/kernels/interface.h, which says what of them is needed).
INSTRUCTION_SETS = {"avx512": 2, "avx2": 1}


def open_library() -> tuple[Any, Any] | None:
    """Give cffi's `ffi` and the library; None where it was not built."""
    try:
        from pyvllm.lib.kernels_abi import ffi
    except ImportError:
        return None
    if not _LIBRARY.exists():
        return None
    return ffi, ffi.dlopen(str(_LIBRARY))


def supported_sets(library: Any) -> list[str]:
    """Name the instruction sets that this processor has, the fastest first."""
    return [name for name, number in INSTRUCTION_SETS.items() if library.vk_is_supported(number)]


def usable_sets() -> list[str]:
    """Name the instruction sets that the kernels can compute on here, the fastest first; none if they are not built."""
    found = open_library()
    return [] if found is None else supported_sets(found[1])
