"""What an operator sets for chat. Light: bad settings are refused before anything is loaded."""

from dataclasses import dataclass

from pyvllm.entrypoints.openai.reasoning_parsers import reasoning_format
from pyvllm.entrypoints.openai.tool_parsers import tool_format


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """What an operator sets. Raises InvalidArgument for the name of a parser that is not known."""

    tool_parser: str | None = None
    reasoning_parser: str | None = None
    chat_template: str | None = None
    """Text of a template to use instead of the model's own."""

    def __post_init__(self) -> None:
        tool_format(self.tool_parser)
        reasoning_format(self.reasoning_parser)
