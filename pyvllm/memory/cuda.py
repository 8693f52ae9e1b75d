"""The CUDA device. The only module that talks to `cuda.bindings`.

So far it answers one question: is there a device? Weights on a CUDA device are not carried out yet, and a load that
asks for one is refused by name.
"""

from dataclasses import dataclass

#: cudaErrorInsufficientDriver and cudaErrorNoDevice: there is no driver, or no device.
#: Source: CUDA Runtime API, cudaError_t.
NO_DEVICE_ERRORS = (35, 100)


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
    error, count = runtime.cudaGetDeviceCount()
    code = int(error)
    if code == 0:
        return Probe(int(count))
    texts = [part.decode() for _, part in (runtime.cudaGetErrorName(error), runtime.cudaGetErrorString(error))]
    return Probe(0, code, f"{texts[0]} ({code}): {texts[1]}")
