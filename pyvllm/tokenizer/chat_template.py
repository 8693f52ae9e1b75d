"""A model's chat template: from messages to the text that the model continues.

The template comes from the model's files, so it is rendered as something that nobody vouches for: in the environment of
`template_sandbox.py`, from capped and copied inputs, on a thread of its own that is stopped after a deadline.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar
from uuid import uuid4

from pyvllm.errors import FormatError, InvalidArgument, VllmError
from pyvllm.tokenizer.files import MAX_TEMPLATE_BYTES
from pyvllm.tokenizer.template_sandbox import Budget, HardenedEnvironment, RefusedByTemplate

MAX_MESSAGES = 1024
MAX_DEPTH = 64
#: The result may have this many characters for each token of max_model_len.
OUTPUT_CHARS_PER_TOKEN = 16
#: Names that a conversation, the model or the sandbox gives a meaning to; a request's own variables have others.
RESERVED = frozenset(
    (
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "bos_token", "eos_token",
        "namespace", "dict", "range", "raise_exception", "strftime_now", "self", "super", "caller", "loop", "varargs",
        "kwargs", "chat_template", "tokenize",
    )
)  # fmt: skip

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long a render may take."""

    cpu_s: float = 1.0
    """Seconds of computing."""
    wall_s: float = 10.0
    """Seconds in all, on a machine that is busy with other things."""


class _Expired(BaseException):
    """Raised inside a thread whose deadline is over. No template can catch it."""


