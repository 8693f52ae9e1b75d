"""The Python side of libvllm: decode the arguments of C, call, and map an exception to a status.

Only configuration is imported with this module. What loads a model is imported when one is really needed, so that a bad
configuration is refused in milliseconds. The C side is `csrc/api.c`; it has checked pointers for NULL already.
"""

import json
from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from pyvllm import logger
from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.config.options import engine_options
from pyvllm.errors import InvalidArgument, Status, VllmError
from pyvllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyvllm.engine.llm_engine import Completion, LLMEngine

_DEVICES = {0: "auto", 1: "cpu", 2: "cuda"}
_OFF = 2
#: Numbers of `vllm_model_params` for which 0 or less is the default.
_SIZES = ("block_size", "num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
_REPLACEMENT = "\ufffd"


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
    ):
        name = f"vllm__py_{function.__name__}"
        ffi.def_extern(name=name, error=int(Status.UNKNOWN), onerror=calls.status_of)(function)
    logger.set_sink(calls.log)


class _Engines:
    """The live engines by handle: a number that no pointer of the process has, and that is never used again."""

    # above 32 bits, so that a handle cut to an int is no handle; below the addresses that Linux gives out
    _FIRST = 0x0D21_0000_0010

    def __init__(self) -> None:
        self._live: dict[int, LLMEngine] = {}
        self._numbers = count(self._FIRST, 0x10)

    def add(self, engine: "LLMEngine") -> int:
        """Give an engine its handle."""
        handle = next(self._numbers)
        self._live[handle] = engine
        return handle

    def get(self, handle: int) -> "LLMEngine":
        """Return the engine of a handle, or raise InvalidArgument."""
        engine = self._live.get(handle)
        if engine is None:
            raise InvalidArgument(
                f"engine {handle:#x} is not a live engine: it was freed, or it never came from vllm_engine_load"
            )
        return engine

    def remove(self, handle: int) -> None:
        """Forget a handle; another thread may have done so."""
        self._live.pop(handle, None)


class _Arguments:
    """Decodes the arguments of C into values; an error names the field."""

    def __init__(self, ffi: Any) -> None:
        self._ffi = ffi

    def text(self, pointer: Any, name: str) -> str | None:
        """Return a string argument, None for NULL."""
        if pointer == self._ffi.NULL:
            return None
        data: bytes = self._ffi.string(pointer)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            byte = data[error.start]
            raise InvalidArgument(f"{name} is not valid UTF-8: byte 0x{byte:02x} at offset {error.start}") from error

    def texts(self, pointer: Any, number: int, name: str) -> tuple[str, ...]:
        """Return an array of `number` strings."""
        _require(number >= 0, f"n_{name}", number, "0 or more")
        if number and pointer == self._ffi.NULL:
            raise InvalidArgument(f"{name} is NULL but n_{name} is {number}")
        found = [self.text(pointer[index], f"{name}[{index}]") for index in range(number)]
        for index, text in enumerate(found):
            if text is None:
                raise InvalidArgument(f"{name}[{index}] is NULL")
        return tuple(text for text in found if text is not None)

    def handle(self, pointer: Any) -> int:
        """Return the number that an engine handle is."""
        return int(self._ffi.cast("uintptr_t", pointer))

    def engine_config(self, params: Any, options_json: Any, needs_model: bool) -> EngineConfig:
        """Decode `vllm_model_params` and the options; offload_config is judged first, the path is not looked at."""
        offload = OffloadConfig.from_json(self.text(params.offload_config, "offload_config"))
        options = engine_options(self.text(options_json, "options_json"))
        self._refuse_unsupported_model_fields(params)
        model = self.text(params.model_path, "model_path")
        if needs_model and model is None:
            raise InvalidArgument("model_path is NULL; name a Hugging Face directory or a GGUF file")
        return EngineConfig(
            model=model or "",
            tokenizer_config_path=self.text(params.tokenizer_config_path, "tokenizer_config_path") or None,
            device=_DEVICES[params.device],
            gpu_memory_utilization=params.gpu_memory_utilization or 0.92,
            kv_cache_memory_bytes=params.kv_cache_memory_bytes,
            enable_prefix_caching=params.enable_prefix_caching != _OFF,
            offload=offload,
            **self._given_model_fields(params),
            **options,  # type: ignore[arg-type]
        )

    def _given_model_fields(self, params: Any) -> dict[str, Any]:
        """Return the fields that are not left at their default, which is 0 or less for a number and "" for a text."""
        given = {name: getattr(params, name) for name in _SIZES if getattr(params, name) > 0}
        policy = self.text(params.scheduling_policy, "scheduling_policy")
        return {**given, "scheduling_policy": policy} if policy else given

    def _refuse_unsupported_model_fields(self, params: Any) -> None:
        for name in ("tool_parser", "reasoning_parser", "speculative_config", "kv_transfer_config"):
            self._refuse_text(getattr(params, name), name)
        self._refuse_text(params.limit_mm_per_prompt, "limit_mm_per_prompt", allowed=("", "{}"))
        for name in ("enable_prefix_caching", "enable_jump_forward"):
            value = getattr(params, name)
            _require(value in (0, 1, _OFF), name, value, "0 (default), 1 (on) or 2 (off)")
        _require(params.enable_jump_forward != 1, "enable_jump_forward", 1, "0 or 2; it is not supported yet")
        _require(params.device in _DEVICES, "device", params.device, "0 (auto), 1 (cpu) or 2 (cuda)")
        _require_flag(params, "language_model_only")

    def _refuse_text(self, pointer: Any, name: str, allowed: tuple[str, ...] = ("",)) -> None:
        text = self.text(pointer, name)
        rule = " or ".join(("NULL", *map(json.dumps, allowed)))
        _require(text is None or text.strip() in allowed, name, text, f"{rule}; others are not supported yet")

    def sampling_params(self, params: Any) -> SamplingParams:
        """Decode `vllm_sampling_params`."""
        self._refuse_unsupported_sampling_fields(params)
        return SamplingParams(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k,
            min_p=params.min_p,
            max_tokens=params.max_tokens,
            seed=params.seed if params.has_seed else None,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            repetition_penalty=params.repetition_penalty,
            min_tokens=params.min_tokens,
            ignore_eos=bool(params.ignore_eos),
            stop=self.texts(params.stop, params.n_stop, "stop"),
        )

    def _refuse_unsupported_sampling_fields(self, params: Any) -> None:
        for name in ("has_seed", "ignore_eos", "structured_json_object"):
            _require_flag(params, name)
        is_used = params.has_seed == 1 or params.seed == 0
        _require(is_used, "seed", params.seed, "0 while has_seed is 0; set has_seed to 1 to use it")
        for name in ("structured_json", "structured_regex", "structured_grammar"):
            text = self.text(getattr(params, name), name)
            _require(text is None, name, text, "NULL; structured output is not supported yet")
        for name in ("n_structured_choice", "structured_json_object"):
            value = getattr(params, name)
            _require(value == 0, name, value, "0; structured output is not supported yet")
        for name in ("structured_choice", "logits_processor", "logits_processor_user_data"):
            pointer = getattr(params, name)
            _require(pointer == self._ffi.NULL, name, pointer, "NULL; it is not supported yet")


