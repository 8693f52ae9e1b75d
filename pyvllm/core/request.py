"""A request as the scheduler sees it: tokens, how many of them are computed, and the blocks that hold their cache."""

from dataclasses import dataclass, field
from enum import Enum

from pyvllm.sampling_params import SamplingParams


class RequestStatus(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    """Not in the batch: new, or preempted and to be computed again."""
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(eq=False, slots=True)
class Request:
    """One prompt and its answer so far. Only the engine thread changes it."""

    request_id: int
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0
    """Smaller is served earlier under the `priority` policy."""
    needs_hidden: bool = False
    """Whether the last hidden state is wanted instead of a next token."""
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    """Tokens whose keys and values are in the cache."""
    block_ids: list[int] = field(default_factory=list)
    block_hashes: list[bytes] = field(default_factory=list)
    """Hashes of the full blocks, as far as they were needed so far."""
    status: RequestStatus = RequestStatus.WAITING
    num_cached_tokens: int = 0
    """Tokens that the prefix cache gave at the last admission."""
    num_preemptions: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that a step still has to compute before the next token can be chosen."""
        return self.num_tokens - self.num_computed_tokens

    def token_ids(self, start: int, end: int) -> list[int]:
        """Give the tokens from `start` to `end` of prompt and answer together."""
        prompt = self.prompt_token_ids
        if start >= len(prompt):
            return self.output_token_ids[start - len(prompt) : end - len(prompt)]
        return prompt[start:end] + self.output_token_ids[: max(0, end - len(prompt))]
