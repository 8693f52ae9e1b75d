"""Which weights of a quantised checkpoint stay in the blocks in which they are stored. No torch."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from pyvllm.config.model import DTYPE_BYTES, WeightSpec
from pyvllm.layers.kernel_library import MAX_PARTS
from pyvllm.model_loader.tensor_info import TensorInfo


def keep_stored(specs: Sequence[WeightSpec], tensors: Mapping[str, TensorInfo]) -> list[WeightSpec]:
    """Give the weights with those that can stay quantised marked so; the others are expanded to their dtype.

    A weight stays if all of its sources are quantised and it is a matrix of no more parts of unlike types than the
    kernels take, or a stack of experts in one type. A row is whole blocks, as GGUF demands, so rows can be put below
    each other, moved and looked up without being opened.
    """
    return [_kept(spec, tensors) if _can_stay(spec, tensors) else spec for spec in specs]


def expansion(specs: Sequence[WeightSpec], tensors: Mapping[str, TensorInfo]) -> tuple[int, int]:
    """Sum the quantised tensors that are expanded: their stored bytes, and the bytes that they become."""
    stored = expanded = 0
    for spec in specs:
        for source in spec.sources:
            info = tensors[source.tensor]
            if info.is_quantised and not spec.is_stored:
                stored += info.nbytes
                expanded += info.numel * DTYPE_BYTES[spec.dtype]
    return stored, expanded


def _can_stay(spec: WeightSpec, tensors: Mapping[str, TensorInfo]) -> bool:
    infos = [tensors[source.tensor] for source in spec.sources]
    if len(spec.shape) < 2 or not all(info.is_quantised for info in infos):
        return False
    kinds = [info.stored_type for info in infos]
    num_parts = 1 + sum(a != b for a, b in pairwise(kinds))
    return num_parts <= (1 if spec.num_experts else MAX_PARTS)


def _kept(spec: WeightSpec, tensors: Mapping[str, TensorInfo]) -> WeightSpec:
    infos = [tensors[source.tensor] for source in spec.sources]
    sources = tuple(
        replace(source, stored_type=info.stored_type, stored_bytes=info.nbytes)
        for source, info in zip(spec.sources, infos, strict=True)
    )
    kinds = [info.stored_type for info in infos]
    return replace(spec, dtype=kinds[0] if len(set(kinds)) == 1 else "+".join(kinds), sources=sources)
