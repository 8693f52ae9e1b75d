"""A chat request: what it may say and what it becomes. No HTTP and no engine here."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyvllm.entrypoints.openai import fields as read
from pyvllm.entrypoints.openai.chat_messages import Message, read_messages, read_tool_choice, read_tools, tool_name
from pyvllm.entrypoints.openai.fields import bad_request
from pyvllm.sampling_params import MAX_LOGPROBS, SamplingParams, StructuredOutputsParams

#: Fields that vLLM or OpenAI serve and this server does not yet, with the values that ask for nothing.
#: Source of the names: vLLM 0.33, `ChatCompletionRequest`; OpenAI's chat completions reference.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **read.NEUTRAL,
    "best_of": (1,),
    "echo": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "include_reasoning": (True,),
    "mm_processor_kwargs": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "functions": ([],),
    "function_call": ("none",),
    "web_search_options": (),
    "verbosity": (),
    "reasoning_effort": (),
    "thinking_token_budget": (),
}

_ACTING = (
    *read.SAMPLING, *read.LABELS, "model", "messages", "max_tokens", "max_completion_tokens", "n", "stream",
    "stream_options", "tools", "tool_choice", "parallel_tool_calls", "priority", "add_generation_prompt",
    "continue_final_message", "chat_template_kwargs", "logprobs", "top_logprobs",
)  # fmt: skip

MAX_TEMPLATE_VARIABLES = 32
_VARIABLE = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")

#: How forced JSON is spaced: as `json.dumps` does, so that a model cannot write white space without end.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLimits:
    """What the engine and the operator set."""

    max_model_len: int
    scheduling_policy: str = "fcfs"
    has_tool_parser: bool = False
    """Whether calls can be found in an answer that the model was not forced to make a call of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOptions:
    """How a conversation becomes a prompt."""

    add_generation_prompt: bool = True
    """Whether it ends where an answer begins."""
    continue_final_message: bool = False
    """Whether it ends inside the last message, which the answer goes on with."""
    variables: Mapping[str, object] = field(default_factory=dict)
    """What else the template is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A checked request."""

    model: str | None
    messages: Sequence[Message]
    tools: Sequence[Message]
    """Shown to the model; none when the choice is `none`."""
    tool_choice: str
    """`none`, `auto`, `required` or `named`."""
    function: str | None
    """The named function."""
    parallel_tool_calls: bool
    prompt: "PromptOptions"
    structured_param: str
    """The field that says what the answer must look like."""
    params: SamplingParams
    """Of the first answer; its max_tokens is the model's length when the request names none."""
    max_tokens: int | None
    n: int
    stream: bool
    include_usage: bool
    priority: int
    unknown: tuple[str, ...]
    """Names of fields that nobody knows and that were passed over."""

    @property
    def is_structured(self) -> bool:
        """Whether every token of an answer is bound by a grammar, so that there is no thought in it."""
        return self.params.structured_outputs is not None


def parse_chat(body: bytes, limits: ChatLimits) -> ChatRequest:
    """Check the body of a request. Raises ApiError naming the bad field in `param`."""
    fields = read.read_object(body)
    read.refuse_unless_neutral(fields, NEUTRAL)
    max_tokens = _max_tokens(fields, limits.max_model_len)
    tools = read_tools(fields.get("tools"))
    choice, function = read_tool_choice(fields.get("tool_choice"), tools)
    if choice == "auto" and not limits.has_tool_parser:
        text = "'tool_choice' \"auto\" needs a tool parser, and none is set"
        raise bad_request(
            f"{text}: --enable-auto-tool-choice and --tool-call-parser, or tool_parser in C", "tool_choice"
        )
    parallel = read.boolean(fields, "parallel_tool_calls", True)
    params = read.sampling(fields, max_tokens or limits.max_model_len, _logprobs(fields))
    if choice in ("required", "named"):
        params = _forced(params, tools, function, parallel)
    structured = "response_format" if fields.get("structured_outputs") is None else "structured_outputs"
    stream = read.boolean(fields, "stream")
    return ChatRequest(
        model=read.text(fields, "model"),
        messages=read_messages(fields.get("messages")),
        tools=[] if choice == "none" else tools,
        tool_choice=choice,
        function=function,
        parallel_tool_calls=parallel,
        prompt=prompt_options(fields),
        structured_param="tools" if choice in ("required", "named") else structured,
        params=params,
        max_tokens=max_tokens,
        n=read.answers(fields, params),
        stream=stream,
        include_usage=read.includes_usage(fields, stream),
        priority=read.priority(fields, limits.scheduling_policy),
        unknown=tuple(name for name in fields if name not in NEUTRAL and name not in _ACTING),
    )


