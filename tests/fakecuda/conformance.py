"""Facts of the CUDA runtime that our code or the fake relies on, asked through the bindings.

The same questions go to the fake and, in `tests/device`, to a real device, whose answers are the record that the fake
is then held to.
"""

import ctypes
import mmap
from typing import Any

MIB = 2**20


class Asker:
    """Calls the runtime and gives names for errors."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.pinned = runtime.cudaHostAllocMapped | runtime.cudaHostAllocPortable
        self.to_device = runtime.cudaMemcpyKind.cudaMemcpyHostToDevice
        self.to_host = runtime.cudaMemcpyKind.cudaMemcpyDeviceToHost
        self.any_way = runtime.cudaMemcpyKind.cudaMemcpyDefault

    def error(self, result: tuple) -> str:
        """Name of a call's error."""
        name = self.runtime.cudaGetErrorName(result[0])[1]
        return name.decode() if isinstance(name, bytes) else str(name)

    def must(self, result: tuple) -> Any:
        """Value of a call that has to succeed."""
        if int(result[0]):
            raise RuntimeError(self.error(result))
        return result[1] if len(result) == 2 else result[1:]

    def stream(self) -> Any:
        return self.must(self.runtime.cudaStreamCreateWithFlags(self.runtime.cudaStreamNonBlocking))

    def event(self) -> Any:
        return self.must(self.runtime.cudaEventCreateWithFlags(self.runtime.cudaEventDisableTiming))


def facts(runtime: Any) -> dict[str, object]:
    """Ask everything; leaves nothing allocated."""
    ask = Asker(runtime)
    return {**_memory_facts(ask), **_stream_facts(ask), **_registration_facts(ask), **_end_facts(ask)}


def _memory_facts(ask: Asker) -> dict[str, object]:
    rt, nbytes = ask.runtime, 3 * MIB + 12345
    pageable = ctypes.create_string_buffer(4096)
    device, host = ask.must(rt.cudaMalloc(nbytes)), ask.must(rt.cudaHostAlloc(nbytes, ask.pinned))
    seen = ask.must(rt.cudaHostGetDevicePointer(host, 0))
    huge = ask.error(rt.cudaMalloc(2**50))
    addresses = (device, host, ctypes.addressof(pageable))
    found: dict[str, object] = {
        "malloc is aligned to 256": device % 256 == 0,
        "malloc of 0": [ask.error(rt.cudaMalloc(0)), rt.cudaMalloc(0)[1] or 0],
        "malloc of a pebibyte": huge,
        "host alloc of 0": [ask.error(rt.cudaHostAlloc(0, ask.pinned)), rt.cudaHostAlloc(0, ask.pinned)[1] or 0],
        "host alloc is page aligned": host % mmap.PAGESIZE == 0,
        "host alloc is mapped": bool(ask.must(rt.cudaHostGetFlags(host)) & rt.cudaHostAllocMapped),
        "device pointer equals host pointer": host == seen,
        "device pointer inside a region": ask.must(rt.cudaHostGetDevicePointer(host + 12345, 0)) - seen,
        "device pointer with flags": ask.error(rt.cudaHostGetDevicePointer(host, 1)),
        "device pointer of pageable memory": ask.error(rt.cudaHostGetDevicePointer(addresses[2], 0)),
        "pointer types": [int(ask.must(rt.cudaPointerGetAttributes(one)).type) for one in addresses],
    }
    rt.cudaGetLastError()
    rt.cudaMalloc(2**50)
    found["last error is forgotten once read"] = [ask.error(rt.cudaGetLastError()) for _ in range(2)]
    found["free inside a region"] = ask.error(rt.cudaFree(device + 256))
    found["free of host memory inside a region"] = ask.error(rt.cudaFreeHost(host + 4096))
    found["free of null"] = ask.error(rt.cudaFree(0))
    rt.cudaGetLastError()
    ask.must((*rt.cudaFree(device), None))
    ask.must((*rt.cudaFreeHost(host), None))
    before = ask.must(rt.cudaMemGetInfo())[0]
    big = ask.must(rt.cudaMalloc(64 * MIB))
    found["free MiB after malloc of 64"] = (before - ask.must(rt.cudaMemGetInfo())[0]) // MIB
    rt.cudaFree(big)
    found["free bytes come back"] = before == ask.must(rt.cudaMemGetInfo())[0]
    return found


