"""libvllm through ctypes, for Python callers of the C library: structures, signatures and a small `Engine`.

This file stands apart: it needs the standard library only, so it can be copied beside any program. It says the same as
`include/vllm.h`. Who wants the models in Python rather than the library uses `pyvllm.LLM`.
"""

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_bool, c_char_p, c_double, c_float, c_int32, c_int64, c_uint64, c_void_p
from pathlib import Path
from typing import Any

ABI_VERSION = 21
OK = 0

#: What a caller may give for a JSON document: its text, or the mapping that it says.
Document = str | Mapping[str, object] | None

TokenCallback = ctypes.CFUNCTYPE(c_bool, c_char_p, c_bool, c_void_p)
LogitsProcessor = ctypes.CFUNCTYPE(None, POINTER(c_int32), c_int32, POINTER(c_float), c_int32, c_void_p)
ProgressCallback = ctypes.CFUNCTYPE(c_bool, c_int64, c_int64, c_char_p, c_void_p)
LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


class ModelParams(ctypes.Structure):
    """`vllm_model_params`."""

    _fields_ = (
        ("model_path", c_char_p), ("tokenizer_config_path", c_char_p), ("block_size", c_int32),
        ("num_blocks", c_int32), ("max_model_len", c_int32), ("max_num_seqs", c_int32), ("tool_parser", c_char_p),
        ("reasoning_parser", c_char_p), ("speculative_config", c_char_p), ("enable_prefix_caching", c_int32),
        ("max_num_batched_tokens", c_int32), ("scheduling_policy", c_char_p), ("kv_transfer_config", c_char_p),
        ("offload_config", c_char_p), ("enable_jump_forward", c_int32), ("device", c_int32),
        ("gpu_memory_utilization", c_double), ("kv_cache_memory_bytes", c_int64), ("language_model_only", c_int32),
        ("limit_mm_per_prompt", c_char_p),
    )  # fmt: skip


class SamplingParams(ctypes.Structure):
    """`vllm_sampling_params`."""

    _fields_ = (
        ("temperature", c_float), ("top_p", c_float), ("top_k", c_int32), ("min_p", c_float),
        ("max_tokens", c_int32), ("seed", c_uint64), ("has_seed", c_int32), ("presence_penalty", c_float),
        ("frequency_penalty", c_float), ("repetition_penalty", c_float), ("min_tokens", c_int32),
        ("ignore_eos", c_int32), ("stop", POINTER(c_char_p)), ("n_stop", c_int32), ("structured_json", c_char_p),
        ("structured_regex", c_char_p), ("structured_choice", POINTER(c_char_p)), ("n_structured_choice", c_int32),
        ("structured_grammar", c_char_p), ("structured_json_object", c_int32),
        ("logits_processor", LogitsProcessor), ("logits_processor_user_data", c_void_p),
    )  # fmt: skip


class Completion(ctypes.Structure):
    """`vllm_completion`. `text` is the library's memory: an address, read with `ctypes.string_at`."""

    _fields_ = (
        ("text", c_void_p), ("finish_reason", c_char_p), ("prompt_tokens", c_int32), ("completion_tokens", c_int32),
    )  # fmt: skip


class EmbeddingResult(ctypes.Structure):
    """`vllm_embedding_result`."""

    _fields_ = (
        ("values", POINTER(c_float)), ("n_embeddings", c_int32), ("dim", c_int32), ("prompt_tokens", c_int32),
    )  # fmt: skip


_MODEL, _SAMPLING, _COMPLETION = POINTER(ModelParams), POINTER(SamplingParams), POINTER(Completion)
_OWNED, _EMBEDDING, _TEXTS = POINTER(c_void_p), POINTER(EmbeddingResult), POINTER(c_char_p)

