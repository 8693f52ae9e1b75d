"""Host memory of a load, by weight: where allocating is slow, a region is allocated while the one before is filled."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import torch

from pyvllm.memory.base import Memory, pack


class HostRegions:
    """The host tensors of all weights that are off the device."""

    def __init__(self, memory: Memory) -> None:
        """Start with nothing."""
        self._memory = memory
        self._futures: dict[str, Future[dict[str, torch.Tensor]]] = {}
        self._tensors: dict[str, torch.Tensor] = {}

    def reserve(self, sizes: Mapping[str, int]) -> None:
        """Ask for everything, once; where allocating is slow, most of it is only promised yet.

        Raises DoesNotFit at once where the memory knows that it will not be enough.
        """
        memory = self._memory
        memory.expect_host(sum(sizes.values()))
        if not memory.allocates_slowly:
            self._tensors = memory.allocate("host", sizes)
            return
        # One thread, so that regions come in order and the first error keeps the later ones from being tried.
        thread = ThreadPoolExecutor(1, thread_name_prefix="vllm-pin")
        for offsets in pack(sizes):
            group = {name: sizes[name] for name in offsets}
            future = thread.submit(memory.allocate, "host", group)
            self._futures |= dict.fromkeys(group, future)
        thread.shutdown(wait=False)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Give a weight's flat uint8 tensor, waiting for its region. Raises DoesNotFit when the system refused it."""
        if name not in self._tensors:
            self._tensors |= self._futures[name].result()
        return self._tensors[name]

    def close(self) -> None:
        """Promise nothing more, and let go of what was allocated."""
        pending = set(self._futures.values())
        for future in pending:
            future.cancel()
        wait(pending)
        self._futures.clear()
        self._tensors.clear()
