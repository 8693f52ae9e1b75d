"""The Python side of libvllm: decode the arguments of C, call, and map an exception to a status.

Only configuration is imported with this module. What loads a model is imported when one is really needed, so that a bad
configuration is refused in milliseconds. The C side is `csrc/api.c`; it has checked pointers for NULL already.
"""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pyvllm import logger
from pyvllm.capi_arguments import Arguments
from pyvllm.capi_handles import Handles
from pyvllm.engine.exit_guard import set_exit_guard
from pyvllm.errors import GenerationError, InvalidArgument, Status, VllmError

if TYPE_CHECKING:
    from pyvllm.capi_requests import LoadedEngine, OnText, SubmittedRequest
    from pyvllm.engine.llm_engine import Completion, LLMEngine

_REPLACEMENT = "\ufffd"
#: First handles of engines and of requests. Their numbers alternate, so that one is never taken for the other.
_FIRST_ENGINE, _FIRST_REQUEST = 0x0D21_0000_0010, 0x0D21_0000_0020


def bind(ffi: Any, lib: Any) -> None:
    """Make the functions of `csrc/python_calls.h` for one loaded copy of the library.

    ffi, lib: the two objects of that copy's cffi module.
    """
    calls = _Calls(ffi, lib)
    for function in (
        calls.engine_load,
        calls.engine_free,
        calls.engine_offload_report,
        calls.offload_plan,
        calls.complete,
        calls.complete_tokens,
        calls.complete_stream,
        calls.request_submit,
        calls.request_cancel,
        calls.request_wait,
        calls.request_done,
        calls.request_error,
        calls.request_free,
        calls.chat,
        calls.chat_stream,
        calls.embed,
        calls.server_main,
    ):
        name = f"vllm__py_{function.__name__}"
        ffi.def_extern(name=name, error=int(Status.UNKNOWN), onerror=calls.status_of)(function)
    logger.set_sink(calls.log, lib.vllm__logs_to_stderr)
    set_exit_guard(lib.vllm__guard_exit)


