"""Reading request bodies: one JSON object, typed fields with bounds, and the error that names the field.

Every field acts, is neutral, or is refused by name; only a name that vLLM does not know either is passed over, as vLLM
does. No HTTP and no engine here.
"""

import json
import re
from collections.abc import Mapping, Sequence
from math import isfinite

from pyvllm.errors import InvalidArgument
from pyvllm.sampling_params import MAX_LOGIT_BIAS, MAX_STOP_TOKEN_IDS, SamplingParams, StructuredOutputsParams

MAX_N = 16
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256

#: Fields of `sampling`, the same in every kind of request.
SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "min_tokens", "response_format", "structured_outputs", "stop_token_ids",
    "include_stop_str_in_output", "logit_bias", "allowed_token_ids",
)  # fmt: skip

#: What a client calls its request: it is taken and says nothing about the answer.
LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key")

#: What to send instead of a field that is not there.
_INSTEAD: Mapping[str, str] = {
    "guided_json": "send 'structured_outputs' with 'json' instead",
    "guided_regex": "send 'structured_outputs' with 'regex' instead",
    "guided_choice": "send 'structured_outputs' with 'choice' instead",
    "guided_grammar": "send 'structured_outputs' with 'grammar' instead",
    "functions": "send 'tools' instead",
    "function_call": "send 'tool_choice' instead",
    "best_of": "send 'n' instead, and choose among the answers",
    "bad_words": "send 'logit_bias' for single tokens instead",
    "reasoning_effort": "send it in 'chat_template_kwargs' if the model's template reads it",
    "chat_template": "the server's operator sets it with --chat-template",
    "suffix": "write the prompt in the model's own form for filling in",
}

#: Fields that vLLM serves in every kind of request and this server does not yet, with the values that ask for nothing
#: (null always is one). Source of the names: vLLM 0.33, `CompletionRequest` and `ChatCompletionRequest`.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "prompt_logprobs": (),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncate_prompt_tokens": (),
    "bad_words": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "logits_processors": (),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "cache_salt": (),
    "kv_transfer_params": (),
    "vllm_xargs": (),
    "store": (False,),
    "service_tier": ("auto", "default"),
}

#: Fields that can only be judged with the model at hand.
_NAMED_LATE = (
    "chat_template_kwargs", "continue_final_message", "logit_bias", "allowed_token_ids", "stop_token_ids",
)  # fmt: skip

_TOKEN_ID = re.compile("0|[1-9][0-9]{0,9}", re.ASCII)
_OTHER_STREAM_OPTIONS = ("continuous_usage_stats", "include_obfuscation")
_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object")


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


def named_in(error: Exception, default: str | None, structured: str | None = None) -> str | None:
    """Give the field that a refusal of the engine or the template is about: they begin with its name.

    default: the field of most refusals. structured: the one that says what the answer must look like.
    """
    name = str(error).split(":")[0].split(" ")[0].split("[")[0]
    if structured is not None and str(error).startswith("structured output"):
        return structured
    return name if name in _NAMED_LATE else default


