"""The command `pyvllm plan`: its flags, and which of its four faces answers: tables, JSON, a page, or a comparison."""

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import DeviceFitConfig, OffloadConfig, VllmCppConfig
from pyvllm.engine import preview
from pyvllm.entrypoints.arguments import add_engine_arguments, engine_config, readable_int
from pyvllm.entrypoints.plan_compare import comparison_text
from pyvllm.entrypoints.plan_page import plan_page
from pyvllm.entrypoints.plan_table import print_plan
from pyvllm.entrypoints.tables import plan_text
from pyvllm.errors import InvalidArgument
from pyvllm.offloader.plan import SCHEMA
from pyvllm.offloader.summary import rate_bound

#: Largest document that `--compare` reads; the plan of a 50,000-tensor model has some megabytes.
MAX_DOCUMENT_BYTES = 256 * 2**20
#: Keys without which a document is no plan of a model.
_KEYS = ("architecture", "weights", "planned", "bus_bytes_per_token", "bus", "capacity", "by_layer", "by_kind")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of `pyvllm plan`."""
    model = "a Hugging Face directory or a GGUF file; not needed to compare saved plans"
    parser.add_argument("model", metavar="MODEL", nargs="?", help=model)
    add = parser.add_argument_group("plan").add_argument
    add("--json", action="store_true", help="print the document of vllm_offload_plan instead of tables")
    add("--html", metavar="FILE", help="write the plan as one self-contained page")
    text = "two files, each a saved plan (--json) or an offload document for MODEL, side by side"
    add("--compare", nargs=2, metavar=("A.json", "B.json"), help=text)
    add("--fit", action="store_true", help="choose the offload that fits, as device_fit.auto does")
    add("--names", action="store_true", help="list every weight")
    text = "plan for a device with N free bytes and memory of its own instead of for this machine's"
    add("--device-bytes", type=readable_int, metavar="N", help=text)
    add("--host-bytes", type=readable_int, metavar="N", help="plan for a host with N free bytes")
    text = "bandwidth between host and device in GB/s (10**9 bytes), for the rate that it bounds"
    add("--bus-gb-per-s", type=float, metavar="X", help=text)
    add_engine_arguments(parser)


def run_plan(args: argparse.Namespace) -> str:
    """Do what the parsed flags ask for and return what is to be printed.

    Raises InvalidArgument or ModelLoadError.
    """
    rate = args.bus_gb_per_s
    if rate is not None and not (isfinite(rate) and rate > 0):
        raise InvalidArgument(f"--bus-gb-per-s must be a number above 0, got {rate}")
    for name in ("device_bytes", "host_bytes"):
        if (given := getattr(args, name)) is not None and given < 0:
            raise InvalidArgument(f"--{name.replace('_', '-')} must be at least 0, got {given}")
    if args.compare:
        return _compare(args)
    if args.model is None:
        raise InvalidArgument("MODEL is needed: the path of a Hugging Face directory or of a GGUF file")
    document = _with_rate(preview.plan_document(_config(args, args.model), _room(args)), rate)
    if args.html:
        _write(args.html, plan_page(document, args.model))
    if args.json:
        return json.dumps(document, indent=2)
    if sys.stdout.isatty() and print_plan(document, args.model, with_names=args.names):
        return ""
    return plan_text(document, args.model, with_names=args.names)


def _config(args: argparse.Namespace, model: str) -> EngineConfig:
    config = engine_config(args, model)
    if not args.fit:
        return config
    own = VllmCppConfig(DeviceFitConfig(config.offload.weight_budget_bytes, auto=True))
    return replace(config, offload=replace(config.offload, vllm_cpp=own))


def _room(args: argparse.Namespace) -> preview.AssumedRoom:
    return preview.AssumedRoom(args.device_bytes, args.host_bytes)


def _with_rate(document: dict[str, object], gb_per_s: float | None) -> dict[str, object]:
    if gb_per_s is None:
        return document
    bus: Mapping[str, object] = document["bus"]  # type: ignore[assignment]
    rates = rate_bound(document["bus_bytes_per_token"], gb_per_s)  # type: ignore[arg-type]
    return {**document, "bus": {**bus, "gb_per_s": gb_per_s, "tokens_per_s": rates}}


def _compare(args: argparse.Namespace) -> str:
    if args.html or args.fit or args.offload_config is not None:
        raise InvalidArgument("--compare takes its configurations from its two files; leave --html, --fit and "
                              "--offload-config out")  # fmt: skip
    documents = [_with_rate(_plan_of(path, args), args.bus_gb_per_s) for path in args.compare]
    if args.json:
        return json.dumps(dict(zip(("a", "b"), documents, strict=True)), indent=2)
    return comparison_text(documents, args.compare)


def _plan_of(path: str, args: argparse.Namespace) -> dict[str, object]:
    """Read a saved plan, or plan MODEL with the offload document that the file holds."""
    text = _read(path)
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"--compare {path}: is not JSON: {error}") from None
    if isinstance(document, dict) and "schema" in document:
        return _checked(document, path)
    if args.model is None:
        raise InvalidArgument(
            f"--compare {path}: is no saved plan (pyvllm plan MODEL --json); to compare offload documents, give MODEL"
        )
    try:
        offload = OffloadConfig.from_json(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"--compare {path}: {error}") from None
    return preview.plan_document(replace(_config(args, args.model), offload=offload), _room(args))


def _checked(document: dict[str, object], path: str) -> dict[str, object]:
    if document["schema"] != SCHEMA:
        raise InvalidArgument(f"--compare {path}: has schema {document['schema']!r}; {SCHEMA} is read")
    missing = [key for key in _KEYS if not document.get(key)]
    if missing:
        raise InvalidArgument(f"--compare {path}: is no plan of a model: it has no {', '.join(missing)}")
    return document


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidArgument(f"--compare {path}: cannot be read: {error}") from None
    if len(text) > MAX_DOCUMENT_BYTES:
        raise InvalidArgument(f"--compare {path}: is larger than {MAX_DOCUMENT_BYTES} bytes")
    return text


def _write(path: str, page: str) -> None:
    try:
        Path(path).write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"--html {path}: cannot be written: {error}") from None