def _stream_facts(ask: Asker) -> dict[str, object]:
    rt, nbytes = ask.runtime, MIB + 77
    first, second, event, last = ask.stream(), ask.stream(), ask.event(), ask.event()
    device = ask.must(rt.cudaMalloc(nbytes))
    host, back = (ask.must(rt.cudaHostAlloc(nbytes, ask.pinned)) for _ in range(2))
    found: dict[str, object] = {
        "event that was never recorded": [
            ask.error(rt.cudaEventQuery(event)),
            ask.error(rt.cudaStreamWaitEvent(first, event, 0)),
            ask.error(rt.cudaEventSynchronize(event)),
        ]
    }
    ctypes.memset(host, 0x5A, nbytes)
    ctypes.memset(back, 0, nbytes)
    rt.cudaMemcpyAsync(device, host, nbytes, ask.to_device, first)
    rt.cudaEventRecord(event, first)
    rt.cudaStreamWaitEvent(second, event, 0)
    rt.cudaMemcpyAsync(back, device, nbytes, ask.to_host, second)
    rt.cudaEventRecord(last, second)
    rt.cudaEventSynchronize(last)
    found["a chain of two streams copies"] = ctypes.string_at(back, nbytes) == ctypes.string_at(host, nbytes)
    found["event that is over"] = ask.error(rt.cudaEventQuery(event))
    found["elapsed time without timing"] = ask.error(rt.cudaEventElapsedTime(event, last))
    found["copy of kind H2D between host addresses"] = ask.error(
        rt.cudaMemcpyAsync(back, host, 64, ask.to_device, first)
    )
    found["copy of kind default"] = ask.error(rt.cudaMemcpyAsync(device, host, 64, ask.any_way, first))
    found["copy of 0 bytes"] = ask.error(rt.cudaMemcpyAsync(device, host, 0, ask.to_device, first))
    found["stream is capturing"] = int(ask.must(rt.cudaStreamIsCapturing(first)))
    rt.cudaDeviceSynchronize()
    rt.cudaGetLastError()
    for free, what in ((rt.cudaFree, device), (rt.cudaFreeHost, host), (rt.cudaFreeHost, back)):
        free(what)
    for stream, recorded in ((first, event), (second, last)):
        rt.cudaStreamDestroy(stream)
        rt.cudaEventDestroy(recorded)
    return found


def _registration_facts(ask: Asker) -> dict[str, object]:
    rt, memory = ask.runtime, mmap.mmap(-1, MIB)
    pin = ctypes.c_char.from_buffer(memory)
    address = ctypes.addressof(pin)
    flags = rt.cudaHostRegisterMapped
    found: dict[str, object] = {
        "register twice": [ask.error(rt.cudaHostRegister(address, MIB, flags)) for _ in range(2)],
        "unregister twice": [ask.error(rt.cudaHostUnregister(address)) for _ in range(2)],
    }
    rt.cudaGetLastError()
    return found


def _end_facts(ask: Asker) -> dict[str, object]:
    rt, nbytes = ask.runtime, MIB
    stream, event = ask.stream(), ask.event()
    device, host = ask.must(rt.cudaMalloc(nbytes)), ask.must(rt.cudaHostAlloc(nbytes, ask.pinned))
    rt.cudaMemcpyAsync(device, host, nbytes, ask.to_device, stream)
    found = {
        "stream destroyed with work": ask.error(rt.cudaStreamDestroy(stream)),
        "event destroyed": ask.error(rt.cudaEventDestroy(event)),
        "free with work": ask.error(rt.cudaFree(device)),
        "free twice": ask.error(rt.cudaFree(device)),
    }
    rt.cudaFreeHost(host)
    rt.cudaGetLastError()
    return found
