"""Messages and tools of a chat request: checked, and put in the form that chat templates read."""

import json
import re
from collections.abc import Mapping, Sequence

from pyvllm.entrypoints.openai.fields import bad_request, shown

MAX_MESSAGES = 1024
MAX_TOOLS = 128
_ROLES = ("system", "developer", "user", "assistant", "tool")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
#: What a message may have beside its role and content, by role.
_KEYS = {
    "assistant": ("name", "tool_calls", "reasoning", "reasoning_content"),
    "tool": ("name", "tool_call_id"),
}

Message = dict[str, object]


def read_messages(value: object) -> list[Message]:
    """Check `messages`.

    Parts of type text become one text; the arguments of earlier tool calls become objects, as templates expect them.
    Raises ApiError naming the message.
    """
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MESSAGES:
        raise _bad(f"'messages' must be an array of 1 to {MAX_MESSAGES} messages, got {shown(value)}")
    return [_message(item, f"messages[{index}]") for index, item in enumerate(value)]


def read_tools(value: object) -> list[Message]:
    """Check `tools`. Raises ApiError naming the tool."""
    if value is None:
        return []
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise bad_request(f"'tools' must be an array of at most {MAX_TOOLS} tools, got {shown(value)}", "tools")
    tools = [_tool(item, f"tools[{index}]") for index, item in enumerate(value)]
    names = [tool_name(tool) for tool in tools]
    if len(set(names)) != len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise bad_request(f"'tools' has two functions called {repeated!r}", "tools")
    return tools


def tool_name(tool: Mapping[str, object]) -> str:
    """Give the name of a checked tool's function."""
    function = tool["function"]
    return str(function["name"]) if isinstance(function, dict) else ""


def read_tool_choice(value: object, tools: Sequence[Mapping[str, object]]) -> tuple[str, str | None]:
    """Check `tool_choice`: `none`, `auto`, `required`, or `named` with the function's name."""
    param = "tool_choice"
    if value is None:
        return ("auto" if tools else "none"), None
    if value in ("none", "auto", "required"):
        if not tools and value != "none":
            raise bad_request(f"{param!r} is {value!r}, but there are no 'tools'", param)
        return str(value), None
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        rule = 'none, auto, required or {"type": "function", "function": {"name": ...}}'
        raise bad_request(f"{param!r} must be {rule}, got {shown(value)}", param)
    known = [tool_name(tool) for tool in tools]
    if name not in known:
        raise bad_request(f"{param!r} names {name!r:.80}, which is none of the 'tools': {', '.join(known)}", param)
    return "named", name


def _message(value: object, place: str) -> Message:
    role = value.get("role") if isinstance(value, dict) else None
    if not isinstance(value, dict) or role not in _ROLES:
        raise _bad(f"{place}.role must be one of {', '.join(_ROLES)}; got {shown(value)}")
    known = ("role", "content", *_KEYS.get(role, ("name",)))
    for key, item in value.items():
        if key not in known and item not in (None, [], {}, ""):
            raise _bad(f"{place}.{key} is not known for the role {role}; known are {', '.join(known)}")
    # OpenAI's newer name of the same thing; templates know the older one.
    message: Message = {"role": "system" if role == "developer" else role}
    calls = _calls(value.get("tool_calls"), place)
    if value.get("content") is None and role != "assistant":
        raise _bad(f"{place}.content is missing")
    message["content"] = "" if value.get("content") is None else _content(value["content"], f"{place}.content")
    for key in ("name", "tool_call_id"):
        if value.get(key) is not None:
            message[key] = _string(value[key], f"{place}.{key}")
    thought = value.get("reasoning") or value.get("reasoning_content")
    if thought:
        message["reasoning"] = message["reasoning_content"] = _string(thought, f"{place}.reasoning")
    if calls:
        message["tool_calls"] = calls
    return message


def _content(value: object, place: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise _bad(f"{place} must be a string or an array of parts, got {shown(value)}")
    texts = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part, dict):
            raise _bad(f"{place}[{index}] must be a part of type text, got {shown(kind or part)}")
        texts.append(_string(part.get("text"), f"{place}[{index}].text"))
    return "\n".join(texts)


def _calls(value: object, place: str) -> list[Message]:
    calls: list[Message] = []
    if value is None:
        return calls
    if not isinstance(value, list) or len(value) > MAX_TOOLS:
        raise _bad(f"{place}.tool_calls must be an array of at most {MAX_TOOLS} calls, got {shown(value)}")
    for index, call in enumerate(value):
        here = f"{place}.tool_calls[{index}]"
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(function, dict):
            raise _bad(f"{here} must be an object with a 'function', got {shown(call)}")
        name = _string(function.get("name"), f"{here}.function.name")
        arguments = _arguments(function.get("arguments"), f"{here}.function.arguments")
        calls.append(
            {
                "id": "" if call.get("id") is None else _string(call["id"], f"{here}.id"),
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
        )
    return calls


def _arguments(value: object, place: str) -> dict[str, object]:
    if value in (None, ""):
        return {}
    try:
        found = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError) as error:
        raise _bad(f"{place} is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise _bad(f"{place} must be a JSON object, got {shown(value)}")
    return found


def _tool(value: object, place: str) -> Message:
    function = value.get("function") if isinstance(value, dict) and value.get("type") == "function" else None
    if not isinstance(function, dict):
        raise bad_request(f"{place} must be an object of type function with a 'function', got {shown(value)}", "tools")
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        rule = "1 to 64 letters, digits, underscores, dots or hyphens"
        raise bad_request(f"{place}.function.name must be {rule}, got {shown(name)}", "tools")
    if parameters is not None and not isinstance(parameters, dict):
        raise bad_request(f"{place}.function.parameters must be a JSON schema, got {shown(parameters)}", "tools")
    if function.get("description") is not None and not isinstance(function["description"], str):
        raise bad_request(f"{place}.function.description must be a string", "tools")
    return {"type": "function", "function": {key: item for key, item in function.items() if item is not None}}


def _string(value: object, place: str) -> str:
    if not isinstance(value, str):
        raise _bad(f"{place} must be a string, got {shown(value)}")
    return value


def _bad(message: str) -> Exception:
    return bad_request(message, "messages")
