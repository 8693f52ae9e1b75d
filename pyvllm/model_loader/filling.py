"""Brings the values of a checkpoint to the weights' memory with several reader threads.

Host memory is filled straight from the file. Device memory that the CPU cannot write is filled through a piece of
host memory for each reader, so that one piece is copied while others are read.
"""

import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

import torch

from pyvllm.config.model import WeightSpec
from pyvllm.memory.base import Memory, Staging
from pyvllm.model_loader.checkpoint import Checkpoint
from pyvllm.model_loader.reader import block_elements, read_elements, read_stored, read_tensor
from pyvllm.model_loader.tensor_info import TensorInfo

#: Bytes of a weight that one reader brings at a time.
PIECE_BYTES = 16 * 2**20
#: Beyond this many readers a file is not read faster, and each costs a piece of host memory.
MAX_READERS = 4


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements of one tensor and the flat part of a weight that they fill."""

    info: TensorInfo
    first: int
    out: torch.Tensor
    is_stored: bool = False
    """Whether the bytes are kept as they are; `first` counts bytes then."""


class Filler:
    """Fills weights, one after the other, each with all readers at once."""

    def __init__(self, checkpoint: Checkpoint, memory: Memory, num_readers: int) -> None:
        """Start without threads; they come with the first weight of more than one piece."""
        self._checkpoint = checkpoint
        self._memory = memory
        self._num_readers = max(1, min(num_readers, MAX_READERS))
        self._readers: ThreadPoolExecutor | None = None
        self._stagings: list[Staging] = []
        self._free: queue.SimpleQueue[Staging] = queue.SimpleQueue()

    def fill(self, spec: WeightSpec, out: torch.Tensor, *, is_on_device: bool) -> None:
        """Fill a weight's tensor of its shape and dtype. Raises FormatError for a file that ends early."""
        if spec.is_stored:
            pieces = list(self._stored_pieces(spec, out))
        else:
            pieces = list(self._pieces(spec, out.view(-1, spec.shape[-1]) if len(spec.shape) > 1 else out))
        work = self._bring
        if is_on_device and self._has_stagings(max((piece.out.nbytes for piece in pieces), default=0)):
            work = self._bring_through_staging
        if len(pieces) == 1 or self._num_readers == 1:
            for piece in pieces:
                work(piece)
            return
        if self._readers is None:
            self._readers = ThreadPoolExecutor(self._num_readers, thread_name_prefix="vllm-load")
        futures = [self._readers.submit(work, piece) for piece in pieces]
        # All have ended before one's error goes on: whoever hears of it closes the files.
        wait(futures)
        for future in futures:
            future.result()

    def close(self) -> None:
        """End the readers and give their host memory back."""
        if self._readers is not None:
            self._readers.shutdown(cancel_futures=True)
            self._readers = None
        self._close_stagings()

    def _pieces(self, spec: WeightSpec, rows: torch.Tensor) -> Iterator[_Piece]:
        for source in spec.sources:
            info = self._checkpoint.tensors[source.tensor]
            flat = rows[source.first_row : source.first_row + source.num_rows].view(-1)
            # Rows in rotary order are moved on the way, and what cannot be read is refused as a whole.
            if not info.is_readable or info.rope_heads or flat.nbytes <= PIECE_BYTES:
                yield _Piece(info, 0, flat)
                continue
            block = block_elements(info)
            step = PIECE_BYTES // flat.itemsize // block * block
            for first in range(0, flat.numel(), step):
                yield _Piece(info, first, flat[first : first + step])

    def _stored_pieces(self, spec: WeightSpec, out: torch.Tensor) -> Iterator[_Piece]:
        wholes = torch.split(out, [source.stored_bytes for source in spec.sources])
        for source, whole in zip(spec.sources, wholes, strict=True):
            info = self._checkpoint.tensors[source.tensor]
            step = max(1, whole.nbytes) if info.rope_heads else PIECE_BYTES
            for first in range(0, whole.nbytes, step):
                yield _Piece(info, first, whole[first : first + step], is_stored=True)

    @torch.inference_mode()
    def _bring(self, piece: _Piece) -> None:
        if piece.is_stored:
            read_stored(self._checkpoint, piece.info, piece.first, piece.out)
        elif piece.out.numel() == piece.info.numel:
            read_tensor(self._checkpoint, piece.info, piece.out.view(piece.info.shape))
        else:
            read_elements(self._checkpoint, piece.info, piece.first, piece.out)

    @torch.inference_mode()
    def _bring_through_staging(self, piece: _Piece) -> None:
        if not piece.out.nbytes:
            return
        staging = self._free.get()
        try:
            host = staging.tensor[: piece.out.nbytes].view(piece.out.dtype)
            self._bring(replace(piece, out=host))
            staging.send(piece.out.view(torch.uint8))
        finally:
            self._free.put(staging)

    def _has_stagings(self, nbytes: int) -> bool:
        """Have host memory for a piece of that size for every reader; false where the CPU writes the device itself."""
        if self._stagings and self._stagings[0].tensor.nbytes >= nbytes:
            return True
        self._close_stagings()
        for _ in range(self._num_readers):
            staging = self._memory.staging(max(nbytes, 1))
            if staging is None:
                return False
            self._stagings.append(staging)
            self._free.put(staging)
        return True

    def _close_stagings(self) -> None:
        while self._stagings:
            self._free.get().close()
            self._stagings.pop()
