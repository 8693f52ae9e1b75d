"""Decodes the arguments of C into values; an error names the field. No engine here.

Only what judges an offload document is imported with this module, not even `dataclasses`: its refusal costs
milliseconds.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pyvllm.config.offload_rules import judge_text
from pyvllm.errors import InvalidArgument

if TYPE_CHECKING:
    from pyvllm.config.engine import EngineConfig
    from pyvllm.sampling_params import SamplingParams, StructuredOutputsParams

_DEVICES = {0: "auto", 1: "cpu", 2: "cuda"}
_OFF = 2
#: Numbers of `vllm_model_params` for which 0 or less is the default.
_SIZES = ("block_size", "num_blocks", "max_model_len", "max_num_seqs", "max_num_batched_tokens")


class Arguments:
    """Decodes what C hands in."""

    def __init__(self, ffi: Any) -> None:
        """ffi: of the library's cffi module."""
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
        """Return the number that a handle is."""
        return int(self._ffi.cast("uintptr_t", pointer))

    def engine_config(self, params: Any, options_json: Any, needs_model: bool) -> "EngineConfig":
        """Decode `vllm_model_params` and the options; offload_config is judged first, the path is not looked at."""
        document = self.text(params.offload_config, "offload_config")
        judge_text(document)
        from pyvllm.config.engine import EngineConfig
        from pyvllm.config.offload import OffloadConfig
        from pyvllm.config.options import engine_options

        offload = OffloadConfig.from_json(document)
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

    def parsers(self, params: Any) -> dict[str, str]:
        """Return the parsers of `vllm_model_params` that are named, checked."""
        named = {name: self.text(getattr(params, name), name) for name in ("tool_parser", "reasoning_parser")}
        given = {name: text for name, text in named.items() if text}
        if given:
            # Imported late: few name a parser, and a refusal shall not wait for what it does not need.
            from pyvllm.entrypoints.openai.chat_options import ChatOptions

            ChatOptions(**given)
        return given

    def sampling_params(self, params: Any) -> "SamplingParams":
        """Decode `vllm_sampling_params`."""
        from pyvllm.sampling_params import SamplingParams

        for name in ("has_seed", "ignore_eos", "structured_json_object"):
            _require_flag(params, name)
        is_used = params.has_seed == 1 or params.seed == 0
        _require(is_used, "seed", params.seed, "0 while has_seed is 0; set has_seed to 1 to use it")
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
            structured_outputs=self._structured(params),
        )

    def logits_processors(self, params: Any) -> Sequence[Any]:
        """Give what changes the logits: the callback of `vllm_sampling_params`, or nothing."""
        process, user_data = params.logits_processor, params.logits_processor_user_data
        if process == self._ffi.NULL:
            is_unused = user_data == self._ffi.NULL
            _require(is_unused, "logits_processor_user_data", user_data, "NULL while logits_processor is NULL")
            return ()

        def changed(token_ids: list[int], logits: Any) -> None:
            ids = self._ffi.new("int32_t[]", token_ids)
            values = self._ffi.cast("float*", logits.data_ptr())
            process(ids, len(token_ids), values, logits.numel(), user_data)

        return (changed,)

    def _given_model_fields(self, params: Any) -> dict[str, Any]:
        """Return the fields that are not left at their default, which is 0 or less for a number and "" for a text."""
        given = {name: getattr(params, name) for name in _SIZES if getattr(params, name) > 0}
        policy = self.text(params.scheduling_policy, "scheduling_policy")
        return {**given, "scheduling_policy": policy} if policy else given

    def _refuse_unsupported_model_fields(self, params: Any) -> None:
        self.parsers(params)
        for name in ("speculative_config", "kv_transfer_config"):
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

    def _structured(self, params: Any) -> "StructuredOutputsParams | None":
        """Decode the structured-output fields, of which at most one may be set."""
        from pyvllm.sampling_params import StructuredOutputsParams

        given: dict[str, Any] = {}
        for name in ("json", "regex", "grammar"):
            text = self.text(getattr(params, f"structured_{name}"), f"structured_{name}")
            if text is not None:
                given[name] = text
        choice = self.texts(params.structured_choice, params.n_structured_choice, "structured_choice")
        is_unused = bool(choice) or params.structured_choice == self._ffi.NULL
        _require(is_unused, "n_structured_choice", 0, "above 0 when structured_choice is not NULL")
        if choice:
            given["choice"] = choice
        if params.structured_json_object:
            given["json_object"] = True
        if len(given) > 1:
            names = ", ".join(f"structured_{name}" for name in given)
            raise InvalidArgument(f"at most one structured output may be set; {names} are")
        for name, value in given.items():
            _require(value != "", f"structured_{name}", value, "NULL or not empty")
        return StructuredOutputsParams(**given) if given else None


def _require(condition: bool, name: str, value: object, rule: str) -> None:
    if not condition:
        raise InvalidArgument(f"{name} must be {rule}; got {value!r}")


def _require_flag(params: Any, name: str) -> None:
    _require(getattr(params, name) in (0, 1), name, getattr(params, name), "0 or 1")
