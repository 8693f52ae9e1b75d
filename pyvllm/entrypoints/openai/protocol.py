"""The bodies of `/v1/completions`: what a request may say, what it becomes, and the objects sent back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyvllm.entrypoints.openai import fields as read
from pyvllm.entrypoints.openai.fields import ApiError, bad_request, shown
from pyvllm.sampling_params import MAX_LOGPROBS, SamplingParams

__all__ = ["NEUTRAL", "ApiError", "Choice", "CompletionRequest", "bad_request", "completion_body", "parse_completion"]

MAX_PROMPTS = 2048

#: Fields that vLLM serves and this server does not yet, with the values that ask for nothing (null always is one).
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **read.NEUTRAL,
    "echo": (False,),
    "suffix": (),
    "add_special_tokens": (True,),
    "prompt_embeds": (),
}

_ACTING = (
    *read.SAMPLING, *read.LABELS, "model", "prompt", "max_tokens", "n", "best_of", "stream", "stream_options",
    "priority", "logprobs",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A checked request."""

    model: str | None
    prompts: tuple[str | tuple[int, ...], ...]
    """Each text or token ids."""
    params: SamplingParams
    n: int
    """Answers for each prompt."""
    structured_param: str
    """The field that says what the answer must look like."""
    stream: bool
    include_usage: bool
    """Whether the stream ends with the usage."""
    priority: int
    unknown: tuple[str, ...]
    """Names of fields that nobody knows and that were passed over."""

    def answer_params(self, index: int) -> SamplingParams:
        """Sampling of the index-th answer to a prompt: its seed is `seed + index`, as in vLLM."""
        return read.answer_params(self.params, index)


def parse_completion(body: bytes, max_model_len: int, scheduling_policy: str = "fcfs") -> CompletionRequest:
    """Check the body of a request.

    Raises ApiError naming the bad field in `param`.
    """
    fields = read.read_object(body)
    read.refuse_unless_neutral(fields, NEUTRAL)
    max_tokens = read.integer(fields, "max_tokens", min(16, max_model_len), 1, max_model_len)
    logprobs = None if fields.get("logprobs") is None else read.integer(fields, "logprobs", 0, 0, MAX_LOGPROBS)
    params = read.sampling(fields, max_tokens, logprobs)
    n = read.answers(fields, params)
    if fields.get("best_of") is not None and read.integer(fields, "best_of", n, 1, read.MAX_N) != n:
        text = f"'best_of' ({fields['best_of']}) other than 'n' ({n}) is not supported yet"
        raise bad_request(f"{text}: leave it out, send 'n' alone, and choose among the answers", "best_of")
    stream = read.boolean(fields, "stream")
    return CompletionRequest(
        model=read.text(fields, "model"),
        prompts=_prompts(fields.get("prompt")),
        params=params,
        n=n,
        structured_param="response_format" if fields.get("structured_outputs") is None else "structured_outputs",
        stream=stream,
        include_usage=read.includes_usage(fields, stream),
        priority=read.priority(fields, scheduling_policy),
        unknown=tuple(name for name in fields if name not in NEUTRAL and name not in _ACTING),
    )


def _prompts(value: object) -> tuple[str | tuple[int, ...], ...]:
    return texts_or_tokens(value, "prompt", MAX_PROMPTS)


def texts_or_tokens(value: object, name: str, limit: int) -> tuple[str | tuple[int, ...], ...]:
    """Take a field out of its four forms: a string, strings, token ids, lists of token ids."""
    rule = "a string, an array of strings, an array of token ids or an array of such arrays, not empty"
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise bad_request(f"{name!r} must be {rule}; got {shown(value)}", name)
    if _is_tokens(value):
        return (tuple(value),)
    if not all(isinstance(item, str) for item in value) and not all(_is_tokens(item) for item in value):
        raise bad_request(f"{name!r} must be {rule}; got {shown(value)}", name)
    if len(value) > limit:
        raise bad_request(f"{name!r} may hold at most {limit} {name}s, got {len(value)}", name)
    return tuple(item if isinstance(item, str) else tuple(item) for item in value)


def _is_tokens(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer, as far as the response needs it."""

    text: str
    finish_reason: str
    num_tokens: int
    logprobs: Mapping[str, object] | None = None


def usage_object(num_prompt_tokens: int, num_completion_tokens: int) -> dict[str, object]:
    """Build OpenAI's `usage` object."""
    return {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": num_completion_tokens,
        "total_tokens": num_prompt_tokens + num_completion_tokens,
    }


def completion_choice(
    index: int, text: str, finish_reason: str | None, logprobs: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Build one entry of `choices`, of a whole answer or of a part."""
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


def completion_body(
    identifier: str, created: int, model: str, choices: Sequence[Choice], num_prompt_tokens: int
) -> dict[str, object]:
    """Build OpenAI's `text_completion` object.

    created: seconds since 1970. num_prompt_tokens: of each prompt once, however many answers it has.
    """
    listed = [
        completion_choice(index, choice.text, choice.finish_reason, choice.logprobs)
        for index, choice in enumerate(choices)
    ]
    usage = usage_object(num_prompt_tokens, sum(choice.num_tokens for choice in choices))
    head = {"id": identifier, "object": "text_completion", "created": created, "model": model}
    return {**head, "choices": listed, "usage": usage}
