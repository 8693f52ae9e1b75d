"""The bodies of `/v1/completions`: what a request may say, what it becomes, and the objects sent back.

Every field acts, is neutral, or is refused by name; only a name that vLLM does not know either is passed over, as
vLLM does. No HTTP and no engine here.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

from pyvllm.errors import InvalidArgument
from pyvllm.sampling_params import SamplingParams

MAX_N = 16
MAX_PROMPTS = 2048
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256

#: Fields that vLLM serves and this server does not yet, with the values that ask for nothing (null always is one).
#: Source of the names: vLLM 0.33, `CompletionRequest`; OpenAI's completions reference.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "stream": (False,),
    "stream_options": (),
    "echo": (False,),
    "suffix": (),
    "logprobs": (),
    "prompt_logprobs": (),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "allowed_token_ids": (),
    "bad_words": ([],),
    "prompt_embeds": (),
    "response_format": ({"type": "text"},),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "logits_processors": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "priority": (0,),
    "cache_salt": (),
    "kv_transfer_params": (),
    "vllm_xargs": (),
}

_ACTING = (
    "model", "prompt", "max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "n",
    "best_of",
)  # fmt: skip


class ApiError(Exception):
    """An answer that is not 200, in OpenAI's form."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.param = status, kind, message, param

    def body(self) -> dict[str, object]:
        """Return the error object; `code` is the HTTP status, as vLLM has it."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return {"error": error}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """Make the answer to a request that breaks a rule; `param` names the field."""
    return ApiError(400, "BadRequestError", message, param)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """A checked request."""

    model: str | None
    prompts: tuple[str | tuple[int, ...], ...]
    """Each text or token ids."""
    params: SamplingParams
    n: int
    """Answers for each prompt."""
    unknown: tuple[str, ...]
    """Names of fields that nobody knows and that were passed over."""

    def answer_params(self, index: int) -> SamplingParams:
        """Sampling of the index-th answer to a prompt: its seed is `seed + index`, as in vLLM."""
        if self.params.seed is None or index == 0:
            return self.params
        names = SamplingParams.__dataclass_fields__
        values = {name: getattr(self.params, name) for name in names}
        return SamplingParams(**{**values, "seed": (self.params.seed + index) % 2**64})


def parse_completion(body: bytes, max_model_len: int) -> CompletionRequest:
    """Check the body of a request.

    Raises ApiError naming the bad field in `param`.
    """
    fields = _read_object(body)
    for name, neutral in NEUTRAL.items():
        _refuse_unless_neutral(name, fields.get(name), neutral)
    n = _integer(fields, "n", 1, 1, MAX_N)
    if fields.get("best_of") is not None and _integer(fields, "best_of", n, 1, MAX_N) != n:
        raise bad_request(f"'best_of' ({fields['best_of']}) other than 'n' ({n}) is not supported yet", "best_of")
    params = _sampling_params(fields, max_model_len)
    if n > 1 and params.temperature <= 0:
        raise bad_request(f"'n' must be 1 when 'temperature' is 0 (every answer would be the same), got {n}", "n")
    return CompletionRequest(
        model=_model(fields.get("model")),
        prompts=_prompts(fields.get("prompt")),
        params=params,
        n=n,
        unknown=tuple(name for name in fields if name not in NEUTRAL and name not in _ACTING),
    )


def _read_object(body: bytes) -> dict[str, object]:
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except ApiError:
        raise
    except RecursionError as error:
        raise bad_request("the request body is nested too deeply") from error
    except ValueError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise bad_request(f"the request body must be a JSON object, got {_shown(document)}")
    return document


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise bad_request(f"key {_shown(repeated)} is given twice", repeated[:64])
    return found


def _no_constant(text: str) -> float:
    raise bad_request(f"{text} is not a JSON number; every number must be finite")


def _refuse_unless_neutral(name: str, value: object, neutral: tuple[object, ...]) -> None:
    if value is None or any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in neutral):
        return
    instead = f" or send {json.dumps(neutral[0])}" if neutral else ""
    raise bad_request(f"{name!r} is not supported yet: leave it out{instead}; got {_shown(value)}", name)


def _sampling_params(fields: Mapping[str, object], max_model_len: int) -> SamplingParams:
    """Build the sampling; defaults are OpenAI's, with vLLM's names beside them."""
    max_tokens = _integer(fields, "max_tokens", min(16, max_model_len), 1, max_model_len)
    seed = _integer(fields, "seed", -1, -1, 2**64 - 1)
    try:
        return SamplingParams(
            temperature=_number(fields, "temperature", 1.0, "at least 0", 0.0, float("inf")),
            top_p=_number(fields, "top_p", 1.0, "in (0, 1]", 5e-324, 1.0),
            top_k=_integer(fields, "top_k", 0, -1, 2**31 - 1),
            min_p=_number(fields, "min_p", 0.0, "in [0, 1]", 0.0, 1.0),
            max_tokens=max_tokens,
            seed=None if seed == -1 else seed,
            ignore_eos=_boolean(fields, "ignore_eos"),
            stop=_stop(fields.get("stop")),
        )
    except InvalidArgument as error:
        raise bad_request(str(error)) from error


def _integer(fields: Mapping[str, object], name: str, default: int, low: int, high: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"{name!r} must be an integer from {low} to {high}, got {_shown(value)}", name)
    return value


def _number(fields: Mapping[str, object], name: str, default: float, rule: str, low: float, high: float) -> float:
    value = fields.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An integer beyond 2**1000 compares with a float but does not convert to one.
    if not is_number or not low <= value <= min(high, 2**1000) or not isfinite(value):  # type: ignore[operator, arg-type]
        raise bad_request(f"{name!r} must be a finite number {rule}, got {_shown(value)}", name)
    return float(value)  # type: ignore[arg-type]


def _boolean(fields: Mapping[str, object], name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(f"{name!r} must be true or false, got {_shown(value)}", name)
    return bool(value)


def _model(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise bad_request(f"'model' must be a string, got {_shown(value)}", "model")


def _stop(value: object) -> tuple[str, ...]:
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise bad_request(f"'stop' must be a string or an array of strings, got {_shown(value)}", "stop")
    if len(listed) > MAX_STOP_STRINGS:
        raise bad_request(f"'stop' may hold at most {MAX_STOP_STRINGS} strings, got {len(listed)}", "stop")
    for text in listed:
        if not text or len(text.encode("utf-8", "surrogatepass")) > MAX_STOP_BYTES:
            raise bad_request(f"'stop' strings must have 1 to {MAX_STOP_BYTES} bytes, got {_shown(text)}", "stop")
    return tuple(listed)


def _prompts(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Take the prompts out of the four forms: a string, strings, token ids, lists of token ids."""
    rule = "a string, an array of strings, an array of token ids or an array of such arrays, not empty"
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise bad_request(f"'prompt' must be {rule}; got {_shown(value)}", "prompt")
    if _is_tokens(value):
        return (tuple(value),)
    if not all(isinstance(item, str) for item in value) and not all(_is_tokens(item) for item in value):
        raise bad_request(f"'prompt' must be {rule}; got {_shown(value)}", "prompt")
    if len(value) > MAX_PROMPTS:
        raise bad_request(f"'prompt' may hold at most {MAX_PROMPTS} prompts, got {len(value)}", "prompt")
    return tuple(item if isinstance(item, str) else tuple(item) for item in value)


def _is_tokens(value: object) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return all(isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in value)


def _shown(value: object) -> str:
    """Write a value as JSON, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One answer, as far as the response needs it."""

    text: str
    finish_reason: str
    num_tokens: int


def completion_body(
    identifier: str, created: int, model: str, choices: Sequence[Choice], num_prompt_tokens: int
) -> dict[str, object]:
    """Build OpenAI's `text_completion` object.

    created: seconds since 1970. num_prompt_tokens: of each prompt once, however many answers it has.
    """
    completion_tokens = sum(choice.num_tokens for choice in choices)
    listed = [
        {"index": index, "text": choice.text, "logprobs": None, "finish_reason": choice.finish_reason}
        for index, choice in enumerate(choices)
    ]
    usage = {
        "prompt_tokens": num_prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": num_prompt_tokens + completion_tokens,
    }
    head = {"id": identifier, "object": "text_completion", "created": created, "model": model}
    return {**head, "choices": listed, "usage": usage}
