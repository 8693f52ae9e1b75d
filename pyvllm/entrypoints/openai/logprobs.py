"""Log probabilities in OpenAI's two forms: a list of objects for chat, lists side by side for completions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyvllm.tokenizer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pyvllm.engine.engine_core import EngineRequest
    from pyvllm.sample.logprobs import TokenLogprobs

#: JSON has no infinity: what the model held impossible has this. Source: vLLM's `OpenAIServing`.
LOWEST = -9999.0

_Json = dict[str, object]


class LogprobsOf:
    """The log probabilities of one answer, part by part; None wherever the request did not ask for any."""

    def __init__(self, item: "EngineRequest", tokenizer: Tokenizer) -> None:
        """Begin an answer."""
        self._item = item
        self._tokenizer = tokenizer
        self._num_known = 0
        self._num_given = 0
        self._offset = 0

    def know(self, num_tokens: int) -> None:
        """Say how many tokens of the answer the next part may cover."""
        self._num_known = num_tokens

    def know_all(self) -> None:
        """Let the next part cover the rest of an answer that has ended."""
        self._num_known = len(self._item.logprobs)

    def for_chat(self) -> _Json | None:
        """Give chat's object for the tokens that no part had yet; None if there are none."""
        found = self._next()
        return {"content": [self._entry(token) for token in found]} if found else None

    def for_completion(self) -> _Json | None:
        """Give a completion's object for the tokens that no part had yet; None if there are none."""
        found = self._next()
        if not found:
            return None
        offsets, tokens = [], [self._text(token.token_id) for token in found]
        for text in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "text_offset": offsets,
            "token_logprobs": [_finite(token.logprob) for token in found],
            "tokens": tokens,
            "top_logprobs": [self._alternatives(token) for token in found],
        }

    def _next(self) -> Sequence["TokenLogprobs"]:
        found = self._item.logprobs[self._num_given : self._num_known]
        self._num_given += len(found)
        return found

    def _entry(self, token: "TokenLogprobs") -> _Json:
        top = [self._named(token_id, value) for token_id, value in token.top]
        return {**self._named(token.token_id, token.logprob), "top_logprobs": top}

    def _named(self, token_id: int, logprob: float) -> _Json:
        data = self._bytes(token_id)
        return {"token": data.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(data)}

    def _alternatives(self, token: "TokenLogprobs") -> dict[str, float]:
        """Give the chosen token and the most likely ones; of two with one text, which OpenAI's form has no room for,
        the first.
        """
        found: dict[str, float] = {}
        for token_id, value in ((token.token_id, token.logprob), *token.top):
            found.setdefault(self._text(token_id), _finite(value))
        return found

    def _text(self, token_id: int) -> str:
        return self._bytes(token_id).decode("utf-8", "replace")

    def _bytes(self, token_id: int) -> bytes:
        return self._tokenizer.piece(token_id, skip_special_tokens=False) or b""


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
