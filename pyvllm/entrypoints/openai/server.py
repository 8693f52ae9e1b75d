"""`vllm-server`: flags in, one line out if they are bad, otherwise a model behind HTTP.

Order matters: flags, address and extra packages are checked before a model file is opened.
"""

import json
import os
import socket
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from pyvllm import logger
from pyvllm.config.engine import EngineConfig
from pyvllm.engine import preview
from pyvllm.engine.start import load_engine
from pyvllm.entrypoints.arguments import OneLineParser, add_engine_arguments, engine_config, one_line
from pyvllm.entrypoints.openai.chat_options import ChatOptions
from pyvllm.entrypoints.openai.reasoning_parsers import REASONING_PARSERS
from pyvllm.entrypoints.openai.tool_parsers import TOOL_PARSERS
from pyvllm.entrypoints.tables import offload_line
from pyvllm.errors import InvalidArgument, VllmError
from pyvllm.tokenizer.files import MAX_TEMPLATE_BYTES, read_file

if TYPE_CHECKING:
    from pyvllm.entrypoints.openai.serving import Service

#: Connections that may wait to be accepted.
BACKLOG = 2048


def make_parser() -> OneLineParser:
    """Build the parser of the server's flags, spelled as vLLM spells them."""
    parser = OneLineParser(
        prog="vllm-server",
        description="Serve a model as OpenAI does, with its weights offloaded as vLLM's OffloadConfig says.",
    )
    parser.add_argument("--model", metavar="PATH", help="a Hugging Face directory or a GGUF file")
    check = "check the flags, print the normalised offload document as JSON and exit; opens no model"
    parser.add_argument("--check-config", action="store_true", help=check)
    serving = parser.add_argument_group("serving")
    serving.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    serving.add_argument("--port", type=int, default=8000, help="port to listen on; 0 takes a free one (default: 8000)")
    names = "what the model is called in requests; the first one stands in answers (default: --model)"
    serving.add_argument("--served-model-name", nargs="+", metavar="NAME", help=names)
    keys = "keys of which requests must bear one (default: the environment's VLLM_API_KEY, else none is asked for)"
    serving.add_argument("--api-key", nargs="+", metavar="KEY", help=keys)
    _add_chat_arguments(parser)
    add_engine_arguments(parser)
    return parser


def _add_chat_arguments(parser: OneLineParser) -> None:
    add = parser.add_argument_group("chat").add_argument
    template = "a file with a chat template, or the template itself (default: the model's own)"
    add("--chat-template", metavar="FILE", help=template)
    auto = "let the model choose to call a tool; needs --tool-call-parser"
    add("--enable-auto-tool-choice", action="store_true", help=auto)
    add("--tool-call-parser", metavar="NAME", help=f"one of {', '.join(sorted(TOOL_PARSERS))}")
    add("--reasoning-parser", metavar="NAME", help=f"one of {', '.join(sorted(REASONING_PARSERS))}")


def _chat_options(args: Namespace) -> ChatOptions:
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        raise InvalidArgument("--enable-auto-tool-choice needs --tool-call-parser")
    if args.tool_call_parser and not args.enable_auto_tool_choice:
        raise InvalidArgument("--tool-call-parser acts with --enable-auto-tool-choice only: give both")
    template = args.chat_template
    # As in vLLM: what has a brace or a new line is a template and no path.
    if template is not None and not any(mark in template for mark in "{}\n"):
        template = _read_template(template)
    return ChatOptions(
        tool_parser=args.tool_call_parser, reasoning_parser=args.reasoning_parser, chat_template=template
    )


def _read_template(path: str) -> str:
    try:
        return read_file(path, MAX_TEMPLATE_BYTES).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"--chat-template {path}: is not valid UTF-8: {error}") from error


def main(argv: Sequence[str] | None = None, stop_fd: int | None = None) -> int:
    """Run the command; return its exit code. A fatal error is one line on stderr and 1.

    stop_fd: a descriptor that becomes readable when the server shall end; without one, SIGINT and SIGTERM end it.
    """
    try:
        return _run(sys.argv[1:] if argv is None else argv, stop_fd)
    except VllmError as error:
        print(f"server: fatal: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("server: fatal: interrupted", file=sys.stderr)
        return 130


def _run(argv: Sequence[str], stop_fd: int | None) -> int:
    args = make_parser().parse(argv)
    config = engine_config(args, args.model or "")
    chat = _chat_options(args)
    keys = _api_keys(args)
    if not 0 <= args.port <= 65535:
        raise InvalidArgument(f"--port must be from 0 to 65535, got {args.port}")
    if args.check_config:
        print(json.dumps(preview.configuration_document(config.offload), indent=2))
        return 0
    if not args.model:
        raise InvalidArgument("--model is needed: the path of a Hugging Face directory or of a GGUF file")
    _require_extra()
    with _bind(args.host, args.port) as listener:
        if not keys and not _is_loopback(listener):
            logger.warning(f"server: {args.host} is reachable from outside and no --api-key is set")
        service = _load(config, chat, args.served_model_name or [args.model])
        _serve(service, keys, listener, stop_fd)
    return 0


def _api_keys(args: Namespace) -> list[str]:
    keys = args.api_key or [key for key in (os.environ.get("VLLM_API_KEY"),) if key]
    if not all(keys):
        raise InvalidArgument("--api-key must not be empty")
    return list(keys)


def _require_extra() -> None:
    missing = [name for name in ("starlette", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise VllmError(f"{' and '.join(missing)} {verb} not installed: pip install 'pyvllm[server]'")


def _bind(host: str, port: int) -> socket.socket:
    """Take the address before the model is loaded, so that a taken port costs nothing."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidArgument(f"--host {host}: {error.strerror or error}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise InvalidArgument(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener


def _is_loopback(listener: socket.socket) -> bool:
    host: str = listener.getsockname()[0]
    return host.startswith("127.") or host == "::1"


def _load(config: EngineConfig, chat: ChatOptions, names: Sequence[str]) -> "Service":
    engine = load_engine(config)
    try:
        # Only here: it brings torch, which a model that is refused does not need.
        from pyvllm.entrypoints.openai.serving import Service

        logger.info(f"server: {offload_line(engine.offload_report())}")
        return Service(engine, names, chat)
    except BaseException:
        engine.close()
        raise


def _serve(service: "Service", keys: Sequence[str], listener: socket.socket, stop_fd: int | None) -> None:
    from pyvllm.entrypoints.openai.http_server import serve

    try:
        listener.listen(BACKLOG)
        host, port = listener.getsockname()[:2]
        names = ", ".join(service.names)
        logger.info(f"server: serving {names} at http://{f'[{host}]' if ':' in host else host}:{port}")
        serve(service, keys, listener, stop_fd)
    finally:
        service.close()


if __name__ == "__main__":
    sys.exit(main())
