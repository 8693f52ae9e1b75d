"""Gives requests the cache blocks they need, shares blocks of equal prefixes, and takes blocks back."""

from array import array
from hashlib import blake2b

from pyvllm.core.block_pool import BlockPool
from pyvllm.core.request import Request


class KVCacheManager:
    """The block tables of all requests."""

    def __init__(self, num_blocks: int, block_size: int, enable_caching: bool) -> None:
        """Start empty. block_size: tokens of a block. enable_caching: whether equal prefixes share blocks."""
        self.block_size = block_size
        self.block_pool = BlockPool(num_blocks)
        self._enable_caching = enable_caching

    @property
    def usage(self) -> float:
        """Fraction of the blocks that requests use."""
        return 1 - self.block_pool.num_free_blocks / self.block_pool.num_blocks

    def num_cached_tokens(self, request: Request) -> int:
        """Tokens at the start of a request that the cache holds, always leaving at least one to compute."""
        return len(self._cached_blocks(request)) * self.block_size

    def admit(self, request: Request) -> None:
        """Give a request that has no blocks those of its longest cached prefix."""
        blocks = self._cached_blocks(request)
        self.block_pool.share(blocks)
        request.block_ids = list(blocks)
        request.num_computed_tokens = request.num_cached_tokens = len(blocks) * self.block_size

    def allocate_slots(self, request: Request, num_new_tokens: int) -> bool:
        """Extend a request's table so that `num_new_tokens` more tokens can be computed; false if blocks are short."""
        tokens = request.num_computed_tokens + num_new_tokens
        missing = -(-tokens // self.block_size) - len(request.block_ids)
        if missing > self.block_pool.num_free_blocks:
            return False
        if missing > 0:
            request.block_ids += self.block_pool.allocate(missing)
        return True

    def commit(self, request: Request, num_new_tokens: int) -> None:
        """Count tokens as computed, and make the blocks that became full findable."""
        before = request.num_computed_tokens // self.block_size
        request.num_computed_tokens += num_new_tokens
        if self._enable_caching:
            for index in range(before, request.num_computed_tokens // self.block_size):
                self.block_pool.remember(request.block_ids[index], self._hash(request, index))

    def free(self, request: Request) -> None:
        """Take a request's blocks back; what is computed stays findable until the blocks are needed."""
        self.block_pool.free(request.block_ids)
        request.block_ids = []
        request.num_computed_tokens = 0

    def _cached_blocks(self, request: Request) -> list[int]:
        blocks: list[int] = []
        if self._enable_caching:
            for index in range((request.num_tokens - 1) // self.block_size):
                block = self.block_pool.find(self._hash(request, index))
                if block is None:
                    break
                blocks.append(block)
        return blocks

    def _hash(self, request: Request, index: int) -> bytes:
        """Hash a block's tokens together with everything before them, so equal hashes mean equal prefixes."""
        hashes = request.block_hashes
        while len(hashes) <= index:
            start = len(hashes) * self.block_size
            tokens = array("q", request.token_ids(start, start + self.block_size)).tobytes()
            hashes.append(blake2b(tokens, digest_size=16, key=hashes[-1] if hashes else b"").digest())
        return hashes[index]
