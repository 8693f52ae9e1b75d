"""Whether a model gives embeddings instead of text: judged from the files beside it, before a weight is read. No torch.

As vLLM does without being told: an architecture whose name ends in `Model`, or a sentence-transformers `modules.json`
with a pooling module, makes an embedding model; everything else generates. Source: `_get_default_runner_type` of vLLM's
ModelConfig; the files of sentence-transformers; `pooling_type` of the GGUF specification.
"""

import json
import os
from collections.abc import Mapping

from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.model_loader.checkpoint import ModelSource
from pyvllm.tokenizer.files import MAX_CONFIG_BYTES, read_file, read_json_object

_GGUF_POOLINGS = {1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}
_SUPPORTED = "lasttoken"


def is_embedding_model(source: ModelSource) -> bool:
    """Say whether a model gives embeddings.

    Raises ModelLoadError for one whose vectors are not made from the last token, FormatError for a damaged file.
    """
    metadata = source.gguf_metadata
    poolings = _directory_poolings(source.path) if metadata is None else _gguf_poolings(metadata)
    for pooling in poolings:
        if pooling != _SUPPORTED:
            raise ModelLoadError(
                f"{source.name}: its embeddings are made by {pooling} pooling; supported is {_SUPPORTED} pooling only"
            )
    return bool(poolings) or source.architecture.endswith("Model")


def _gguf_poolings(metadata: Mapping[str, object]) -> list[str]:
    value = metadata.get(f"{metadata.get('general.architecture')}.pooling_type")
    if value in (None, 0):
        return []
    return [_GGUF_POOLINGS.get(value, f"type {value}") if isinstance(value, int) else f"type {value!r:.40}"]


def _directory_poolings(directory: str) -> list[str]:
    """Name the poolings of a sentence-transformers directory; there are none without its `modules.json`."""
    path = os.path.join(directory, "modules.json")
    if not os.path.exists(path):
        return []
    try:
        modules = json.loads(read_file(path, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"modules.json: is not valid JSON: {error}") from error
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise FormatError("modules.json: must be a list of objects")
    found: list[str] = []
    for module in modules:
        if str(module.get("type", "")).rpartition(".")[2] == "Pooling":
            found += _pooling(directory, str(module.get("path", "")))
    return found


def _pooling(directory: str, folder: str) -> list[str]:
    """Name the poolings that one module asks for: `pooling_mode`, or the older flags `pooling_mode_...`."""
    if not folder or os.path.basename(folder) != folder or folder.startswith("."):
        raise FormatError(f"modules.json: the path of a pooling module must be one folder, found {folder!r:.80}")
    document = read_json_object(os.path.join(directory, folder, "config.json"))
    named = document.get("pooling_mode")
    if named is not None:
        return [str(item) for item in (named if isinstance(named, list) else [named])]
    flags = [key.removeprefix("pooling_mode_") for key, value in document.items() if value is True]
    chosen = [flag for flag in flags if f"pooling_mode_{flag}" in document]
    if not chosen:
        raise ModelLoadError(f"{folder}/config.json: names no pooling mode")
    return chosen
