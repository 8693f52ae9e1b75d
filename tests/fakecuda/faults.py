"""Faults planted into the calls of the CUDA runtime, below our code: each leaves out, moves or mistakes one call.

A fault is a `Cudart` whose `call` does something else. What it does wrong is what a wrong offloader would do wrong.
"""

from typing import Any

from pyvllm.memory.cuda import Cudart


class Faulty(Cudart):
    """A runtime that knows which stream computes and which copies."""

    def __init__(self, compute: int) -> None:
        super().__init__()
        self.compute = compute

    def is_compute(self, stream: Any) -> bool:
        return int(stream) == self.compute

    def real(self, name: str, *arguments: Any) -> Any:
        return super().call(name, *arguments)

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self, name, self._unchanged(name))(*arguments)

    def _unchanged(self, name: str) -> Any:
        return lambda *arguments: self.real(name, *arguments)


class ComputeDoesNotWait(Faulty):
    def cudaStreamWaitEvent(self, stream, event, flags):
        return None if self.is_compute(stream) else self.real("cudaStreamWaitEvent", stream, event, flags)


class CopyDoesNotWait(Faulty):
    def cudaStreamWaitEvent(self, stream, event, flags):
        return self.real("cudaStreamWaitEvent", stream, event, flags) if self.is_compute(stream) else None


class FreeIsNotRecorded(Faulty):
    def cudaEventRecord(self, event, stream):
        return None if self.is_compute(stream) else self.real("cudaEventRecord", event, stream)


class ReadyIsNotRecorded(Faulty):
    def cudaEventRecord(self, event, stream):
        return self.real("cudaEventRecord", event, stream) if self.is_compute(stream) else None


class ReadyIsRecordedBeforeTheCopy(Faulty):
    def __init__(self, compute):
        super().__init__(compute)
        self.held_back = []

    def cudaMemcpyAsync(self, *arguments):
        self.held_back.append(arguments)

    def cudaEventRecord(self, event, stream):
        self.real("cudaEventRecord", event, stream)
        if not self.is_compute(stream):
            for arguments in self.held_back:
                self.real("cudaMemcpyAsync", *arguments)
            self.held_back.clear()


class ReadyIsRecordedOnTheComputeStream(Faulty):
    def cudaEventRecord(self, event, stream):
        self.real("cudaEventRecord", event, self.compute)


class FreeIsRecordedWhenTheLayerOpens(Faulty):
    """The event that says "compute has left the slot" is recorded when compute enters it."""

    def __init__(self, compute):
        super().__init__(compute)
        self.free_of, self.last_free, self.opened = {}, None, set()

    def cudaEventRecord(self, event, stream):
        if not self.is_compute(stream):
            self.free_of[int(event)] = self.last_free
            return self.real("cudaEventRecord", event, stream)
        self.last_free = event
        if int(event) in self.opened:
            return None
        return self.real("cudaEventRecord", event, stream)

    def cudaStreamWaitEvent(self, stream, event, flags):
        self.real("cudaStreamWaitEvent", stream, event, flags)
        free = self.free_of.get(int(event))
        if self.is_compute(stream) and free is not None:
            self.real("cudaEventRecord", free, stream)
            self.opened.add(int(free))


class AnotherLayerIsCopied(Faulty):
    """Every copy into a buffer brings what the one before it brought."""

    def __init__(self, compute):
        super().__init__(compute)
        self.last = {}

    def cudaMemcpyAsync(self, destination, source, nbytes, kind, stream):
        before = self.last.get((destination, nbytes), source)
        self.last[destination, nbytes] = source
        self.real("cudaMemcpyAsync", destination, before, nbytes, kind, stream)


class TheLastBytesAreNotCopied(Faulty):
    def cudaMemcpyAsync(self, destination, source, nbytes, kind, stream):
        self.real("cudaMemcpyAsync", destination, source, max(nbytes - 64, 1), kind, stream)


class CopiesGoOnTheComputeStreamsBack(Faulty):
    """Copies run on the default stream, which a non-blocking stream does not wait for."""

    def cudaMemcpyAsync(self, destination, source, nbytes, kind, stream):
        self.real("cudaMemcpyAsync", destination, source, nbytes, kind, 0)


FAULTS = {fault.__name__: fault for fault in Faulty.__subclasses__()}