#: Every function of vllm.h: result, then arguments. An engine, a request and an owned string are addresses.
SIGNATURES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "vllm_model_params_default": (ModelParams, ()),
    "vllm_sampling_params_default": (SamplingParams, ()),
    "vllm_version": (c_char_p, ()),
    "vllm_abi_version": (c_int32, ()),
    "vllm_status_string": (c_char_p, (c_int32,)),
    "vllm_last_error": (c_char_p, ()),
    "vllm_log_set": (None, (LogCallback, c_void_p)),
    "vllm_engine_load": (c_int32, (_MODEL, _OWNED)),
    "vllm_engine_load_with_options": (c_int32, (_MODEL, c_char_p, ProgressCallback, c_void_p, _OWNED)),
    "vllm_engine_free": (None, (c_void_p,)),
    "vllm_engine_offload_report": (c_int32, (c_void_p, _OWNED)),
    "vllm_offload_plan": (c_int32, (_MODEL, c_char_p, _OWNED)),
    "vllm_complete": (c_int32, (c_void_p, c_char_p, _SAMPLING, _COMPLETION)),
    "vllm_complete_tokens": (
        c_int32,
        (c_void_p, POINTER(c_int32), c_int32, _SAMPLING, POINTER(c_int32), c_int32, POINTER(c_int32), _COMPLETION),
    ),
    "vllm_complete_stream": (c_int32, (c_void_p, c_char_p, _SAMPLING, TokenCallback, c_void_p)),
    "vllm_request_submit": (c_int32, (c_void_p, c_char_p, _SAMPLING, TokenCallback, c_void_p, _OWNED)),
    "vllm_request_cancel": (c_int32, (c_void_p,)),
    "vllm_request_wait": (c_int32, (c_void_p,)),
    "vllm_request_done": (c_bool, (c_void_p,)),
    "vllm_request_error": (c_char_p, (c_void_p,)),
    "vllm_request_free": (None, (c_void_p,)),
    "vllm_chat": (c_int32, (c_void_p, c_char_p, _OWNED)),
    "vllm_chat_stream": (c_int32, (c_void_p, c_char_p, TokenCallback, c_void_p)),
    "vllm_embed": (c_int32, (c_void_p, _TEXTS, c_int32, _EMBEDDING)),
    "vllm_embedding_result_free": (None, (_EMBEDDING,)),
    "vllm_server_main": (c_int32, (c_int32, _TEXTS)),
    "vllm_string_free": (None, (c_void_p,)),
    "vllm_completion_free": (None, (_COMPLETION,)),
}


class LibraryError(Exception):
    """A call that the library refused or that failed."""

    def __init__(self, status: int, name: str, text: str) -> None:
        """Keep the number of the status beside its name and the library's text."""
        super().__init__(f"{name}: {text}")
        self.status = status
        self.text = text


class Library:
    """libvllm with its signatures set."""

    def __init__(self, path: str | Path | None = None) -> None:
        """Open the library: at `path`, or the one installed beside this file. Raises OSError if it is not there."""
        self.lib = ctypes.CDLL(str(path or Path(__file__).with_name("lib") / "libvllm.so"))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(self.lib, name)
            function.restype, function.argtypes = result, arguments
        found = self.lib.vllm_abi_version()
        if found != ABI_VERSION:
            raise OSError(f"the library has ABI version {found}; this module is for {ABI_VERSION}")
        # C keeps the address only, so the callback must live as long as it is set
        self._log_callback = LogCallback()

    @property
    def version(self) -> str:
        """The library's version."""
        return bytes(self.lib.vllm_version()).decode()

    def check(self, status: int) -> None:
        """Raise LibraryError for any status but OK."""
        if status != OK:
            name = self.lib.vllm_status_string(status).decode()
            raise LibraryError(status, name, self.lib.vllm_last_error().decode())

    def set_log(self, sink: Callable[[int, str], None] | None) -> None:
        """Send the library's lines to `sink(level, text)`; None brings back stderr."""
        callback = LogCallback(lambda level, text, _: sink(level, text.decode())) if sink else LogCallback()
        self.lib.vllm_log_set(callback, None)
        self._log_callback = callback

    def offload_plan(self, model: str | None = None, options: Document = None, **fields: object) -> dict[str, Any]:
        """Return the plan of a load, or of the configuration alone without a model. Arguments as for `Engine`."""
        out = c_void_p()
        params = self.model_params(model, fields)
        self.check(self.lib.vllm_offload_plan(ctypes.byref(params), _json(options), ctypes.byref(out)))
        return self.take_document(out)

    def model_params(self, model: str | None, fields: Mapping[str, object]) -> ModelParams:
        """Fill a `vllm_model_params`: the defaults, then `fields` by name. A mapping becomes its JSON text."""
        params = self.lib.vllm_model_params_default()
        for name, value in {"model_path": model, **fields}.items():
            _set(params, name, _json(value) if isinstance(value, str | Mapping | None) else value)
        return params  # type: ignore[no-any-return]

    def sampling_params(self, fields: Mapping[str, object]) -> SamplingParams:
        """Fill a `vllm_sampling_params`: the defaults, then `fields` by name.

        `seed`, `stop` and `structured_choice` set their partners. `logits_processor` is a LogitsProcessor, which the
        caller keeps alive.
        """
        params = self.lib.vllm_sampling_params_default()
        for name, value in fields.items():
            if name in ("stop", "structured_choice"):
                texts = [text.encode() for text in value]  # type: ignore[attr-defined]
                setattr(params, name, (c_char_p * len(texts))(*texts))
                setattr(params, f"n_{name}", len(texts))
            else:
                _set(params, name, value.encode() if isinstance(value, str) else value)
            if name == "seed":
                params.has_seed = 1
        return params  # type: ignore[no-any-return]

    def take_document(self, owned: c_void_p) -> dict[str, Any]:
        """Read a JSON document that the library gave out, and free it."""
        try:
            document: dict[str, Any] = json.loads(ctypes.string_at(owned.value or 0))
        finally:
            self.lib.vllm_string_free(owned)
        return document