class ChatTemplate:
    """A compiled template. Any thread may render, but not one that runs an event loop."""

    def __init__(
        self, source: str, tokens: Mapping[str, str], origin: str = "chat_template", deadline: Deadline | None = None
    ) -> None:
        """Compile.

        tokens: `bos_token` and `eos_token`, as far as the model has them. origin: what to call the template in errors.
        Raises FormatError for a template that is too long or that Jinja cannot compile.
        """
        if len(source.encode("utf-8", "surrogatepass")) > MAX_TEMPLATE_BYTES:
            raise FormatError(f"{origin}: the chat template has more than {MAX_TEMPLATE_BYTES} bytes")
        self._origin = origin
        self._source = source
        self._tokens = dict(tokens)
        self._deadline = deadline or Deadline()
        self._environment = HardenedEnvironment()
        try:
            self._template = _within(self._deadline, partial(self._environment.compiled, source), "compiling")
        except VllmError as error:
            raise FormatError(f"{origin}: {error}") from error
        except Exception as error:  # whatever Jinja or Python find wrong with somebody's template
            raise FormatError(f"{origin}: the chat template cannot be compiled: {_words(error)}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        max_model_len: int,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Give the prompt of a conversation.

        messages, tools, variables: as OpenAI and vLLM have them, of dicts, lists, texts, numbers, booleans and None.
        max_model_len: bounds the result. continue_final_message: end it inside the last message. variables: what else
        the template reads; check them first. Raises InvalidArgument for what the template, its bounds or its deadline
        refuse.
        """
        if continue_final_message:
            return self._begun(messages, max_model_len, tools, variables)
        _refuse_event_loop()
        if not 1 <= len(messages) <= MAX_MESSAGES:
            raise InvalidArgument(f"messages must hold 1 to {MAX_MESSAGES} messages, got {len(messages)}")
        copier = _Copier()
        names = {
            **self._tokens,
            **{name: copier.copy(value) for name, value in (variables or {}).items()},
            "messages": copier.copy(messages),
            "tools": copier.copy(tools) if tools else None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        chars = 2**20 + 16 * (len(self._source) + copier.chars)
        budget = Budget(chars, OUTPUT_CHARS_PER_TOKEN * max_model_len)
        call = partial(self._environment.rendered, self._template, names, budget)
        try:
            return _within(self._deadline, call, "rendering")
        except RefusedByTemplate as error:
            raise InvalidArgument(f"the model's chat template refuses these messages: {_words(error)}") from error
        except VllmError:
            raise
        except Exception as error:  # whatever a template's code can raise
            raise InvalidArgument(f"the model's chat template fails on these messages: {_words(error)}") from error

    def check_variables(self, names: Iterable[str]) -> None:
        """Raise InvalidArgument for a name that has a meaning already, and for one that the template never reads."""
        names = list(names)
        if not names:
            return
        _refuse_event_loop()
        found = _within(self._deadline, partial(self._environment.variables, self._source), "reading") - RESERVED
        for name in names:
            if name in RESERVED:
                raise InvalidArgument(f"{name!r} is a name that templates know already: it cannot be set")
            if name not in found:
                known = ", ".join(sorted(found))[:200] or "none"
                text = f"the model's chat template reads no variable {name[:80]!r}"
                raise InvalidArgument(f"{text}, so that it would say nothing; it reads: {known}")

    def _begun(
        self,
        messages: Sequence[Mapping[str, object]],
        max_model_len: int,
        tools: Sequence[Mapping[str, object]] | None,
        variables: Mapping[str, object] | None,
    ) -> str:
        """Give the prompt up to the end of the last message's content.

        The end is found by a mark that is put there. A template that trims contents trims the space after the mark too,
        and then what stood before the mark goes as well. Source: `apply_chat_template` of huggingface/transformers.
        """
        *before, last = messages or [{}]
        content = last.get("content")
        if not isinstance(content, str):
            raise InvalidArgument("continue_final_message needs a last message whose content is a text")
        mark = uuid4().hex
        marked = [*before, {**last, "content": f"{content}{mark} "}]
        text = self.render(marked, max_model_len, tools, add_generation_prompt=False, variables=variables)
        end = text.rfind(mark)
        if end < 0:
            raise InvalidArgument("continue_final_message: the chat template does not show the last message's content")
        return text[:end] if text.startswith(f"{mark} ", end) else text[:end].rstrip()


class _Copier:
    """Copies values into plain dicts, lists and texts, and counts characters."""

    def __init__(self) -> None:
        self.chars = 0

    def copy(self, value: object, depth: int = 0) -> object:
        """Copy. Raises InvalidArgument for another type, or for nesting beyond MAX_DEPTH."""
        if depth > MAX_DEPTH:
            raise InvalidArgument(f"messages or variables are nested more than {MAX_DEPTH} levels deep")
        self.chars += len(value) if isinstance(value, str) else 1
        if isinstance(value, Mapping):
            return {str(key): self.copy(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.copy(item, depth + 1) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, str):
            return str(value)
        raise InvalidArgument(f"messages and variables must be made of plain values, found {type(value).__name__}")


def _refuse_event_loop() -> None:
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise RuntimeError("a chat template must not be rendered on the thread of an event loop")


class _Task(threading.Thread, Generic[T]):
    """Runs one call to its end, its error, or the exception that is raised in it from outside."""

    def __init__(self, call: Callable[[], T]) -> None:
        super().__init__(name="vllm-template", daemon=True)
        self._call = call
        self._clock: int | None = None
        self.result: T | None = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Make the call."""
        try:
            # Asked for here: the id of a thread that has ended is no longer safe to ask with.
            self._clock = time.pthread_getcpuclockid(threading.get_ident())
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def cpu_s(self) -> float:
        """Seconds that the thread has computed."""
        try:
            return 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:
            return 0.0

    def expire(self) -> None:
        """Raise _Expired in the thread, at the next instruction of Python that it comes to."""
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(_Expired))


def _within(deadline: Deadline, call: Callable[[], T], what: str) -> T:
    """Make a call on a thread of its own, and stop it when its time is over. Raises what it raises."""
    task = _Task(call)
    task.start()
    end = time.monotonic() + deadline.wall_s
    task.join(deadline.cpu_s)
    while task.is_alive() and time.monotonic() < end and task.cpu_s() < deadline.cpu_s:
        task.join(0.02)
    if task.is_alive():
        task.expire()
        # A long operation of the C library ends when it ends; the thread is left to it.
        task.join(deadline.cpu_s)
        raise InvalidArgument(f"{what} the chat template takes longer than {deadline.cpu_s:g} s: it was stopped")
    if task.error is not None:
        raise task.error
    return task.result  # type: ignore[return-value]


def _words(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if not isinstance(error, RefusedByTemplate) else text[:300]
