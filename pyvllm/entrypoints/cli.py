"""The command `pyvllm`: `plan` says where every byte of a model would go, `run` completes one prompt."""

import argparse
import os
import sys
from collections.abc import Sequence

from pyvllm.engine.start import load_engine
from pyvllm.entrypoints.arguments import OneLineParser, add_engine_arguments, engine_config, one_line
from pyvllm.entrypoints.plan_command import add_plan_arguments, run_plan
from pyvllm.entrypoints.tables import plan_text
from pyvllm.errors import VllmError
from pyvllm.sampling_params import SamplingParams


def make_parser() -> OneLineParser:
    """Build the parser of both commands."""
    parser = OneLineParser(prog="pyvllm", description="Run language models that are larger than the device.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    text = "say where every byte of a model would go; reads headers, no weights"
    plan = commands.add_parser("plan", help=text, description=text)
    add_plan_arguments(plan)
    text = "complete one prompt and print the text as it comes"
    run = commands.add_parser("run", help=text, description=text)
    run.add_argument("model", metavar="MODEL", help="a Hugging Face directory or a GGUF file")
    run.add_argument("--prompt", required=True, metavar="TEXT", help="what to complete")
    run.add_argument("--report", action="store_true", help="print where every byte is, on stderr, before the text")
    _add_sampling_arguments(run)
    add_engine_arguments(run)
    return parser


def _add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("sampling").add_argument
    add("--max-tokens", type=int, default=128, metavar="N", help="new tokens at most (default: 128)")
    add("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (default: 0)")
    add("--top-p", type=float, default=1.0, metavar="P", help="keep the likeliest tokens up to this sum (default: 1)")
    add("--top-k", type=int, default=0, metavar="K", help="keep this many tokens; 0 keeps all (default: 0)")
    add("--min-p", type=float, default=0.0, metavar="P", help="drop tokens below this part of the top one (default: 0)")
    add("--seed", type=int, metavar="N", help="makes sampling repeatable")
    add("--stop", nargs="+", default=[], metavar="TEXT", help="strings that end the text")
    add("--ignore-eos", action="store_true", help="go on after the end of the sequence")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return its exit code. An error is one line on stderr and 1."""
    try:
        args = make_parser().parse(sys.argv[1:] if argv is None else argv)
        return _plan(args) if args.command == "plan" else _run(args)
    except VllmError as error:
        print(f"pyvllm: fatal: {one_line(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("pyvllm: fatal: interrupted", file=sys.stderr)
        return 130


def _plan(args: argparse.Namespace) -> int:
    if text := run_plan(args):
        _write(f"{text}\n")
    return 0


def _run(args: argparse.Namespace) -> int:
    names = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos")
    params = SamplingParams(stop=tuple(args.stop), **{name: getattr(args, name) for name in names})
    config = engine_config(args, args.model)
    engine = load_engine(config)
    try:
        if args.report:
            print(plan_text(engine.offload_report(), args.model), file=sys.stderr)
        engine.generate(args.prompt, params, lambda delta, _: _write(delta))
        _write("\n")
    finally:
        engine.close()
    return 0


def _write(text: str) -> bool:
    """Write to stdout; false when nobody reads it any more."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes stdout once more at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
