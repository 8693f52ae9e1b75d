"""Answers that a grammar allows: JSON schema, JSON object, regular expression, choice or context-free grammar.

llguidance does the parsing; grammars are bounded by its limits, so a hostile one fails instead of running on.
"""

import json
from collections.abc import Callable, Sequence

import llguidance
import torch

from pyvllm.errors import GenerationError, InvalidArgument
from pyvllm.sampling_params import StructuredOutputsParams

#: Characters of a schema, expression or grammar.
MAX_GRAMMAR_CHARS = 256 * 1024
_LIMITS = llguidance.LLParserLimits(verbose_errors=False)


class Vocabulary:
    """The tokens of a model as llguidance wants them."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        special_token_ids: Sequence[int],
        eos_token_ids: Sequence[int],
        encode: Callable[[str], list[int]],
    ) -> None:
        """Take the bytes of every token, which of them are control tokens, and which end an answer."""
        self.tokens = list(tokens)
        self.special_token_ids = list(special_token_ids)
        self.eos_token_ids = list(eos_token_ids)
        self.eos_token_id = self.eos_token_ids[0]
        self.bos_token_id = None
        self._encode = encode
        wrapper = llguidance.TokenizerWrapper(self)
        self.backend = llguidance.LLTokenizer(wrapper, n_vocab=len(self.tokens), eos_token=self.eos_token_ids)

    def __call__(self, text: str) -> list[int]:
        """Tokenise text, as llguidance asks for forced strings."""
        return self._encode(text)


class StructuredOutput:
    """One request's grammar and how far its answer is in it."""

    def __init__(self, params: StructuredOutputsParams, vocabulary: Vocabulary) -> None:
        """Compile the grammar. Raises InvalidArgument naming the field, with the parser's reason."""
        field, text = params.given
        if len(text) > MAX_GRAMMAR_CHARS:
            raise InvalidArgument(
                f"structured output {field!r} has {len(text)} characters; at most {MAX_GRAMMAR_CHARS}"
            )
        try:
            grammar = llguidance.grammar_from(*_grammar(field, text))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise InvalidArgument(f"structured output {field!r} cannot be compiled: {error}") from error
        self._matcher = llguidance.LLMatcher(vocabulary.backend, grammar, log_level=0, limits=_LIMITS)
        if self._matcher.is_error():
            raise InvalidArgument(f"structured output {field!r} cannot be compiled: {self._matcher.get_error()}")
        self._bits = torch.zeros((len(vocabulary.tokens) + 31) // 32, dtype=torch.int32)

    @property
    def is_complete(self) -> bool:
        """Whether nothing but the end may follow."""
        return bool(self._matcher.is_stopped())

    def mask(self, scores: torch.Tensor) -> None:
        """Make what the grammar does not allow next impossible, in scores [V] float32. Raises GenerationError."""
        self._matcher.unsafe_compute_mask_ptr(self._bits.data_ptr(), self._bits.nbytes)
        if self._matcher.is_error():
            raise GenerationError(f"the structured output cannot go on: {self._matcher.get_error()}")
        bits = self._bits.view(torch.uint8)[:, None].bitwise_and(_BIT).ne(0).view(-1)
        known = min(bits.numel(), scores.numel())
        scores[:known].masked_fill_(~bits[:known].to(scores.device), float("-inf"))
        scores[known:] = float("-inf")

    def accept(self, token_id: int) -> None:
        """Move on by the chosen token. Raises GenerationError if the grammar does not allow it."""
        if not self._matcher.consume_token(token_id):
            raise GenerationError(f"the structured output does not allow token {token_id}: {self._matcher.get_error()}")


_BIT = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)


def _grammar(field: str, text: str) -> tuple[llguidance.GrammarFormat, str]:
    if field == "json_object":
        return "json_schema", json.dumps({"type": "object"})
    formats: dict[str, llguidance.GrammarFormat] = {
        "json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar",
    }  # fmt: skip
    return formats[field], text
