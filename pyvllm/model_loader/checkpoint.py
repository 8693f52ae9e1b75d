"""A model's files: what is accepted as a model, and which file holds which tensor.

`open_model` reads the configuration alone, so that an architecture can be refused before a weight file is opened;
`ModelSource.headers` opens the weight files and checks all of their headers. No weight is read here.
"""

import gc
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from pyvllm.config.model import architecture_of
from pyvllm.errors import FormatError, ModelLoadError
from pyvllm.model_loader import gguf, safetensors
from pyvllm.model_loader.gguf_model import SPLIT_GGUF, config_document, hugging_face_tensors
from pyvllm.model_loader.paths import ModelDirectory, OpenFile, check_shard_name, open_regular
from pyvllm.model_loader.safetensors import MAX_SHARDS
from pyvllm.model_loader.strict_json import json_object
from pyvllm.model_loader.tensor_info import FLOAT_DTYPES, TensorInfo

__all__ = ["Checkpoint", "ModelSource", "TensorInfo", "open_model"]

MAX_CONFIG_BYTES = 10 * 2**20

ACCEPTED = "a model is a directory with config.json, safetensors files and tokenizer.json, or one .gguf file"
PICKLE = "pickle is never read; convert the weights to safetensors"

_CONFIG, _INDEX, _SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
_PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHARD_NAME = re.compile(r"(.*-)(\d{5})-of-(\d{5})(\.safetensors)")
#: Keys of a GGUF file whose values are as long as the vocabulary and only make the tokenizer.
_TOKENS = "tokenizer.ggml.tokens"
_TOKENIZER_LISTS = (_TOKENS, "tokenizer.ggml.merges", "tokenizer.ggml.scores", "tokenizer.ggml.token_type")
_SPLIT_GGUF_NAME = re.compile(r".*-\d{5}-of-(\d{5})\.gguf")


class Checkpoint:
    """The open files of a model and the tensors in them, a context manager; `close` gives the files back."""

    def __init__(self, files: Sequence[OpenFile], tensors: Mapping[str, TensorInfo]) -> None:
        self._files = tuple(files)
        self.tensors = tensors
        """By Hugging Face name."""
        self.file_bytes = sum(info.nbytes for info in tensors.values())
        """Stored bytes of all the tensors."""
        self.is_quantised = any(info.is_quantised for info in tensors.values())
        """Whether any tensor is stored in quantised blocks."""
        self.stored_dtype = _most_common_dtype(tensors.values())
        """The float type that most elements are stored in, by torch's name; None when none is."""

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def file_name(self, info: TensorInfo) -> str:
        """Name of the file that holds a tensor, without its directory."""
        return self._files[info.file].name

    def read_into(self, info: TensorInfo, start: int, view: memoryview) -> None:
        """Fill `view` with stored bytes of a tensor, from its byte `start` on.

        view: writable, one byte per item; `start + len(view)` must not pass the tensor's end.
        Raises FormatError when the file ends before, ModelLoadError when the system cannot read it.
        """
        if start < 0 or start + len(view) > info.nbytes:
            raise FormatError(
                f"{self.file_name(info)}: tensor {info.name!r}: has {info.nbytes} bytes, "
                f"{len(view)} were asked for at byte {start}"
            )
        self._files[info.file].read_into(info.offset + start, view)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        files, self._files = self._files, ()
        for file in files:
            file.close()


