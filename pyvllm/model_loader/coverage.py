"""Whether a checkpoint's tensors are exactly what an architecture's weights need."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from pyvllm.config.model import WeightSpec
from pyvllm.errors import ModelLoadError
from pyvllm.model_loader.checkpoint import TensorInfo

#: How many names a text lists before it only counts.
_NAMES = 3


def check_tensors(
    origin: str, specs: Sequence[WeightSpec], tensors: Mapping[str, TensorInfo], known_extras: Sequence[str]
) -> tuple[int, list[str]]:
    """Hold the checkpoint against the weights, from headers alone.

    origin: what to call the checkpoint. known_extras: patterns of tensors that may be left unread in silence.
    Returns the stored bytes of the tensors that fill weights, and notes about tensors that no weight uses. Raises
    ModelLoadError for a missing tensor, a wrong shape, or a tied head that has not the embedding's shape.
    """
    needed = {source.tensor: source.shape for spec in specs for source in spec.sources}
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise ModelLoadError(
            f"{origin}: {len(missing)} of {len(needed)} tensors are missing: {_listed(missing)}; the checkpoint is "
            "incomplete, "
            "or its names have another prefix"
        )
    for name, shape in needed.items():
        _check_shape(origin, name, tensors[name].shape, shape)
        if not tensors[name].is_readable:
            raise ModelLoadError(
                f"{origin}: tensor {name!r} is stored as {tensors[name].stored_type}, which holds no weights"
            )
    for spec in specs:
        for alias in spec.aliases:
            if alias in tensors:
                _check_shape(origin, alias, tensors[alias].shape, spec.shape)
    unread = [
        name for name in tensors if name not in needed and not any(fnmatchcase(name, extra) for extra in known_extras)
    ]
    notes = (
        [f"{origin}: {len(unread)} tensors are used by no weight and are not read: {_listed(unread)}"] if unread else []
    )
    return sum(tensors[name].nbytes for name in needed), notes


def _check_shape(origin: str, name: str, found: Sequence[int], wanted: Sequence[int]) -> None:
    if tuple(found) != tuple(wanted):
        raise ModelLoadError(
            f"{origin}: tensor {name!r} has shape {list(found)}, the configuration needs {list(wanted)}"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES} more"
