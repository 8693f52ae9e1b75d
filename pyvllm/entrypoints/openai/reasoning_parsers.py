"""Reasoning parsers: which part of an answer is thought, and which is said.

Formats as the models write them and vLLM's parsers of the same names read them: `<think>` thought `</think>` answer.
DeepSeek R1 thinks from its first token, whether it writes `<think>` or its template did; Qwen3 thinks only after
`<think>`. A prompt that ends inside a thought, or after an empty one, says so for both.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyvllm.entrypoints.openai.tags import held_back
from pyvllm.errors import InvalidArgument

START, END = "<think>", "</think>"
_STARTED = re.compile(rf"\s*{START}")


@dataclass(frozen=True, slots=True)
class Split:
    """A piece of an answer."""

    reasoning: str = ""
    content: str = ""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """How a family of models thinks."""

    thinks_unasked: bool
    """Whether an answer without `<think>` begins with thought."""

    def parser(self, prompt: str) -> "ReasoningParser":
        """Make the parser of one answer. prompt: the rendered conversation, whose end may open or close a thought."""
        opened, closed = prompt.rfind(START), prompt.rfind(END)
        tail = prompt[max(opened, closed) :].partition(">")[2]
        # Only a tag that nothing but white space follows is the generation prompt's; others are of earlier messages.
        if max(opened, closed) < 0 or tail.strip():
            return ReasoningParser(self.thinks_unasked)
        return ReasoningParser(opened > closed, is_over=closed > opened)

    def split(self, text: str, prompt: str = "") -> Split:
        """Split a whole answer."""
        parser = self.parser(prompt)
        if parser.is_over:
            return Split(content=text)
        started = _STARTED.match(text)
        if not started and not parser.thinks:
            return Split(content=text)
        reasoning, _, content = text[started.end() if started else 0 :].partition(END)
        return Split(reasoning, content)


class ReasoningParser:
    """Splits one answer that comes in parts. All pieces together are what `ReasoningFormat.split` gives."""

    def __init__(self, thinks: bool, is_over: bool = False) -> None:
        """thinks: whether an answer without `<think>` begins with thought. is_over: whether there is no thought."""
        self.thinks = thinks
        self.is_over = is_over
        self._is_begun = is_over
        self._held = ""

    def push(self, text: str) -> Split:
        """Take more text and give what is certain."""
        if self.is_over:
            return Split(content=text)
        self._held += text
        if not self._is_begun and not self._begin():
            return Split()
        return self._go_on()

    def finish(self) -> Split:
        """Give what was held back."""
        held, self._held = self._held, ""
        return Split(reasoning=held) if self.thinks and not self.is_over else Split(content=held)

    def _begin(self) -> bool:
        """Decide whether the answer begins with `<think>`; false when more text is needed."""
        bare = self._held.lstrip()
        if bare.startswith(START):
            self._held = bare[len(START) :]
            self.thinks = True
        elif START.startswith(bare):
            return False
        self._is_begun = True
        self.is_over = not self.thinks
        return True

    def _go_on(self) -> Split:
        if self.is_over:
            return self._release("")
        reasoning, tag, content = self._held.partition(END)
        if tag:
            self.is_over, self._held = True, content
            return self._release(reasoning)
        cut = len(self._held) - held_back(self._held, END)
        reasoning, self._held = self._held[:cut], self._held[cut:]
        return Split(reasoning=reasoning)

    def _release(self, reasoning: str) -> Split:
        content, self._held = self._held, ""
        return Split(reasoning, content)


REASONING_PARSERS: Mapping[str, ReasoningFormat] = {
    "deepseek_r1": ReasoningFormat(thinks_unasked=True),
    "qwen3": ReasoningFormat(thinks_unasked=False),
}


def reasoning_format(name: str | None) -> ReasoningFormat | None:
    """Find a parser by name; None for no name. Raises InvalidArgument for one that is not known."""
    if not name:
        return None
    if name not in REASONING_PARSERS:
        raise InvalidArgument(
            f"reasoning_parser {name!r} is not known; known are {', '.join(sorted(REASONING_PARSERS))}"
        )
    return REASONING_PARSERS[name]