def _most_common_dtype(tensors: Iterable[TensorInfo]) -> str | None:
    elements: Counter[str] = Counter()
    for info in tensors:
        if info.stored_type in FLOAT_DTYPES:
            elements[FLOAT_DTYPES[info.stored_type]] += info.numel
    return elements.most_common(1)[0][0] if elements else None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model whose configuration has been read, and nothing more; it holds no file open."""

    path: str
    name: str
    """Short name for errors and logs: the last component of the path."""
    kind: str
    """`safetensors` or `gguf`."""
    document: Mapping[str, object]
    """The `config.json` document; of a GGUF file, its keys under the same names."""
    origin: str
    """What to call the document in errors."""
    architecture: str
    gguf_metadata: Mapping[str, object] | None = None
    """All keys of a GGUF file, for its tokenizer; None for a directory."""
    gguf_header: gguf.GGUFHeader | None = None
    identity: tuple[int, int, int, int] | None = None
    """Of a GGUF file: which file the header was read from."""

    def without_headers(self) -> "ModelSource":
        """Give what is worth keeping once the tokenizer is built: not the lists that only a loader or tokenizer reads.

        Of a GGUF file's tokens those stay that another key names, by id: chat templates write them.
        """
        if self.gguf_metadata is None:
            return self
        kept = {key: value for key, value in self.gguf_metadata.items() if key not in _TOKENIZER_LISTS}
        if isinstance(tokens := self.gguf_metadata.get(_TOKENS), list):
            ids = [value for key, value in kept.items() if key.endswith("_token_id")]
            kept[_TOKENS] = {i: tokens[i] for i in ids if isinstance(i, int) and 0 <= i < len(tokens)}
        return replace(self, gguf_metadata=kept, gguf_header=None)

    def headers(self) -> Checkpoint:
        """Open the weight files and check all of their headers.

        Raises FormatError, naming file, tensor and rule; ModelLoadError for a file that is missing or cannot be opened.
        No file stays open after an error.
        """
        if self.gguf_header is not None:
            return self._gguf_checkpoint(self.gguf_header)
        with _collector_paused(), _open_directory(self.path) as directory, ExitStack() as on_error:
            opened: list[OpenFile] = []
            tensors = _safetensors_tensors(directory, opened, on_error)
            on_error.pop_all()
        return Checkpoint(opened, _with_model_prefix(tensors))

    def _gguf_checkpoint(self, header: gguf.GGUFHeader) -> Checkpoint:
        tensors = {info.name: info for info in hugging_face_tensors(header)}
        file = _open_file(self.path, self.name)
        if file.identity != self.identity:
            file.close()
            raise ModelLoadError(f"{self.name}: was changed while it was being loaded")
        return Checkpoint([file], tensors)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from going through every tensor read so far, again and again: none is in a cycle."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _with_model_prefix(tensors: dict[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Give the tensors of a decoder without its head the names that they have in one with it.

    `LlamaModel` of huggingface/transformers saves `layers.0...` where `LlamaForCausalLM` saves `model.layers.0...`.
    """
    if "embed_tokens.weight" not in tensors or any(name.startswith("model.") for name in tensors):
        return tensors
    heads = ("embed_tokens.", "layers.", "norm.")
    return {f"model.{name}" if name.startswith(heads) else name: info for name, info in tensors.items()}


def open_model(path: str) -> ModelSource:
    """Say what model is at `path`, from its configuration alone: `config.json`, or the header of a GGUF file.

    Raises ModelLoadError for a path that is no model or a kind of model that is not read, FormatError for a bad file.
    """
    try:
        is_directory = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        raise ModelLoadError(f"model path {path!r}: {error.strerror}; {ACCEPTED}") from None
    except ValueError as error:  # a NUL, or what no file name can be encoded from
        raise ModelLoadError(f"model path {path!r}: {error}; {ACCEPTED}") from None
    name = os.path.basename(os.path.abspath(path)).encode("utf-8", "replace").decode("utf-8")
    return _open_directory_model(path, name) if is_directory else _open_gguf_model(path, name)


def _open_gguf_model(path: str, name: str) -> ModelSource:
    if name.endswith(_PICKLE_SUFFIXES):
        raise ModelLoadError(f"{name}: {PICKLE}")
    if (match := _SPLIT_GGUF_NAME.fullmatch(name)) and int(match[1]) > 1:
        raise ModelLoadError(f"{name}: is one of {int(match[1])} parts; {SPLIT_GGUF}")
    file = _open_file(path, name)
    try:
        if file.size < 4 or file.read(0, 4) != b"GGUF":
            raise FormatError(f"{name}: is not a GGUF file; {ACCEPTED}")
        header = gguf.read_header(file)
        document = config_document(header, file)
    finally:
        file.close()
    architecture = architecture_of(document, name)
    return ModelSource(path, name, "gguf", document, name, architecture, header.keys, header, file.identity)


def _open_file(path: str, name: str) -> OpenFile:
    try:
        return open_regular(path, name)
    except OSError as error:
        raise ModelLoadError(f"{name}: cannot be opened: {error.strerror}") from None


def _open_directory(path: str) -> ModelDirectory:
    try:
        return ModelDirectory(path)
    except OSError as error:
        raise ModelLoadError(f"model path {path!r}: {error.strerror}; {ACCEPTED}") from None


