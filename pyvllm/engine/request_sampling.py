"""Builds what a request chooses its tokens with."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyvllm.errors import InvalidArgument
from pyvllm.sample.adjust import LogitsAdjuster, LogitsProcessor
from pyvllm.sample.batch import RequestSampler
from pyvllm.sample.sampler import Sampler
from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams
from pyvllm.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pyvllm.sample.structured import StructuredOutput, Vocabulary


class SamplerFactory:
    """Makes the samplers of one model's requests; the vocabulary of grammars is built once, when first needed."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take the model's tokenizer."""
        self._tokenizer = tokenizer
        self._vocabulary: Vocabulary | None = None
        self._lock = threading.Lock()

    def make(
        self,
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        output_token_ids: list[int],
        processors: Sequence[LogitsProcessor] = (),
    ) -> RequestSampler:
        """Build a request's sampler. Raises InvalidArgument for a grammar that cannot be compiled.

        output_token_ids: the request's answer so far, a list that the engine extends.
        """
        adjuster = None
        if LogitsAdjuster.needed(params, processors):
            wanted = params.structured_outputs
            structured = self._structured_output(wanted) if wanted is not None else None
            eos = self._tokenizer.eos_token_ids
            adjuster = LogitsAdjuster(params, prompt_token_ids, eos, processors, structured)
        return RequestSampler(Sampler(params), adjuster, output_token_ids)

    def _structured_output(self, wanted: StructuredOutputsParams) -> "StructuredOutput":
        # Only here: it brings llguidance, which other requests do not need.
        from pyvllm.sample.structured import StructuredOutput, Vocabulary

        with self._lock:
            if self._vocabulary is None:
                self._vocabulary = _vocabulary(self._tokenizer, Vocabulary)
            vocabulary = self._vocabulary
        return StructuredOutput(wanted, vocabulary)


def _vocabulary(tokenizer: Tokenizer, kind: "type[Vocabulary]") -> "Vocabulary":
    eos = sorted(tokenizer.eos_token_ids)
    if not eos:
        raise InvalidArgument("structured output needs an end-of-sequence token, and this model's tokenizer names none")
    pieces = [tokenizer.piece(token_id) for token_id in range(tokenizer.num_ids)]
    # Special tokens, and ids without a token, have no text of their own and are never part of a structured answer.
    special = [token_id for token_id, piece in enumerate(pieces) if not piece]
    return kind([piece or b"" for piece in pieces], special, eos, tokenizer.encode)
