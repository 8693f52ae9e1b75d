"""Puts the imagined device under the real `cuda.bindings.runtime`, and gives tests its controls.

The bindings reach the runtime through capsules of `cuda.bindings.cyruntime`. Replaced before anything imports
`cuda.bindings.runtime` (torch does, where it has CUDA), they lead into the fake, and the bindings' own argument and
enum checks run as they are.
"""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
ORDERS = ("lazy", "eager", "random")
COUNTERS = (
    "races",
    "pageable_copies",
    "copied_bytes",
    "device_bytes",
    "pinned_bytes",
    "regions",
    "streams",
    "events",
    "allocations",
)
_HELD = ("device_bytes", "pinned_bytes", "regions", "streams", "events")
#: Functions that need no device stay the runtime's own.
_KEPT = ("cudaGetErrorName", "cudaGetErrorString", "cudaRuntimeGetVersion")
_NOT_SUPPORTED = 801


class TooLate(RuntimeError):
    """Something has imported the real runtime already, and would go on using it."""


def build(directory: Path) -> Path:
    """Compile the engine. It needs a C compiler and nothing of CUDA."""
    library = directory / "libfakecuda.so"
    options = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run(["gcc", *options, "-pthread", "-o", library, HERE / "engine.c", HERE / "api.c"], check=True)
    return library


def install(directory: Path) -> "Machine":
    """Build the engine and put it under the bindings. Raises TooLate."""
    for module in ("cuda.bindings.runtime", "torch"):
        if module in sys.modules:
            raise TooLate(f"the fake CUDA runtime must be installed before {module} is imported, and it is imported")
    from cuda.bindings import cyruntime

    library = ctypes.CDLL(str(build(directory)))
    return Machine(library, _replace(cyruntime.__pyx_capi__, library))


def _replace(capsules: dict[str, object], library: ctypes.CDLL) -> list[object]:
    """Point every capsule into the library, or to a function that supports nothing. Returns what must stay alive."""
    api = ctypes.pythonapi
    api.PyCapsule_GetName.restype, api.PyCapsule_GetName.argtypes = ctypes.c_char_p, [ctypes.py_object]
    api.PyCapsule_New.restype = ctypes.py_object
    api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    unsupported = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: _NOT_SUPPORTED)
    kept: list[object] = [unsupported]
    for name, capsule in list(capsules.items()):
        signature = api.PyCapsule_GetName(capsule)
        if name in _KEPT or not signature.startswith(b"cudaError_t ("):
            continue
        function = getattr(library, name, unsupported)
        # A capsule does not copy its name.
        buffer = ctypes.create_string_buffer(signature)
        address = ctypes.cast(function, ctypes.c_void_p).value
        capsules[name] = api.PyCapsule_New(address, ctypes.cast(buffer, ctypes.c_char_p), None)
        kept += [capsule, buffer]
    return kept


class Machine:
    """The controls of the imagined device."""

    def __init__(self, library: ctypes.CDLL, kept: list[object]) -> None:
        self._library, self._kept = library, kept
        self._baseline = dict.fromkeys(_HELD, 0)
        library.fake_counter.restype = ctypes.c_uint64
        library.fake_races.restype = ctypes.c_char_p
        library.fake_crossings.restype = ctypes.c_size_t
        library.fake_set_limits.argtypes = [ctypes.c_uint64, ctypes.c_uint64]
        library.fake_fail_allocation.argtypes = [ctypes.c_long]
        library.fake_kind_of.argtypes = [ctypes.c_void_p]
        library.fake_kernel_begin.argtypes = [ctypes.c_void_p]
        library.fake_kernel_touch.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_size_t,
        ]
        library.fake_crossings.argtypes = [ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t]

    def reset(self) -> None:
        """Bring every control back to what it is at the start; what is held now counts as nothing."""
        self._baseline = dict.fromkeys(_HELD, 0)
        self._baseline = self.held()
        self.set_order("lazy")
        self.set_memory()
        self.set_limits()
        self.fail_allocation(None)
        self.set_probe_error(0)
        self.set_capturing(False)
        for name, value in (("Integrated", 0), ("CanMapHostMemory", 1), ("UnifiedAddressing", 1)):
            self.set_attribute(name, value)
        for name in ("PageableMemoryAccess", "PageableMemoryAccessUsesHostPageTables"):
            self.set_attribute(name, 0)
        self.forget()

    def set_order(self, order: str, seed: int = 1) -> None:
        """Say when queued operations run."""
        self._library.fake_set_order(ORDERS.index(order), seed)

    def set_memory(self, *, guarded: bool = False, aliased: bool = False) -> None:
        """Of what is allocated from now on: close device memory to the CPU; give mapped memory two addresses."""
        self._library.fake_set_memory(guarded, aliased)

    def set_limits(self, device_bytes: int = 2**33, pinned_bytes: int = 2**33) -> None:
        """Limit what may be allocated."""
        self._library.fake_set_limits(device_bytes, pinned_bytes)

    def fail_allocation(self, number: int | None) -> None:
        """Refuse the allocation after `number` more; None refuses none."""
        self._library.fake_fail_allocation(-1 if number is None else number)

    def set_attribute(self, name: str, value: int) -> None:
        """Answer `cudaDevAttr<name>` with a value."""
        from cuda.bindings import runtime

        self._library.fake_set_attribute(int(getattr(runtime.cudaDeviceAttr, f"cudaDevAttr{name}")), value)

    def set_probe_error(self, error: int) -> None:
        """Let `cudaGetDeviceCount` fail."""
        self._library.fake_set_probe_error(error)

    def set_capturing(self, is_capturing: bool) -> None:
        """Say that a graph is being captured from every stream."""
        self._library.fake_set_capturing(int(is_capturing))

    def counters(self) -> dict[str, int]:
        """Read all counters."""
        return {name: self._library.fake_counter(index) for index, name in enumerate(COUNTERS)}

    def held(self) -> dict[str, int]:
        """What was allocated or opened since the last reset: all 0 when nothing has leaked."""
        counters = self.counters()
        return {name: counters[name] - self._baseline[name] for name in _HELD}

    def races(self) -> str:
        """The accesses that nothing orders, a line each."""
        return self._library.fake_races().decode()

    def forget(self) -> None:
        """Start counting races, copies and crossings anew."""
        self._library.fake_forget()

    def crossings(self) -> list[tuple[int, int, bool]]:
        """What was moved from host to device: address, bytes, and whether a copy (or a kernel) did it."""
        count = self._library.fake_crossings(None, 0)
        rows = (ctypes.c_uint64 * (3 * count))()
        self._library.fake_crossings(rows, count)
        return [(rows[i], rows[i + 1], bool(rows[i + 2])) for i in range(0, 3 * count, 3)]

    def owns(self, address: int) -> bool:
        """Whether an address lies in memory that the runtime knows."""
        return bool(self._library.fake_kind_of(address))

    @contextmanager
    def kernel(self, stream: int, touches: list[tuple[int, int, bool, int]]) -> Iterator[None]:
        """Run what is inside as a kernel on a stream. touches: address, bytes, whether written, times read."""
        number = self._library.fake_kernel_begin(stream)
        try:
            for address, nbytes, is_write, times in touches:
                self._library.fake_kernel_touch(number, address, nbytes, is_write, times)
            yield
        finally:
            self._library.fake_kernel_end()
