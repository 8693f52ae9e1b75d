"""`pyvllm.LLM`: load a model and generate, from Python.

Only settings are handled here. The engine, which brings torch, is imported when a model is loaded, so that a bad
setting costs milliseconds.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.start import load_engine
from pyvllm.entrypoints.arguments import DTYPE_ALIASES, FLAT_FIELDS, did_you_mean, offload_from
from pyvllm.entrypoints.outputs import CompletionOutput, RequestOutput
from pyvllm.errors import InvalidArgument
from pyvllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyvllm.engine.engine_core import EngineRequest

#: Called during a load with bytes done, bytes planned and the weight's name; false cancels the load.
Progress = Callable[[int, int, str], bool]

#: One prompt: text, token ids, or vLLM's `TextPrompt` / `TokensPrompt` dictionaries.
Prompt = str | Sequence[int] | Mapping[str, object]


class LLM:
    """A loaded model.

        with LLM("model/", offload_config={"uva": {"cpu_offload_gb": 8}}) as llm:
            print(llm.generate("The capital of France is")[0].outputs[0].text)

    Calls may come from any thread. `close()` frees the model, and so does leaving a `with` block.
    """

    def __init__(  # noqa: PLR0913 -- each setting is a keyword, as in vLLM
        self,
        model: str | os.PathLike[str],
        *,
        offload_config: OffloadConfig | Mapping[str, object] | str | None = None,
        device: str = "auto",
        dtype: object = "auto",
        max_model_len: int | None = None,
        gpu_memory_utilization: float = 0.92,
        kv_cache_memory_bytes: int = 0,
        threads: int | None = None,
        tokenizer_config_path: str | None = None,
        gguf_weights: str = "auto",
        progress: Progress | None = None,
        **offload_fields: object,
    ) -> None:
        """Load a model; the settings are those of `EngineConfig`.

        model: path of a Hugging Face directory or of a single GGUF file. dtype: a name or a torch.dtype.
        offload_config: vLLM's OffloadConfig as JSON text, mapping or value. vLLM's own seven keywords
        (`cpu_offload_gb=...` and so on, FLAT_FIELDS) build the same document; both forms at once are refused.
        Raises InvalidArgument for a bad or unknown setting before any file is opened, ModelLoadError for a model that
        cannot be loaded, Cancelled if `progress` returned false.
        """
        unknown = [name for name in offload_fields if name not in FLAT_FIELDS]
        if unknown:
            known = (*(LLM.__init__.__kwdefaults__ or {}), *FLAT_FIELDS)
            raise InvalidArgument(f"LLM has no setting {unknown[0]!r}{did_you_mean(unknown[0], known)}")
        config = EngineConfig(
            model=_path(model),
            tokenizer_config_path=tokenizer_config_path,
            device=device,
            dtype=_dtype(dtype),
            max_model_len=max_model_len,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            threads=threads,
            gguf_weights=gguf_weights,
            offload=offload_from(offload_config, offload_fields, str),
        )
        self._engine = load_engine(config, progress)
        self._request_ids = count()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Complete every prompt, as many at once as the engine takes; outputs are in the order of the prompts.

        prompts: one prompt or a list of them; token ids of one prompt are a list of integers.
        sampling_params: for all prompts, or one for each; None is `SamplingParams()`.
        Raises InvalidArgument for a bad prompt and GenerationError if generation fails; the others are dropped then.
        """
        listed = [prompts] if _is_one(prompts) else list(prompts)
        requests = [_prompt(prompt, index) for index, prompt in enumerate(listed)]
        items: list[EngineRequest] = []
        try:
            for prompt, params in zip(requests, _params(sampling_params, len(requests)), strict=True):
                items.append(self._engine.submit(prompt, params))
            return [self._output(prompt, item) for prompt, item in zip(requests, items, strict=True)]
        finally:
            for item in items:
                self._engine.cancel(item)

    def offload_report(self) -> dict[str, object]:
        """Say where every byte is: asked, planned and measured, as `docs/weight-offload.md` describes."""
        return self._engine.offload_report()

    def close(self) -> None:
        """Free the model; what other threads still generate ends with `abort`. A second close does nothing."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _output(self, prompt: str | list[int], item: "EngineRequest") -> RequestOutput:
        """Wait for an answer and put it in vLLM's words."""
        item.wait()
        if item.error is not None:
            raise item.error
        answer = CompletionOutput(
            index=0,
            text=item.output.text,
            token_ids=tuple(item.request.output_token_ids),
            finish_reason=item.finish_reason or "abort",
        )
        return RequestOutput(
            request_id=str(next(self._request_ids)),
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=tuple(item.request.prompt_token_ids),
            outputs=[answer],
        )


def _path(model: object) -> str:
    path = os.fspath(model) if isinstance(model, str | os.PathLike) else None
    if not isinstance(path, str) or not path:
        raise InvalidArgument(f"model must be the path of a model directory or of a GGUF file, got {model!r}")
    return path


def _dtype(dtype: object) -> str:
    """Name a dtype as EngineConfig does, without importing torch."""
    name = str(dtype).removeprefix("torch.")
    return DTYPE_ALIASES.get(name, name)


def _is_one(prompts: object) -> bool:
    """Whether this is one prompt rather than a list of them."""
    if isinstance(prompts, str | Mapping):
        return True
    if not isinstance(prompts, Sequence):
        raise InvalidArgument(f"prompts must be text, token ids or a list of them, got {type(prompts).__name__}")
    return bool(prompts) and all(_is_token(item) for item in prompts)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _prompt(prompt: object, index: int) -> str | list[int]:
    """Take the text or the token ids out of one prompt."""
    if isinstance(prompt, Mapping):
        keys = [key for key in ("prompt_token_ids", "prompt") if key in prompt]
        if len(prompt) != 1 or not keys:
            raise InvalidArgument(
                f"prompts[{index}] must have exactly one key, 'prompt' or 'prompt_token_ids'; it has {sorted(prompt)}"
            )
        prompt = prompt[keys[0]]
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and prompt and all(_is_token(item) for item in prompt):
        return list(prompt)
    raise InvalidArgument(f"prompts[{index}] must be text or a non-empty list of token ids, got {prompt!r:.80}")


def _params(given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int) -> list[SamplingParams]:
    """One SamplingParams for each prompt."""
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * num_prompts
    if not isinstance(given, Sequence):
        raise InvalidArgument(f"sampling_params must be a SamplingParams or a list of them, got {type(given).__name__}")
    listed = list(given)
    if len(listed) != num_prompts:
        raise InvalidArgument(f"sampling_params has {len(listed)} entries for {num_prompts} prompts; give one for each")
    for index, params in enumerate(listed):
        if not isinstance(params, SamplingParams):
            raise InvalidArgument(f"sampling_params[{index}] must be a SamplingParams, got {type(params).__name__}")
    return listed
