"""From the tokens of one answer to its text: when it ends, and what may already be shown."""

from collections.abc import Sequence

from pyvllm.errors import GenerationError
from pyvllm.sampling_params import SamplingParams
from pyvllm.tokenizer.tokenizer import Tokenizer


class OutputProcessor:
    """Follow one answer token by token.

    The texts that `push` and `flush` return, one after the other, are the answer's text: well-formed UTF-8, without
    special tokens, ending before a stop string or, if the request keeps it, after it. Each token costs the same,
    however long the answer is.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        eos_token_ids: frozenset[int],
        prompt_token_ids: Sequence[int] | None = None,
    ) -> None:
        """Begin an answer.

        prompt_token_ids: if given and without text, the answer begins the text, otherwise it goes on after the prompt;
        the difference is the space that a SentencePiece decoder takes off the start of a text, as in vLLM.
        """
        shown = prompt_token_ids is None or any(tokenizer.piece(token_id) for token_id in prompt_token_ids)
        self._detokenizer = tokenizer.detokenizer(continuation=shown)
        self._stop = _StopStrings(params.stop, keeps=params.include_stop_str_in_output)
        self._keeps_stop = params.include_stop_str_in_output
        self._max_tokens = params.max_tokens
        self._min_tokens = params.min_tokens
        self._end_token_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_token_ids)
        self._shown: list[str] = []
        self._flushed = False
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        """None while the answer goes on; "stop" after an end token or a stop string; "length" after max_tokens."""

    @property
    def text(self) -> str:
        """All the text returned so far."""
        return "".join(self._shown)

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that may be shown now, or all that is left if it ends the answer.

        An end token is one of `token_ids` but no part of the text, unless the request keeps it. Raises GenerationError
        after the answer ended.
        """
        if self.finish_reason is not None or self._flushed:
            raise GenerationError(f"token {token_id} came after the answer had ended ({self.finish_reason})")
        self.token_ids.append(token_id)
        if token_id in self._end_token_ids:
            self.finish_reason = "stop"
            text = self._show(self._stop.push(self._detokenizer.push(token_id))) if self._keeps_stop else ""
            return text + self.flush()
        text = self._detokenizer.push(token_id)
        # Text of the first min_tokens tokens cannot end the answer, as in vLLM.
        if len(self.token_ids) > self._min_tokens:
            text = self._stop.push(text)
        text = self._show(text)
        if self._stop.matched is None and len(self.token_ids) >= self._max_tokens:
            self.finish_reason = "length"
            return text + self.flush()
        return text

    def flush(self) -> str:
        """Return the text that was held back; call it when the answer ends for a reason that `push` cannot see.

        A character that was begun becomes U+FFFD. Nothing is left for a second call.
        """
        if self._flushed or self._stop.matched is not None:
            return ""
        self._flushed = True
        text = self._stop.push(self._detokenizer.finish())
        return self._show(text + self._stop.finish())

    def _show(self, text: str) -> str:
        if self._stop.matched is not None:
            self.finish_reason = "stop"
        if text:
            self._shown.append(text)
        return text


class _StopStrings:
    """Cut a text that comes in parts before the first stop string that is complete in it.

    "First" is the one that ends first; of those that end at the same character, the longest. This does not depend on
    how the text is cut into parts. Each stop string is followed by the automaton of Knuth, Morris and Pratt (1977), so
    a character costs constant time, and exactly the characters that may still begin a stop string are held back.
    """

    def __init__(self, stops: Sequence[str], *, keeps: bool = False) -> None:
        """keeps: whether to cut after the stop string instead."""
        self._keeps = keeps
        self._automata = [_Automaton(stop) for stop in stops]
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str) -> str:
        """Take more text and return what may be shown; `matched` is set once a stop string is complete."""
        if not self._automata or not text or self.matched is not None:
            return "" if self.matched is not None else text
        for i, character in enumerate(text):
            complete = [automaton.pattern for automaton in self._automata if automaton.step(character)]
            if complete:
                self.matched = max(complete, key=len)
                before = self._held + text[: i + 1]
                self._held = ""
                return before if self._keeps else before[: len(before) - len(self.matched)]
        self._held += text
        return self._release(max(automaton.state for automaton in self._automata))

    def finish(self) -> str:
        """Return what was held back."""
        return self._release(0)

    def _release(self, keep: int) -> str:
        cut = len(self._held) - keep
        released, self._held = self._held[:cut], self._held[cut:]
        return released


class _Automaton:
    """How many characters of one pattern the text so far ends with."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.state = 0
        # border[n]: length of the longest proper prefix of pattern[:n] that is also its suffix.
        self._border = [0, 0]
        state = 0
        for character in pattern[1:]:
            state = self._next(state, character)
            self._border.append(state)

    def step(self, character: str) -> bool:
        """Take one character; true if the pattern is complete with it."""
        if self.state == len(self.pattern):
            self.state = self._border[self.state]
        self.state = self._next(self.state, character)
        return self.state == len(self.pattern)

    def _next(self, state: int, character: str) -> int:
        while state and self.pattern[state] != character:
            state = self._border[state]
        return state + 1 if self.pattern[state] == character else state