def read_object(body: bytes) -> dict[str, object]:
    """Read a body that must be one JSON object, without repeated keys and numbers that JSON has not."""
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_unique_keys, parse_constant=_no_constant)
    except ApiError:
        raise
    except RecursionError as error:
        raise bad_request("the request body is nested too deeply") from error
    except ValueError as error:
        raise bad_request(f"the request body is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise bad_request(f"the request body must be a JSON object, got {shown(document)}")
    return document


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise bad_request(f"key {shown(repeated)} is given twice", repeated[:64])
    return found


def _no_constant(text: str) -> float:
    raise bad_request(f"{text} is not a JSON number; every number must be finite")


def refuse_unless_neutral(fields: Mapping[str, object], neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Refuse, by name, every field that asks for something which is not there."""
    for name, values in neutral.items():
        value = fields.get(name)
        if value is None or any(value == item and isinstance(value, bool) == isinstance(item, bool) for item in values):
            continue
        instead = f" or send {json.dumps(values[0])}" if values else ""
        advice = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        text = f"{name!r} is not supported yet: leave it out{instead}{advice}; got {shown(value)}"
        raise bad_request(text, name)


def integer(fields: Mapping[str, object], name: str, default: int, low: int, high: int) -> int:
    """Read an integer from `low` to `high`."""
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise bad_request(f"{name!r} must be an integer from {low} to {high}, got {shown(value)}", name)
    return value


def number(fields: Mapping[str, object], name: str, default: float, rule: str, low: float, high: float) -> float:
    """Read a finite number from `low` to `high`; rule: those bounds in words."""
    value = fields.get(name)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # An integer beyond 2**1000 compares with a float but does not convert to one.
    if not is_number or not low <= value <= min(high, 2**1000) or not isfinite(value):  # type: ignore[operator, arg-type]
        raise bad_request(f"{name!r} must be a finite number {rule}, got {shown(value)}", name)
    return float(value)  # type: ignore[arg-type]


def boolean(fields: Mapping[str, object], name: str, default: bool = False) -> bool:
    """Read true or false."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise bad_request(f"{name!r} must be true or false, got {shown(value)}", name)
    return value


def text(fields: Mapping[str, object], name: str) -> str | None:
    """Read a string, None where there is none."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value
    raise bad_request(f"{name!r} must be a string, got {shown(value)}", name)


def includes_usage(fields: Mapping[str, object], is_stream: bool) -> bool:
    """Read `stream_options`: whether a stream ends with the usage."""
    options = fields.get("stream_options")
    if options is None:
        return False
    param = "stream_options"
    if not is_stream:
        raise bad_request(f"{param!r} is for streams only: set 'stream' to true or leave it out", param)
    if not isinstance(options, dict) or not options.keys() <= {"include_usage", *_OTHER_STREAM_OPTIONS}:
        raise bad_request(f"{param!r} must be an object with 'include_usage', got {shown(options)}", param)
    for name in _OTHER_STREAM_OPTIONS:
        if options.get(name) not in (None, False):
            raise bad_request(f"'{param}.{name}' is not supported yet: leave it out", param)
    try:
        return boolean(options, "include_usage")
    except ApiError as error:
        raise bad_request(error.message, param) from error


def sampling(fields: Mapping[str, object], max_tokens: int, logprobs: int | None = None) -> SamplingParams:
    """Read the SAMPLING fields; defaults are OpenAI's, with vLLM's names beside them.

    logprobs: most likely tokens to list; chat and completions ask for them in different words.
    """
    seed = integer(fields, "seed", -1, -1, 2**64 - 1)
    penalty, allowed = "in [-2, 2]", "allowed_token_ids"
    try:
        return SamplingParams(
            temperature=number(fields, "temperature", 1.0, "at least 0", 0.0, float("inf")),
            top_p=number(fields, "top_p", 1.0, "in (0, 1]", 5e-324, 1.0),
            top_k=integer(fields, "top_k", 0, -1, 2**31 - 1),
            min_p=number(fields, "min_p", 0.0, "in [0, 1]", 0.0, 1.0),
            max_tokens=max_tokens,
            min_tokens=integer(fields, "min_tokens", 0, 0, max_tokens),
            seed=None if seed == -1 else seed,
            presence_penalty=number(fields, "presence_penalty", 0.0, penalty, -2.0, 2.0),
            frequency_penalty=number(fields, "frequency_penalty", 0.0, penalty, -2.0, 2.0),
            repetition_penalty=number(fields, "repetition_penalty", 1.0, "above 0", 5e-324, float("inf")),
            ignore_eos=boolean(fields, "ignore_eos"),
            stop=_stop(fields.get("stop")),
            stop_token_ids=_token_ids(fields, "stop_token_ids", 0, MAX_STOP_TOKEN_IDS),
            include_stop_str_in_output=boolean(fields, "include_stop_str_in_output"),
            structured_outputs=_structured(fields),
            logit_bias=_logit_bias(fields.get("logit_bias")),
            allowed_token_ids=None if fields.get(allowed) is None else _token_ids(fields, allowed, 1, 2**31),
            logprobs=logprobs,
        )
    except InvalidArgument as error:
        raise bad_request(str(error), named_in(error, None)) from error


def answers(fields: Mapping[str, object], params: SamplingParams) -> int:
    """Read `n`, the number of answers to each prompt."""
    n = integer(fields, "n", 1, 1, MAX_N)
    if n > 1 and params.temperature <= 0:
        raise bad_request(f"'n' must be 1 when 'temperature' is 0 (every answer would be the same), got {n}", "n")
    return n


def answer_params(params: SamplingParams, index: int) -> SamplingParams:
    """Sampling of the index-th answer to a prompt: its seed is `seed + index`, as in vLLM."""
    if params.seed is None or index == 0:
        return params
    values = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}
    return SamplingParams(**{**values, "seed": (params.seed + index) % 2**64})


def priority(fields: Mapping[str, object], policy: str) -> int:
    """Read `priority`, which only acts under the scheduling policy of that name."""
    value = integer(fields, "priority", 0, -(2**31), 2**31 - 1)
    if value and policy != "priority":
        text = f"'priority' acts under --scheduling-policy priority only, and this server's is {policy}: leave it out"
        raise bad_request(f"{text}; got {value}", "priority")
    return value


def shown(value: object) -> str:
    """Write a value as JSON, shortened."""
    written = json.dumps(value)
    return written if len(written) <= 80 else f"{written[:77]}..."


def _stop(value: object) -> tuple[str, ...]:
    listed: Sequence[object] = [] if value is None else [value] if isinstance(value, str) else value  # type: ignore[assignment]
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise bad_request(f"'stop' must be a string or an array of strings, got {shown(value)}", "stop")
    if len(listed) > MAX_STOP_STRINGS:
        raise bad_request(f"'stop' may hold at most {MAX_STOP_STRINGS} strings, got {len(listed)}", "stop")
    for item in listed:
        if not item or len(item.encode("utf-8", "surrogatepass")) > MAX_STOP_BYTES:
            raise bad_request(f"'stop' strings must have 1 to {MAX_STOP_BYTES} bytes, got {shown(item)}", "stop")
    return tuple(listed)


def _token_ids(fields: Mapping[str, object], name: str, low: int, limit: int) -> tuple[int, ...]:
    value = [] if fields.get(name) is None else fields[name]
    is_ids = isinstance(value, list) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**31 for item in value
    )
    if not isinstance(value, list) or not is_ids or not low <= len(value) <= limit:
        raise bad_request(f"{name!r} must be an array of {low} to {limit} token ids, got {shown(value)}", name)
    return tuple(value)


def _logit_bias(value: object) -> dict[int, float] | None:
    if value in (None, {}):
        return None
    if not isinstance(value, dict) or len(value) > MAX_LOGIT_BIAS:
        rule = f"an object of at most {MAX_LOGIT_BIAS} token ids"
        raise bad_request(f"'logit_bias' must be {rule}, got {shown(value)}", "logit_bias")
    found: dict[int, float] = {}
    for name, bias in value.items():
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not _TOKEN_ID.fullmatch(name) or not is_number or not -100 <= bias <= 100:
            rule = "token ids with numbers from -100 to 100"
            raise bad_request(f"'logit_bias' must hold {rule}, got {shown({name: bias})}", "logit_bias")
        found[int(name)] = float(bias)
    return found


def _structured(fields: Mapping[str, object]) -> StructuredOutputsParams | None:
    """Read what an answer must look like: OpenAI's `response_format` or vLLM's `structured_outputs`."""
    form, own = fields.get("response_format"), fields.get("structured_outputs")
    found = None if form is None else _response_format(form)
    if own is None:
        return found
    if found is not None:
        text = "'structured_outputs' and 'response_format' both say what the answer must look like: send one"
        raise bad_request(text, "structured_outputs")
    if not isinstance(own, dict) or not own.keys() <= set(_STRUCTURED):
        rule = f"an object with one of {', '.join(_STRUCTURED)}"
        raise bad_request(f"'structured_outputs' must be {rule}, got {shown(own)}", "structured_outputs")
    given = {name: value for name, value in own.items() if value not in (None, False)}
    if isinstance(given.get("json"), dict):
        given["json"] = json.dumps(given["json"])
    return _checked(given, "structured_outputs")


def _response_format(value: object) -> StructuredOutputsParams | None:
    rule = "an object whose 'type' is text, json_object or json_schema"
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(value, dict) or kind not in ("text", "json_object", "json_schema"):
        raise bad_request(f"'response_format' must be {rule}, got {shown(value)}", "response_format")
    if kind == "text":
        return None
    if kind == "json_object":
        return _checked({"json_object": True}, "response_format")
    inner = value.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if not isinstance(schema, dict):
        text = "'response_format' needs a 'json_schema' that is an object with a 'schema', an object too"
        raise bad_request(f"{text}, got {shown(inner)}", "response_format")
    return _checked({"json": json.dumps(schema)}, "response_format")


def _checked(given: Mapping[str, object], param: str) -> StructuredOutputsParams:
    try:
        return StructuredOutputsParams(**given)  # type: ignore[arg-type]
    except InvalidArgument as error:
        raise bad_request(f"{param!r}: {error}", param) from error