class _Calls:
    """The functions themselves; each returns a status, and an exception becomes one in `status_of`."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self._lib = lib
        self._arguments = Arguments(ffi)
        self._engines: Handles[LoadedEngine] = Handles(_FIRST_ENGINE, "engine", "vllm_engine_load")
        self._requests: Handles[SubmittedRequest] = Handles(_FIRST_REQUEST, "request", "vllm_request_submit")

    def engine_load(self, params: Any, options_json: Any, progress: Any, user_data: Any, out: Any) -> int:
        """Load a model and give out its handle."""
        config = self._arguments.engine_config(params, options_json, needs_model=True)
        parsers = self._arguments.parsers(params)
        from pyvllm.capi_requests import LoadedEngine
        from pyvllm.engine.start import load_engine
        from pyvllm.entrypoints.openai.chat_options import ChatOptions

        engine = load_engine(config, self._progress(progress, user_data))
        loaded = LoadedEngine(engine, ChatOptions(**parsers), config.model)
        out[0] = self._ffi.cast("vllm_engine*", self._engines.add(loaded))
        return Status.OK

    def engine_free(self, pointer: Any) -> int:
        """Close an engine after its running calls, then forget the handle."""
        handle = self._arguments.handle(pointer)
        self._engines.get(handle).close()
        self._engines.remove(handle)
        return Status.OK

    def engine_offload_report(self, pointer: Any, out_json: Any) -> int:
        """Give out where every byte of an engine is."""
        out_json[0] = self._new_document(self._engine(pointer).offload_report())
        return Status.OK

    def offload_plan(self, params: Any, options_json: Any, out_json: Any) -> int:
        """Give out what a load would do; without a model, the configuration alone."""
        config = self._arguments.engine_config(params, options_json, needs_model=False)
        from pyvllm.engine import preview

        is_alone = params.model_path == self._ffi.NULL
        document = preview.configuration_document(config.offload) if is_alone else preview.plan_document(config)
        out_json[0] = self._new_document(document)
        return Status.OK

    def complete(self, pointer: Any, prompt: Any, params: Any, out: Any) -> int:
        """Generate from a text."""
        engine, text = self._engine(pointer), self._arguments.text(prompt, "prompt")
        self._fill(out, self._generated(engine, text or "", params))
        return Status.OK

    def complete_tokens(self, pointer: Any, tokens: Any, params: Any, out: Any) -> int:
        """Generate from token ids; the first `max_out_tokens` new ones are given out."""
        engine = self._engine(pointer)
        prompt: Sequence[int] = self._ffi.unpack(tokens.prompt_tokens, tokens.n_prompt_tokens)
        completion = self._generated(engine, prompt, params)
        shown = list(completion.token_ids[: tokens.max_out_tokens])
        if shown:
            tokens.out_tokens[0 : len(shown)] = shown
        tokens.n_out_tokens = len(shown)
        self._fill(out, completion)
        return Status.OK

    def complete_stream(self, pointer: Any, prompt: Any, params: Any, callback: Any, user_data: Any) -> int:
        """Generate from a text, handing out each piece of text as it comes."""
        engine, text = self._engine(pointer), self._arguments.text(prompt, "prompt")
        self._generated(engine, text or "", params, self._on_text(callback, user_data))
        return Status.OK

    def request_submit(self, pointer: Any, prompt: Any, params: Any, call: Any, out: Any) -> int:
        """Submit a text and give out the request's handle."""
        from pyvllm.capi_requests import SubmittedRequest

        owner = self._engines.get(self._arguments.handle(pointer))
        request = SubmittedRequest(
            owner,
            self._arguments.text(prompt, "prompt") or "",
            self._arguments.sampling_params(params),
            self._on_text(call.callback, call.user_data),
            self._arguments.logits_processors(params),
        )
        out[0] = self._ffi.cast("vllm_request*", self._requests.add(request))
        return Status.OK

    def request_cancel(self, pointer: Any) -> int:
        """Ask for the end of a request."""
        self._request(pointer).cancel()
        return Status.OK

    def request_wait(self, pointer: Any) -> int:
        """Wait for the end of a request."""
        self._request(pointer).wait()
        return Status.OK

    def request_done(self, pointer: Any, out: Any) -> int:
        """Say whether a request has ended."""
        out[0] = self._request(pointer).is_done
        return Status.OK

    def request_error(self, pointer: Any, out: Any) -> int:
        """Give out a request's error, which lives as long as the request."""
        request = self._request(pointer)
        if request.error and request.error_text is None:
            request.error_text = self._ffi.new("char[]", _encoded(request.error))
        if request.error_text is not None:
            out[0] = request.error_text
        return Status.OK

    def request_free(self, pointer: Any) -> int:
        """Stop a request, wait for its callback and forget the handle."""
        handle = self._arguments.handle(pointer)
        self._requests.get(handle).close()
        self._requests.remove(handle)
        return Status.OK

    def chat(self, pointer: Any, request_json: Any, out_json: Any) -> int:
        """Answer a chat request with one object."""
        owner = self._engines.get(self._arguments.handle(pointer))
        from pyvllm.entrypoints.openai.fields import ApiError

        try:
            out_json[0] = self._new_document(owner.chat.complete(self._ffi.string(request_json), owner.name))
        except ApiError as error:
            raise _as_ours(error.status, error.message) from error
        return Status.OK

    def chat_stream(self, pointer: Any, request_json: Any, callback: Any, user_data: Any) -> int:
        """Answer a chat request in chunks."""
        owner, on_text = self._engines.get(self._arguments.handle(pointer)), self._on_text(callback, user_data)
        from pyvllm.entrypoints.openai.fields import ApiError

        chunks = owner.chat.stream(self._ffi.string(request_json), owner.name)
        try:
            for chunk, is_last in chunks:
                if not on_text(json.dumps(chunk), is_last):
                    break
        except ApiError as error:
            raise _as_ours(error.status, error.message) from error
        finally:
            chunks.close()
        return Status.OK

    def embed(self, pointer: Any, texts: Any, n_texts: int, out: Any) -> int:
        """Give out the vectors of texts."""
        engine, listed = self._engine(pointer), self._arguments.texts(texts, n_texts, "texts")
        from array import array

        from pyvllm.entrypoints.openai.embedding import embed

        vectors, num_tokens = embed(engine, listed)
        flat = array("f", [value for vector in vectors for value in vector])
        values = self._lib.vllm__new_floats(len(flat))
        if values == self._ffi.NULL:
            raise MemoryError(f"no memory for {len(flat)} numbers")
        self._ffi.memmove(values, flat, flat.itemsize * len(flat))
        out.values, out.n_embeddings, out.dim = values, len(vectors), len(vectors[0])
        out.prompt_tokens = num_tokens
        return Status.OK

    def server_main(self, argc: int, argv: Any, stop_fd: int, out: Any) -> int:
        """Run the server until `stop_fd` can be read."""
        words = self._arguments.texts(argv, argc, "argv")
        from pyvllm.entrypoints.openai.server import main

        try:
            out[0] = main(words[1:], stop_fd)
        except SystemExit as end:  # --help
            out[0] = end.code if isinstance(end.code, int) else 0
        return Status.OK

    def status_of(self, kind: type[BaseException], error: BaseException, trace: Any) -> int:
        """Turn what a function raised into this thread's last error and a status. cffi calls it for every exception."""
        text = str(error) or kind.__name__
        status = error.status if isinstance(error, VllmError) else None
        self._lib.vllm__set_error(_encoded(f"{kind.__name__}: {text}" if status is None else text))
        return int(Status.UNKNOWN if status is None else status)

    def log(self, level: int, text: str) -> None:
        """Hand a line of pyvllm to the host's callback, or to stderr."""
        self._lib.vllm__log(level, _encoded(text))

    def _engine(self, pointer: Any) -> "LLMEngine":
        return self._engines.get(self._arguments.handle(pointer)).engine

    def _request(self, pointer: Any) -> "SubmittedRequest":
        return self._requests.get(self._arguments.handle(pointer))

    def _generated(
        self, engine: "LLMEngine", prompt: str | Sequence[int], params: Any, on_text: "OnText | None" = None
    ) -> "Completion":
        sampling = self._arguments.sampling_params(params)
        return engine.generate(prompt, sampling, on_text, self._arguments.logits_processors(params))

    def _on_text(self, callback: Any, user_data: Any) -> "OnText":
        return lambda delta, finished: bool(callback(_encoded(delta), finished, user_data))

    def _progress(self, callback: Any, user_data: Any) -> Callable[[int, int, str], bool] | None:
        if callback == self._ffi.NULL:
            return None
        return lambda done, planned, name: bool(callback(done, planned, _encoded(name), user_data))

    def _new_string(self, text: str) -> Any:
        data = _encoded(text)
        pointer = self._lib.vllm__new_string(data, len(data))
        if pointer == self._ffi.NULL:
            raise MemoryError(f"no memory for {len(data)} bytes of text")
        return pointer

    def _new_document(self, document: dict[str, object]) -> Any:
        return self._new_string(json.dumps(document))

    def _fill(self, out: Any, completion: "Completion") -> None:
        out.text = self._new_string(completion.text)
        out.finish_reason = self._lib.vllm__finish_reason(completion.finish_reason.encode())
        out.prompt_tokens = len(completion.prompt_token_ids)
        out.completion_tokens = len(completion.token_ids)


def _as_ours(status: int, message: str) -> VllmError:
    """Turn the error of an HTTP answer into the exception that has its C status."""
    return InvalidArgument(message) if status < 500 else GenerationError(message)


def _encoded(text: str) -> bytes:
    """Encode a text for C, where U+0000 would end it."""
    return text.replace("\0", _REPLACEMENT).encode("utf-8", "replace")
