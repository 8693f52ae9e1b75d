"""Whether host memory may be pinned for a CUDA device, and whether the device may read it in place.

Decisions on plain values, so that every machine can be described in a test. What the machine and the environment say
is read in two places only: here (`read_environment`) and in `cuda.py` (the device's attributes).
"""

import os
import re
import resource
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyvllm.errors import InvalidArgument
from pyvllm.memory.base import Room

#: vLLM's variables, with vLLM's meaning: an integer, and anything but 0 is yes.
DISABLE_PIN_MEMORY = "VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY"
DISABLE_UVA = "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA"
WSL2_ENABLE_PIN_MEMORY = "VLLM_WSL2_ENABLE_PIN_MEMORY"

#: The first WSL kernel on which CUDA pins reliably. Source: vLLM 0.33 `platforms/interface.py`.
_WSL_KERNEL = (4, 19, 121)
#: Bit of CAP_IPC_LOCK, which lifts RLIMIT_MEMLOCK. Source: capabilities(7).
_CAP_IPC_LOCK = 1 << 14


@dataclass(frozen=True, slots=True)
class DeviceAttributes:
    """What decides about host memory, as the device itself answers; never derived from its name."""

    is_integrated: bool
    """`cudaDevAttrIntegrated`: host and device are one pool."""
    can_map_host_memory: bool
    """`cudaDevAttrCanMapHostMemory`."""
    has_unified_addressing: bool
    """`cudaDevAttrUnifiedAddressing`: one address means the same bytes on both sides."""
    reads_pageable_memory: bool
    """`cudaDevAttrPageableMemoryAccess`."""
    uses_host_page_tables: bool
    """`cudaDevAttrPageableMemoryAccessUsesHostPageTables`."""

    @property
    def is_coherent(self) -> bool:
        """Whether the device reads any host memory at full speed, so that nothing needs to be pinned."""
        return self.reads_pageable_memory and self.uses_host_page_tables


@dataclass(frozen=True, slots=True)
class Environment:
    """What the process's environment says about pinning, read once for each load."""

    is_pinning_disabled: bool = False
    is_uva_disabled: bool = False
    is_wsl_pinning_enabled: bool = False
    kernel_release: str = ""
    lockable: Room | None = None
    """Bytes that may still be locked; None is no limit."""

    @property
    def is_wsl(self) -> bool:
        """Whether the kernel is that of the Windows Subsystem for Linux."""
        return "microsoft" in self.kernel_release.lower()


def read_environment(
    variables: Mapping[str, str] | None = None, status: Path = Path("/proc/self/status")
) -> Environment:
    """Read the three variables, the kernel's name and the limit on locked memory.

    variables: the environment, `os.environ` by default. Raises InvalidArgument for a variable that is no integer.
    """
    found = os.environ if variables is None else variables
    return Environment(
        _flag(found, DISABLE_PIN_MEMORY),
        _flag(found, DISABLE_UVA),
        _flag(found, WSL2_ENABLE_PIN_MEMORY),
        os.uname().release,
        _lockable(status),
    )


@dataclass(frozen=True, slots=True)
class HostAccess:
    """How the device may use host memory on this machine."""

    attributes: DeviceAttributes
    environment: Environment

    def why_not_pinned(self, nbytes: int) -> str | None:
        """Say what keeps `nbytes` from being pinned and what to do about it; None when nothing does."""
        environment = self.environment
        if environment.is_pinning_disabled:
            return f"{DISABLE_PIN_MEMORY} is set"
        if environment.is_wsl and (reason := _why_not_on_wsl(environment)):
            return reason
        room = environment.lockable
        if room is not None and room.nbytes < nbytes:
            return (
                f"{room.source} allows {room.nbytes} bytes of the {nbytes} to be locked; raise it with ulimit -l "
                "(Docker: --ulimit memlock=-1)"
            )
        return None

    def why_not_in_place(self, nbytes: int) -> str | None:
        """Say what keeps the device from reading `nbytes` in place; None when nothing does."""
        attributes = self.attributes
        if self.environment.is_uva_disabled:
            return f"{DISABLE_UVA} is set"
        if attributes.is_coherent:
            return None
        if not attributes.can_map_host_memory:
            return "the device cannot map host memory (cudaDevAttrCanMapHostMemory is 0)"
        if not attributes.has_unified_addressing:
            return "the device has no unified addressing (cudaDevAttrUnifiedAddressing is 0)"
        return self.why_not_pinned(nbytes)


def _why_not_on_wsl(environment: Environment) -> str | None:
    release = environment.kernel_release
    if _version(release) < _WSL_KERNEL:
        return f"this is WSL with kernel {release}, and CUDA pins memory from kernel 4.19.121 on; run wsl --update"
    if not environment.is_wsl_pinning_enabled:
        return (
            f"this is WSL (kernel {release}), where pinned memory is limited to a part of the host's and fails late; "
            f"set {WSL2_ENABLE_PIN_MEMORY}=1 to pin all the same"
        )
    return None


def _flag(variables: Mapping[str, str], name: str) -> bool:
    text = variables.get(name, "0")
    try:
        return bool(int(text))
    except ValueError:
        raise InvalidArgument(f"environment variable {name} must be an integer, 0 or 1; found {text!r}") from None


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3])


def _lockable(status: Path) -> Room | None:
    """Bytes left under RLIMIT_MEMLOCK; None without a limit and for a process with CAP_IPC_LOCK, which has none."""
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if soft == resource.RLIM_INFINITY:
        return None
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    if int(fields.get("CapEff", "0"), 16) & _CAP_IPC_LOCK:
        return None
    locked = int(fields.get("VmLck", "0 kB").split()[0]) * 1024
    return Room(max(soft - locked, 0), "RLIMIT_MEMLOCK")
