"""A chat request: what it may say and what it becomes. No HTTP and no engine here."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyvllm.entrypoints.openai import fields as read
from pyvllm.entrypoints.openai.chat_messages import Message, read_messages, read_tool_choice, read_tools, tool_name
from pyvllm.entrypoints.openai.fields import bad_request
from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams

#: Fields that vLLM or OpenAI serve and this server does not yet, with the values that ask for nothing.
#: Source of the names: vLLM 0.33, `ChatCompletionRequest`; OpenAI's chat completions reference.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **read.NEUTRAL,
    "logprobs": (False,),
    "top_logprobs": (0,),
    "best_of": (1,),
    "echo": (False,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "chat_template_kwargs": ({},),
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
    *read.SAMPLING, "model", "messages", "max_tokens", "max_completion_tokens", "n", "stream", "stream_options",
    "tools", "tool_choice", "parallel_tool_calls", "priority",
)  # fmt: skip

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
    params = read.sampling(fields, max_tokens or limits.max_model_len)
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
        structured_param="tools" if choice in ("required", "named") else structured,
        params=params,
        max_tokens=max_tokens,
        n=read.answers(fields, params),
        stream=stream,
        include_usage=read.includes_usage(fields, stream),
        priority=read.priority(fields, limits.scheduling_policy),
        unknown=tuple(name for name in fields if name not in NEUTRAL and name not in _ACTING),
    )


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