def _open_directory_model(path: str, name: str) -> ModelSource:
    with _open_directory(path) as directory:
        _check_listing(name, directory.names())
        file = directory.open(_CONFIG)
        try:
            document = json_object(file.read_all(MAX_CONFIG_BYTES), _CONFIG)
        finally:
            file.close()
    return ModelSource(path, name, "safetensors", document, _CONFIG, architecture_of(document, _CONFIG))


def _check_listing(name: str, names: Sequence[str]) -> None:
    """Refuse a directory that its entries alone show to be no model that is read."""
    adapter = next((entry for entry in names if entry.startswith(("adapter_config.", "adapter_model."))), None)
    if adapter:
        raise ModelLoadError(f"{name}: {adapter!r}: adapters are not supported; merge the adapter into its model first")
    if _CONFIG not in names:
        hint = next((f": give the path of its file {entry!r}" for entry in names if entry.endswith(".gguf")), "")
        raise ModelLoadError(f"{name}: has no config.json; {ACCEPTED}{hint}")
    if _INDEX not in names and not any(entry.endswith(".safetensors") for entry in names):
        pickle = next((entry for entry in names if entry.endswith(_PICKLE_SUFFIXES)), None)
        found = f"its weights are in {pickle!r}: {PICKLE}" if pickle else f"has no .safetensors file; {ACCEPTED}"
        raise ModelLoadError(f"{name}: {found}")
    if "tokenizer.model" in names and "tokenizer.json" not in names:
        raise ModelLoadError(
            f"{name}: tokenizer.model without tokenizer.json: only tokenizer.json is read; "
            "save the tokenizer as a fast one"
        )


def _safetensors_tensors(
    directory: ModelDirectory, opened: list[OpenFile], on_error: ExitStack
) -> dict[str, TensorInfo]:
    """Open the weight files of a directory, add them to `opened`, and say which tensors count."""
    names = directory.names()
    weight_map = _weight_map(directory) if _INDEX in names else None
    files = sorted(set(weight_map.values())) if weight_map else _without_index(names)
    if weight_map and (missing := directory.missing(files)):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelLoadError(f"{_INDEX}: names a file that is not there: {missing[0]}{more}")
    tensors: dict[str, TensorInfo] = {}
    for position, file_name in enumerate(files):
        opened.append(directory.open(file_name))
        on_error.callback(opened[-1].close)
        for info in safetensors.read_header(opened[-1], position):
            if weight_map is None:
                _add(tensors, info, files)
            elif info.name not in weight_map:
                raise FormatError(f"{file_name}: tensor {info.name!r}: is not listed in {_INDEX}")
            elif weight_map[info.name] == file_name:
                tensors[info.name] = info
    for name in weight_map or ():
        if name not in tensors:
            raise FormatError(f"{weight_map[name]}: tensor {name!r}: is not there, though {_INDEX} names this file")  # type: ignore[index]
    return tensors


def _add(tensors: dict[str, TensorInfo], info: TensorInfo, files: Sequence[str]) -> None:
    if (other := tensors.get(info.name)) is not None:
        rule = f"is also in {files[other.file]}, and no {_INDEX} says which one counts"
        raise FormatError(f"{files[info.file]}: tensor {info.name!r}: {rule}")
    tensors[info.name] = info


def _weight_map(directory: ModelDirectory) -> dict[str, str]:
    file = directory.open(_INDEX)
    try:
        return safetensors.read_index(file)
    finally:
        file.close()


def _without_index(names: Sequence[str]) -> list[str]:
    """Choose the weight files of a directory without an index."""
    if _SINGLE in names:
        return [_SINGLE]
    files = [name for name in names if name.endswith(".safetensors")]
    # Beside files of the Hugging Face layout this is a second copy of the model under other tensor names.
    files = [name for name in files if not name.startswith("consolidated")] or files
    if len(files) > MAX_SHARDS:
        raise ModelLoadError(f"the model has {len(files)} .safetensors files; at most {MAX_SHARDS} are opened")
    for name in files:
        check_shard_name(name, "the model directory")
        if match := _SHARD_NAME.fullmatch(name):
            count = int(match[3])
            parts = (f"{match[1]}{part:05d}-of-{match[3]}{match[4]}" for part in range(1, count + 1))
            if missing := next((part for part in parts if part not in files), None):
                raise ModelLoadError(f"{name}: is one of {count} files, and {missing} is not there")
    return files
