"""The CUDA runtime as this project uses it: the only module that talks to `cuda.bindings`.

Each call's error becomes an exception that names the call; what it all is for stands in `cuda_memory.py`.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pyvllm import logger
from pyvllm.errors import ModelLoadError
from pyvllm.memory.pinning import DeviceAttributes

#: cudaErrorInsufficientDriver and cudaErrorNoDevice: there is no driver, or no device.
#: Source: CUDA Runtime API, cudaError_t.
NO_DEVICE_ERRORS = (35, 100)
#: cudaErrorCudartUnloading: the process is ending, and the driver gives everything back.
_UNLOADING = 4
#: The device of one engine: the first that CUDA_VISIBLE_DEVICES leaves visible.
DEVICE = 0


class CudaError(ModelLoadError):
    """A call of the CUDA runtime failed."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"CUDA: {call} failed with {text}")
        self.code = code
        """`cudaError_t`."""
        self.text = text


@dataclass(frozen=True, slots=True)
class Probe:
    """What the CUDA runtime says of this machine."""

    device_count: int
    error: int = 0
    """`cudaError_t` of the query; 0 is success, -1 when the bindings are not there."""
    text: str = ""

    @property
    def is_absent(self) -> bool:
        """Whether there is no driver or no device, so that `auto` may use the CPU."""
        return self.error in NO_DEVICE_ERRORS or (self.error == 0 and self.device_count == 0)


def probe() -> Probe:
    """Ask the CUDA runtime how many devices there are."""
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        return Probe(0, -1, f"cuda-bindings cannot be imported: {error}")
    status, count = runtime.cudaGetDeviceCount()
    code = int(status)
    return Probe(0, code, _described(runtime, status)) if code else Probe(int(count))


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a plan needs to know of the device."""

    name: str
    attributes: DeviceAttributes
    free_bytes: int


def device_facts() -> DeviceFacts:
    """Ask device 0. This makes its context, which takes a part of its memory. Raises CudaError."""
    cudart = Cudart()
    return DeviceFacts(cudart.device_name(), cudart.attributes(), cudart.free_bytes())


class Cudart:
    """The calls of the CUDA runtime, on device 0."""

    def __init__(self) -> None:
        """Take the bindings and make device 0 this thread's device. Raises CudaError."""
        from cuda.bindings import runtime

        self._runtime = runtime
        self._to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self._any_way = runtime.cudaMemcpyKind.cudaMemcpyDefault
        self.call("cudaSetDevice", DEVICE)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the runtime and give what it returns beside the error. Raises CudaError."""
        error, *values = getattr(self._runtime, name)(*arguments)
        code = int(error)
        if code:
            # The runtime keeps the error for whoever asks next, and torch asks after each of its own launches.
            self._runtime.cudaGetLastError()
            raise CudaError(name, code, _described(self._runtime, error))
        return values[0] if values else None

    def attributes(self) -> DeviceAttributes:
        """Ask the device for what decides about host memory."""
        names = (
            "Integrated",
            "CanMapHostMemory",
            "UnifiedAddressing",
            "PageableMemoryAccess",
            "PageableMemoryAccessUsesHostPageTables",
        )
        kinds = self._runtime.cudaDeviceAttr
        answers = [self.call("cudaDeviceGetAttribute", getattr(kinds, f"cudaDevAttr{name}"), DEVICE) for name in names]
        return DeviceAttributes(*map(bool, answers))

    def device_name(self) -> str:
        """Give the device's name, for reports only."""
        name = self.call("cudaGetDeviceProperties", DEVICE).name
        text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
        return text.partition("\0")[0]

    def free_bytes(self) -> int:
        """Device bytes that `cudaMemGetInfo` calls free, for all processes together."""
        error, free, _ = self._runtime.cudaMemGetInfo()
        if int(error):
            raise CudaError("cudaMemGetInfo", int(error), _described(self._runtime, error))
        return int(free)

    def allocate(self, kind: Literal["device", "pinned"], nbytes: int) -> "Allocation":
        """Allocate exactly `nbytes`; pinned memory is mapped into the device and counts as pinned everywhere."""
        if kind == "device":
            return Allocation(self, "cudaFree", int(self.call("cudaMalloc", nbytes)), nbytes)
        flags = self._runtime.cudaHostAllocMapped | self._runtime.cudaHostAllocPortable
        return Allocation(self, "cudaFreeHost", int(self.call("cudaHostAlloc", nbytes, flags)), nbytes)

    def device_pointer(self, address: int) -> int:
        """Give the address by which the device reads mapped host memory."""
        return int(self.call("cudaHostGetDevicePointer", address, 0))

    def create_stream(self) -> Any:
        """Create a stream that does not wait for the default stream."""
        return self.call("cudaStreamCreateWithFlags", self._runtime.cudaStreamNonBlocking)

    def create_event(self) -> Any:
        """Create an event that orders and does not measure time."""
        return self.call("cudaEventCreateWithFlags", self._runtime.cudaEventDisableTiming)

    def is_capturing(self, stream: Any) -> bool:
        """Whether a CUDA graph is being captured from a stream."""
        return int(self.call("cudaStreamIsCapturing", stream)) != 0

    def copy_to_device(self, destination: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy host memory to device memory, in order with the stream."""
        self.call("cudaMemcpyAsync", destination, source, nbytes, self._to_device, stream)

    def copy(self, destination: int, source: int, nbytes: int, stream: Any) -> None:
        """Copy between any two addresses that the device knows, in order with the stream."""
        self.call("cudaMemcpyAsync", destination, source, nbytes, self._any_way, stream)

    def free(self, function: str, address: int) -> None:
        """Give memory back. Called by finalisers, where an error can only be told."""
        (error,) = getattr(self._runtime, function)(address)
        if int(error) not in (0, _UNLOADING):
            logger.debug(f"CUDA: {function} failed with {_described(self._runtime, error)}")


class Allocation:
    """Memory of the runtime; given back, once, when nobody holds it any more."""

    __slots__ = ("__weakref__", "_cudart", "_function", "address", "nbytes")

    def __init__(self, cudart: Cudart, function: str, address: int, nbytes: int) -> None:
        """Take over what was allocated. function: the runtime's function that frees it."""
        self._cudart, self._function = cudart, function
        self.address, self.nbytes = address, nbytes

    def __del__(self) -> None:
        self._cudart.free(self._function, self.address)


def _described(runtime: Any, error: Any) -> str:
    """Give name, number and text of an error: `cudaErrorNoDevice (100): no CUDA-capable device is detected`."""
    name, text = (
        value.decode() if isinstance(value, bytes) else str(value)
        for _, value in (runtime.cudaGetErrorName(error), runtime.cudaGetErrorString(error))
    )
    return f"{name} ({int(error)}): {text}"