class _Calls:
    """The functions themselves; each returns a status, and an exception becomes one in `status_of`."""

    def __init__(self, ffi: Any, lib: Any) -> None:
        self._ffi = ffi
        self._lib = lib
        self._arguments = _Arguments(ffi)
        self._engines = _Engines()

    def engine_load(self, params: Any, options_json: Any, progress: Any, user_data: Any, out: Any) -> int:
        """Load a model and give out its handle."""
        config = self._arguments.engine_config(params, options_json, needs_model=True)
        from pyvllm.engine.start import load_engine

        self._lib.vllm__guard_exit()
        engine = load_engine(config, self._progress(progress, user_data))
        self._lib.vllm__guard_exit()
        out[0] = self._ffi.cast("vllm_engine*", self._engines.add(engine))
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
        self._fill(out, engine.generate(text or "", self._arguments.sampling_params(params)))
        return Status.OK

    def complete_tokens(self, pointer: Any, tokens: Any, params: Any, out: Any) -> int:
        """Generate from token ids; the first `max_out_tokens` new ones are given out."""
        engine = self._engine(pointer)
        prompt: Sequence[int] = self._ffi.unpack(tokens.prompt_tokens, tokens.n_prompt_tokens)
        completion = engine.generate(prompt, self._arguments.sampling_params(params))
        shown = list(completion.token_ids[: tokens.max_out_tokens])
        if shown:
            tokens.out_tokens[0 : len(shown)] = shown
        tokens.n_out_tokens = len(shown)
        self._fill(out, completion)
        return Status.OK

    def complete_stream(self, pointer: Any, prompt: Any, params: Any, callback: Any, user_data: Any) -> int:
        """Generate from a text, handing out each piece of text as it comes."""
        engine, text = self._engine(pointer), self._arguments.text(prompt, "prompt")

        def on_text(delta: str, finished: bool) -> bool:
            return bool(callback(_encoded(delta), finished, user_data))

        engine.generate(text or "", self._arguments.sampling_params(params), on_text)
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
        return self._engines.get(self._arguments.handle(pointer))

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


def _encoded(text: str) -> bytes:
    """Encode a text for C, where U+0000 would end it."""
    return text.replace("\0", _REPLACEMENT).encode("utf-8", "replace")


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise InvalidArgument(f"{name} must be {rule}; got {value!r}")


def _require_flag(params: Any, name: str) -> None:
    _require(getattr(params, name) in (0, 1), name, getattr(params, name), "0 or 1")
