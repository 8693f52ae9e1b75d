"""Host weights on their way to many rows: how much device memory that needs.

A kernel that computes one row, or a few, reads each byte of a weight once, straight from host memory. One that
computes many rows reads a weight again for every tile of rows, and each time would be a trip across the bus. So for
such a step the weight is copied once into a buffer that all weights share, and computed with from there.
"""

from collections.abc import Iterable

from pyvllm.config.model import WeightSpec

#: Rows up to which a matrix is read in place: no matrix kernel has smaller tiles.
#: Source: cublasLtMatmulTile_t, whose smallest tiles are 8 x 8.
IN_PLACE_ROWS = 8
MATRIX, VECTOR = "staging of matrices", "staging of vectors"


def staging_sizes(host_specs: Iterable[WeightSpec]) -> dict[str, int]:
    """Give the bytes of the two staging buffers for these host weights, 0 where none is needed.

    A matrix and its bias are staged together, hence two. A stack of experts is staged an expert at a time. An
    embedding that is not also a head needs none: only the rows of its tokens are read.
    """
    sizes = {MATRIX: 0, VECTOR: 0}
    for spec in host_specs:
        if spec.kind == "embedding" and not spec.aliases:
            continue
        name = MATRIX if len(spec.shape) > 1 else VECTOR
        sizes[name] = max(sizes[name], spec.nbytes // max(spec.num_experts, 1))
    return sizes
