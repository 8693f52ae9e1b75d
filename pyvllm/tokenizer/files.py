"""Read the small files of a model directory that describe its tokenizer: bounded, regular, strict JSON.

Weight files and `config.json` are not read here.
"""

import json
import os
import stat
from collections import Counter

from pyvllm.errors import FormatError, ModelLoadError

MAX_TOKENIZER_BYTES = 256 * 2**20
MAX_CONFIG_BYTES = 10 * 2**20
MAX_TEMPLATE_BYTES = 256 * 2**10


def read_file(path: str, max_bytes: int) -> bytes:
    """Return the bytes of a regular file of at most `max_bytes`.

    Raises ModelLoadError for a path that is missing, unreadable or not a regular file; FormatError for one too large.
    """
    try:
        # O_NONBLOCK: opening a FIFO without a writer would otherwise wait for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    try:
        return _read_all(descriptor, path, max_bytes)
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    finally:
        os.close(descriptor)


def _read_all(descriptor: int, path: str, max_bytes: int) -> bytes:
    name = os.path.basename(path)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise ModelLoadError(f"{path}: is not a regular file")
    if status.st_size > max_bytes:
        raise FormatError(f"{name}: {status.st_size} bytes; at most {max_bytes} are read")
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise FormatError(f"{name}: grew beyond {max_bytes} bytes while it was read")
    return data


def read_json_object(path: str) -> dict[str, object]:
    """Return the JSON object in a file of at most 10 MiB.

    Raises FormatError for anything else than one object: bad UTF-8, a repeated key, NaN, nesting without end.
    """
    name = os.path.basename(path)
    data = read_file(path, MAX_CONFIG_BYTES)
    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{name}: is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise FormatError(f"{name}: must hold one JSON object, found {type(document).__name__}")
    return document


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    document = dict(pairs)
    if len(document) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {repeated!r} stands twice in one object")
    return document


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is not a JSON number")
