"""Run in a process of its own: what the library says to each case on stdin, as a list of [status, text] on stdout.

A case with `model` (fields of vllm_model_params) and `options` is a plan; one with `sampling` is a completion on the
model whose path is in argv. {"hex": ...} stands for bytes and {"strings": [...]} for an array of them.
"""

import json
import sys
from ctypes import c_char_p, cast
from typing import Any

from pyvllm import clib


def decoded(name: str, value: Any) -> Any:
    """Turn a field of a case into what ctypes takes."""
    if name == "logits_processor":
        return clib.LogitsProcessor(lambda *_: None)
    if isinstance(value, dict) and "hex" in value:
        return bytes.fromhex(value["hex"])
    if isinstance(value, dict) and "strings" in value:
        texts = [None if text is None else text.encode("latin-1") for text in value["strings"]]
        return (c_char_p * len(texts))(*texts)
    return value.encode() if isinstance(value, str) else value


def fill(params: Any, fields: dict[str, Any]) -> Any:
    """Set fields as they are, with no help from clib."""
    for name, value in fields.items():
        found = decoded(name, value)
        kind = dict(params._fields_)[name]
        setattr(params, name, cast(found, kind) if name in ("stop", "structured_choice") else found)
    return params


def outcome(library: clib.Library, call: Any) -> tuple[int, str]:
    """Make a call and give its status and text."""
    try:
        call()
    except clib.LibraryError as error:
        return error.status, error.text
    return 0, library.lib.vllm_last_error().decode()


def main() -> None:
    """Answer every case."""
    library = clib.Library()
    path = sys.argv[1] if len(sys.argv) > 1 else None
    engine = clib.Engine(path, library=library, device=1) if path else None
    answers = []
    for case in json.load(sys.stdin):
        if "model" in case:
            params = fill(library.lib.vllm_model_params_default(), case["model"])
            options = decoded("options_json", case.get("options"))
            plan = clib.c_void_p()
            call = lambda: library.check(library.lib.vllm_offload_plan(params, options, plan))  # noqa: E731, B023
        else:
            params = fill(library.lib.vllm_sampling_params_default(), case["sampling"])
            completion = clib.Completion()
            arguments = (engine and engine._engine, b"A", params, completion)
            call = lambda: library.check(library.lib.vllm_complete(*arguments))  # noqa: E731, B023
        answers.append(outcome(library, call))
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