class Engine:
    """A loaded model. Close it, or use it as a context manager."""

    def __init__(
        self,
        model: str,
        *,
        library: Library | None = None,
        options: Document = None,
        progress: Callable[[int, int, str], bool] | None = None,
        **fields: object,
    ) -> None:
        """Load a model.

        fields: of `vllm_model_params`, by name, such as `offload_config` and `max_model_len`. options: `options_json`.
        progress: hears bytes done, bytes planned and a weight's name; a false result cancels. Raises LibraryError.
        """
        self.library = library or Library()
        self._engine = c_void_p()
        call = _Callback(lambda done, planned, name, _: bool(progress and progress(done, planned, name.decode())))
        callback = ProgressCallback(call) if progress else ProgressCallback()
        params = self.library.model_params(model, fields)
        status = self.library.lib.vllm_engine_load_with_options(
            ctypes.byref(params), _json(options), callback, None, ctypes.byref(self._engine)
        )
        call.raise_if_failed()
        self.library.check(status)

    def complete(self, prompt: str, **sampling: object) -> str:
        """Continue a text. sampling: fields of `vllm_sampling_params`, by name. Raises LibraryError."""
        completion = Completion()
        params = self.library.sampling_params(sampling)
        lib = self.library.lib
        self.library.check(
            lib.vllm_complete(self._engine, prompt.encode(), ctypes.byref(params), ctypes.byref(completion))
        )
        try:
            return ctypes.string_at(completion.text).decode()
        finally:
            lib.vllm_completion_free(ctypes.byref(completion))

    def complete_tokens(self, prompt_tokens: Sequence[int], **sampling: object) -> list[int]:
        """Continue a list of token ids and return the new ones. Raises LibraryError."""
        params = self.library.sampling_params(sampling)
        prompt = (c_int32 * len(prompt_tokens))(*prompt_tokens)
        room, written = max(params.max_tokens, 0), c_int32()
        found = (c_int32 * room)()
        status = self.library.lib.vllm_complete_tokens(
            self._engine, prompt, len(prompt), ctypes.byref(params), found, room, ctypes.byref(written), None
        )
        self.library.check(status)
        return list(found[: written.value])

    def stream(self, prompt: str, on_text: Callable[[str, bool], bool], **sampling: object) -> None:
        """Continue a text and call `on_text(delta, finished)` with each piece; a false result stops early.

        What `on_text` raises stops too, and is raised again here. Raises LibraryError.
        """
        call = _Callback(lambda delta, finished, _: bool(on_text(delta.decode(), finished)))
        callback = TokenCallback(call)
        params = self.library.sampling_params(sampling)
        status = self.library.lib.vllm_complete_stream(
            self._engine, prompt.encode(), ctypes.byref(params), callback, None
        )
        call.raise_if_failed()
        self.library.check(status)

    def submit(self, prompt: str, on_text: Callable[[str, bool], bool], **sampling: object) -> "Request":
        """Submit a text and return at once; `on_text(delta, finished)` is called on a thread of the library.

        Raises LibraryError.
        """
        return Request(self, prompt, on_text, self.library.sampling_params(sampling))

    def chat(self, request: Document) -> dict[str, Any]:
        """Answer an OpenAI chat request with its `chat.completion` object. Raises LibraryError."""
        out = c_void_p()
        self.library.check(self.library.lib.vllm_chat(self._engine, _json(request), ctypes.byref(out)))
        return self.library.take_document(out)

    def chat_stream(self, request: Document, on_chunk: Callable[[dict[str, Any], bool], bool]) -> None:
        """Answer an OpenAI chat request and call `on_chunk(chunk, finished)`; a false result stops early.

        What `on_chunk` raises stops too, and is raised again here. Raises LibraryError.
        """
        call = _Callback(lambda chunk, finished, _: bool(on_chunk(json.loads(chunk), finished)))
        status = self.library.lib.vllm_chat_stream(self._engine, _json(request), TokenCallback(call), None)
        call.raise_if_failed()
        self.library.check(status)

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return the vectors of texts. Raises LibraryError."""
        encoded = [text.encode() for text in texts]
        result = EmbeddingResult()
        lib = self.library.lib
        array = (c_char_p * len(encoded))(*encoded)
        self.library.check(lib.vllm_embed(self._engine, array, len(encoded), ctypes.byref(result)))
        try:
            dim = result.dim
            return [result.values[index * dim : (index + 1) * dim] for index in range(result.n_embeddings)]
        finally:
            lib.vllm_embedding_result_free(ctypes.byref(result))

    def offload_report(self) -> dict[str, Any]:
        """Return where every byte is: asked, planned, measured. Raises LibraryError."""
        out = c_void_p()
        self.library.check(self.library.lib.vllm_engine_offload_report(self._engine, ctypes.byref(out)))
        return self.library.take_document(out)

    def close(self) -> None:
        """Free the engine; it waits for running calls. A second call does nothing."""
        engine, self._engine = self._engine, c_void_p()
        self.library.lib.vllm_engine_free(engine)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Request:
    """A request that goes on by itself. Close it, or use it as a context manager."""

    def __init__(
        self, engine: Engine, prompt: str, on_text: Callable[[str, bool], bool], params: SamplingParams
    ) -> None:
        """Submit; use `Engine.submit`."""
        self._library = engine.library
        self._call = _Callback(lambda delta, finished, _: bool(on_text(delta.decode(), finished)))
        # C keeps the addresses only, so both must live as long as the request
        self._callback, self._params = TokenCallback(self._call), params
        self._request = c_void_p()
        arguments = (engine._engine, prompt.encode(), ctypes.byref(params), self._callback, None)
        self._library.check(self._library.lib.vllm_request_submit(*arguments, ctypes.byref(self._request)))

    def cancel(self) -> None:
        """Ask for its end. Raises LibraryError."""
        self._library.check(self._library.lib.vllm_request_cancel(self._request))

    def wait(self) -> None:
        """Wait for its end. Raises LibraryError if it failed, and what `on_text` raised."""
        status = self._library.lib.vllm_request_wait(self._request)
        self._call.raise_if_failed()
        self._library.check(status)

    @property
    def is_done(self) -> bool:
        """Whether it has ended and its callback has returned for the last time."""
        return bool(self._library.lib.vllm_request_done(self._request))

    @property
    def error(self) -> str:
        """What went wrong, once it is done; empty otherwise."""
        return bytes(self._library.lib.vllm_request_error(self._request)).decode()

    def close(self) -> None:
        """Stop it if it still runs, and free it. A second call does nothing."""
        request, self._request = self._request, c_void_p()
        self._library.lib.vllm_request_free(request)

    def __enter__(self) -> "Request":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Callback:
    """A function that C may call: what it raises is kept, and stops the call like a false result."""

    def __init__(self, function: Callable[..., bool]) -> None:
        self._function = function
        self._error: BaseException | None = None

    def __call__(self, *arguments: object) -> bool:
        try:
            return self._function(*arguments)
        except BaseException as error:
            self._error = error
            return False

    def raise_if_failed(self) -> None:
        """Raise again, in the caller, what the function raised."""
        if self._error is not None:
            raise self._error


def _set(params: ctypes.Structure, name: str, value: object) -> None:
    if name not in {field[0] for field in params._fields_}:
        raise TypeError(f"{type(params).__name__} has no field {name!r}")
    setattr(params, name, value)


def _json(document: Document) -> bytes | None:
    if isinstance(document, Mapping):
        return json.dumps(document).encode()
    return None if document is None else document.encode()
