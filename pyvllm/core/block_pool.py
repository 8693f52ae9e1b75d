"""The blocks of the key-value cache: which are free, who shares which, and which hold a known prefix."""

from collections import OrderedDict
from collections.abc import Iterable


class BlockPool:
    """Hands out block ids. A block that nobody uses keeps its content, and its hash, until it is needed again."""

    def __init__(self, num_blocks: int) -> None:
        """Start with every block free and unknown."""
        self.num_blocks = num_blocks
        self._references = [0] * num_blocks
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}
        # Free blocks in the order in which they are given out: those that have been free longest come first.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))

    @property
    def num_free_blocks(self) -> int:
        """Blocks that nobody uses, cached ones included."""
        return len(self._free)

    def allocate(self, count: int) -> list[int]:
        """Give out `count` blocks, forgetting what they held. Raises ValueError if fewer are free."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks were asked for and {len(self._free)} are free")
        blocks = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._references[block] = 1
            blocks.append(block)
        return blocks

    def share(self, blocks: Iterable[int]) -> None:
        """Count one more user of each block."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def free(self, blocks: Iterable[int]) -> None:
        """Count one user of each block less. The first of `blocks` will be given out last."""
        for block in reversed(list(blocks)):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None

    def is_free(self, block: int) -> bool:
        """Whether nobody uses the block."""
        return self._references[block] == 0

    def remember(self, block: int, block_hash: bytes) -> None:
        """Make a full block findable by its hash; the first block of a hash stays."""
        if block_hash not in self._block_of and block not in self._hash_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def find(self, block_hash: bytes) -> int | None:
        """Give the block that holds the hash's tokens, or None."""
        return self._block_of.get(block_hash)

    def _forget(self, block: int) -> None:
        known = self._hash_of.pop(block, None)
        if known is not None:
            del self._block_of[known]