def prompt_options(fields: Mapping[str, object]) -> PromptOptions:
    """Read what is said of the prompt; whether the template knows the variables is for its owner to say."""
    begins = read.boolean(fields, "add_generation_prompt", True)
    goes_on = read.boolean(fields, "continue_final_message")
    if begins and goes_on:
        text = "'continue_final_message' goes on with the last message, so that no new one can begin"
        raise bad_request(f"{text}: send 'add_generation_prompt' false too", "continue_final_message")
    param = "chat_template_kwargs"
    given = {} if fields.get(param) is None else fields[param]
    if not isinstance(given, dict) or len(given) > MAX_TEMPLATE_VARIABLES:
        rule = f"an object of at most {MAX_TEMPLATE_VARIABLES} variables"
        raise bad_request(f"{param!r} must be {rule}, got {read.shown(given)}", param)
    for name in given:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            rule = "a letter and up to 63 letters, digits or underscores"
            raise bad_request(f"{param!r}: the name of a variable must be {rule}, got {read.shown(name)}", param)
    return PromptOptions(add_generation_prompt=begins, continue_final_message=goes_on, variables=given)


def _logprobs(fields: Mapping[str, object]) -> int | None:
    """Read how many of the most likely tokens are listed beside each chosen one; None for no log probabilities."""
    num_top = read.integer(fields, "top_logprobs", 0, 0, MAX_LOGPROBS)
    if read.boolean(fields, "logprobs"):
        return num_top
    if num_top:
        raise bad_request(f"'top_logprobs' needs 'logprobs' true beside it, got {num_top}", "top_logprobs")
    return None


def _max_tokens(fields: Mapping[str, object], max_model_len: int) -> int | None:
    """Read OpenAI's newer name of the limit, or its older one."""
    found = {
        name: read.integer(fields, name, 0, 1, max_model_len)
        for name in ("max_completion_tokens", "max_tokens")
        if fields.get(name) is not None
    }
    if len(set(found.values())) > 1:
        text = "'max_tokens' and 'max_completion_tokens' are two names of one limit and must be equal"
        raise bad_request(f"{text}, got {found['max_tokens']} and {found['max_completion_tokens']}", "max_tokens")
    return next(iter(found.values()), None)


def _forced(
    params: SamplingParams, tools: Sequence[Message], function: str | None, is_parallel: bool
) -> SamplingParams:
    """Bind the answer to a call: of the named function its arguments, otherwise a list of calls."""
    if params.structured_outputs is not None:
        text = "a forced 'tool_choice' and 'response_format' both say what the answer must look like: send one"
        raise bad_request(text, "tool_choice")
    if params.allowed_token_ids is not None:
        text = "a forced 'tool_choice' and 'allowed_token_ids' both say which tokens may come: send one"
        raise bad_request(text, "allowed_token_ids")
    schemas = {tool_name(tool): _parameters(tool) for tool in tools}
    schema = dict(schemas[function]) if function is not None else _list_of_calls(schemas, is_parallel)
    schema.setdefault("x-guidance", _SPACING)
    values = {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}
    values["structured_outputs"] = StructuredOutputsParams(json=json.dumps(schema))
    return SamplingParams(**values)


def _parameters(tool: Message) -> dict[str, object]:
    function = tool["function"]
    parameters = function.get("parameters") if isinstance(function, dict) else None
    return parameters if isinstance(parameters, dict) else {"type": "object", "properties": {}}


def _list_of_calls(schemas: Mapping[str, dict[str, object]], is_parallel: bool) -> dict[str, object]:
    """Build the schema of `[{"name": ..., "parameters": {...}}, ...]`; definitions move to its top."""
    definitions: dict[str, object] = {}
    kinds = []
    for name, parameters in schemas.items():
        own = parameters.get("$defs")
        for key, definition in own.items() if isinstance(own, dict) else ():
            if definitions.setdefault(key, definition) != definition:
                raise bad_request(f"'tools' have two different definitions called {key!r:.80}", "tools")
        inner = {key: value for key, value in parameters.items() if key != "$defs"}
        kinds.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": inner},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    listed: dict[str, object] = {"type": "array", "minItems": 1, "items": {"anyOf": kinds}}
    if not is_parallel:
        listed["maxItems"] = 1
    return {**listed, "$defs": definitions} if definitions else listed
