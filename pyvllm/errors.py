"""The exceptions of pyvllm and the C status each one becomes.

`include/vllm.h` repeats the numbers; a test holds the two together.
"""

from enum import IntEnum


class Status(IntEnum):
    """`vllm_status` of the C API."""

    OK = 0
    INVALID_ARGUMENT = 1
    MODEL_LOAD = 2
    RUNTIME = 3
    UNKNOWN = 4


class VllmError(Exception):
    """Base of everything that pyvllm raises on purpose."""

    status = Status.UNKNOWN


class InvalidArgument(VllmError, ValueError):
    """A bad argument, an unsupported field, a bad configuration, an offload that can free nothing."""

    status = Status.INVALID_ARGUMENT


class ModelLoadError(VllmError):
    """A model that cannot be loaded: path, file, architecture, device, room, or a defect of its loader."""

    status = Status.MODEL_LOAD


class FormatError(ModelLoadError):
    """A file that breaks a rule of its format; the text names file, tensor or key, and rule."""


class DoesNotFit(ModelLoadError):
    """The device or the host has not the room; the text gives needed and available bytes."""


class LoaderDefect(ModelLoadError):
    """An architecture's loader did not do what the plan said."""


class GenerationError(VllmError):
    """Generation failed, or the engine cannot run it now."""

    status = Status.RUNTIME


class Cancelled(VllmError):
    """The caller stopped a load."""

    status = Status.RUNTIME
