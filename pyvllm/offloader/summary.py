"""A plan in sums: by layer, by kind of weight, over the bus, and what stayed on the device and why.

Everything here is counted from placements; where a weight goes is decided elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pyvllm.config.model import WeightSpec
from pyvllm.offloader.base import Place, Placement

#: Kinds of weight in the order in which tables show them.
KINDS = ("attention", "dense", "experts", "embedding", "head", "norm", "other")
#: Bytes of the GB in a bandwidth. Bandwidths are decimal, unlike `cpu_offload_gb`, which is GiB.
GB = 10**9


def expected_bytes(spec: WeightSpec) -> int:
    """Bytes of a weight that one token is expected to use: its routed experts, its row of the embedding, else all."""
    if spec.num_experts:
        return spec.nbytes * spec.experts_per_token // spec.num_experts
    if spec.kind == "embedding" and not spec.aliases:
        return spec.nbytes // spec.shape[0]
    return spec.nbytes


def _crossing(item: Placement) -> tuple[int, int]:
    """Bytes of a weight that cross the bus for one token: at most, and expected."""
    if item.place is Place.DEVICE:
        return 0, 0
    return item.nbytes, item.nbytes if item.place is Place.STREAMED else expected_bytes(item.spec)


def bus_bytes_per_token(placements: Iterable[Placement]) -> dict[str, int]:
    """Bytes that cross from host to device for one token.

    `worst` moves whole weights; `expected` only the routed experts and the looked-up embedding row of weights that are
    read in place. What is streamed is copied whole either way.
    """
    worst = expected = 0
    for item in placements:
        most, likely = _crossing(item)
        worst, expected = worst + most, expected + likely
    return {"worst": worst, "expected": expected}


class InPlaceReads:
    """How many bytes of the weights that are read in host memory a step reads, at most."""

    def __init__(self, placements: Iterable[Placement]) -> None:
        """Sort the weights into those that are read whole and those of which each token reads a part."""
        host = [item.spec for item in placements if item.place is Place.HOST]
        sizes = Counter((spec.nbytes, expected_bytes(spec)) for spec in host)
        self._whole = sum(count * nbytes for (nbytes, part), count in sizes.items() if part == nbytes)
        self._parts = [(count, *size) for size, count in sizes.items() if size[0] != size[1]]

    def of_step(self, num_tokens: int) -> int:
        """Bytes that a step of that many tokens reads.

        Of one token it is what is read; several may share experts and rows of the embedding, which then count again, up
        to the whole weight.
        """
        return self._whole + sum(count * min(nbytes, num_tokens * part) for count, nbytes, part in self._parts)


def bus_fields(placements: Sequence[Placement]) -> dict[str, object]:
    """Split the bytes of one token into those of dense weights and those of experts.

    `experts_used` and `experts_of` are the k and the n of top-k of n; null where no expert crosses.
    """
    away = [item for item in placements if item.place is not Place.DEVICE]
    experts = [item for item in away if item.spec.num_experts]
    of_experts = bus_bytes_per_token(experts)
    return {
        "dense_bytes": bus_bytes_per_token(item for item in away if not item.spec.num_experts),
        "experts_bytes": of_experts,
        "experts_used": experts[0].spec.experts_per_token if experts else None,
        "experts_of": experts[0].spec.num_experts if experts else None,
        "gb_per_s": None,
        "tokens_per_s": None,
    }


def rate_bound(bytes_per_token: Mapping[str, int], gb_per_s: float) -> dict[str, float | None]:
    """Tokens a second that a bus allows one sequence at most; None where nothing crosses.

    bytes_per_token: `worst` and `expected`. gb_per_s: the bandwidth in 10**9 bytes a second.
    """
    return {name: gb_per_s * GB / nbytes if nbytes else None for name, nbytes in bytes_per_token.items()}


def by_layer(placements: Sequence[Placement]) -> list[dict[str, object]]:
    """Sum each decoder layer, first to last, and then what is outside the layers, under the layer None."""
    groups: dict[int | None, list[Placement]] = {}
    for item in placements:
        groups.setdefault(item.spec.layer, []).append(item)
    return [{"layer": layer, **_sums(items)} for layer, items in groups.items()]


def by_kind(placements: Sequence[Placement]) -> list[dict[str, object]]:
    """Sum each kind of weight that the model has, in the order of `KINDS`."""
    groups: dict[str, list[Placement]] = {kind: [] for kind in KINDS}
    for item in placements:
        groups.setdefault(item.spec.kind, []).append(item)
    return [{"kind": kind, "count": len(items), **_sums(items)} for kind, items in groups.items() if items]


def _sums(placements: Sequence[Placement]) -> dict[str, object]:
    places = dict.fromkeys(Place, 0)
    for item in placements:
        places[item.place] += item.nbytes
    return {
        **{f"{place.value}_bytes": nbytes for place, nbytes in places.items()},
        "bus_bytes_per_token": bus_bytes_per_token(placements),
    }


def not_selected(placements: Iterable[Placement]) -> list[dict[str, object]]:
    """Gather what stayed on the device, by the reason why."""
    groups: dict[str, list[Placement]] = {}
    for item in placements:
        if item.place is Place.DEVICE:
            groups.setdefault(item.why, []).append(item)
    return [
        {"why": why, "count": len(items), "bytes": sum(item.nbytes for item in items)} for why, items in groups.items()
    ]


def placement_fields(item: Placement) -> dict[str, object]:
    """Give one weight's entry in a document's `placements`."""
    spec = item.spec
    return {
        "name": spec.name,
        "aliases": list(spec.aliases),
        "place": item.place.value,
        "bytes": item.nbytes,
        "layer": spec.layer,
        "dtype": spec.dtype,
        "shape": list(spec.shape),
        "kind": spec.kind,
        "why": item.why,
    }
