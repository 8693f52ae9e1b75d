"""`pyvllm.LLM`: load a model and generate, from Python.

Only settings are handled here. The engine, which brings torch, is imported when a model is loaded, so that a bad
setting costs milliseconds.
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pyvllm.config.engine import EngineConfig
from pyvllm.config.offload import OffloadConfig
from pyvllm.engine.start import load_engine
from pyvllm.entrypoints.arguments import DTYPE_ALIASES, FLAT_FIELDS, did_you_mean, offload_from
from pyvllm.entrypoints.outputs import CompletionOutput, EmbeddingOutput, EmbeddingRequestOutput, Logprob, RequestOutput
from pyvllm.errors import InvalidArgument
from pyvllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyvllm.engine.engine_core import EngineRequest
    from pyvllm.entrypoints.openai.chat_service import ChatService

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
        block_size: int = 32,
        num_gpu_blocks_override: int | None = None,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int | None = None,
        scheduling_policy: str = "fcfs",
        enable_prefix_caching: bool = True,
        threads: int | None = None,
        tokenizer_config_path: str | None = None,
        gguf_weights: str = "auto",
        cpu_kernels: str = "auto",
        progress: Progress | None = None,
        **offload_fields: object,
    ) -> None:
        """Load a model; the settings are those of `EngineConfig`, under vLLM's names.

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
            block_size=block_size,
            num_blocks=num_gpu_blocks_override,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            scheduling_policy=scheduling_policy,
            enable_prefix_caching=enable_prefix_caching,
            threads=threads,
            gguf_weights=gguf_weights,
            cpu_kernels=cpu_kernels,
            offload=offload_from(offload_config, offload_fields, str),
        )
        self._engine = load_engine(config, progress)
        self._request_ids = count()
        self._chats: dict[str | None, ChatService] = {}
        self._lock = threading.Lock()

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
        requests = _prompts(prompts)
        params = _params(sampling_params, len(requests))
        with self._answers(requests, params) as items:
            return [self._output(prompt, item) for prompt, item in zip(requests, items, strict=True)]

    def chat(
        self,
        messages: Sequence[Mapping[str, object]] | Sequence[Sequence[Mapping[str, object]]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Answer every conversation; outputs are in their order, and `.prompt` is what the template made.

        messages: one conversation or a list of them, of OpenAI's messages. tools: OpenAI's, shown to the model; its
        calls stay in the text. chat_template: text of a template to use instead of the model's. chat_template_kwargs:
        more variables of the template. continue_final_message: go on with the last message; it needs
        add_generation_prompt=False. Raises InvalidArgument for a bad message, for a variable that the template does not
        read and for a model without a template, FormatError for a damaged one.
        """
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else list(messages)
        params = _params(sampling_params, len(conversations))
        asked = {
            "tools": None if tools is None else list(tools),
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template_kwargs": None if chat_template_kwargs is None else dict(chat_template_kwargs),
        }
        prompts = self._rendered(conversations, asked, chat_template)  # type: ignore[arg-type]
        # The template writes the special tokens that a prompt begins with.
        ids = [self._engine.tokenizer.encode(prompt, add_special_tokens=False) for prompt in prompts]
        with self._answers(ids, params) as items:
            return [self._output(prompt, item) for prompt, item in zip(prompts, items, strict=True)]

    def embed(self, prompts: Prompt | Sequence[Prompt]) -> list[EmbeddingRequestOutput]:
        """Give the vector of every prompt: its last token's final hidden state, scaled to length 1.

        prompts: as for `generate`. Raises InvalidArgument for a model that generates text, or for a bad prompt.
        """
        from pyvllm.entrypoints.openai.embedding import embedding_of

        requests = _prompts(prompts)
        with self._answers(requests, [SamplingParams()] * len(requests), needs_hidden=True) as items:
            found = []
            for item in items:
                item.wait()
                ids = tuple(item.request.prompt_token_ids)
                vector = EmbeddingOutput(embedding=embedding_of(item))
                found.append(
                    EmbeddingRequestOutput(
                        request_id=str(next(self._request_ids)), prompt_token_ids=ids, outputs=vector
                    )
                )
            return found

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

    @contextmanager
    def _answers(
        self, prompts: Sequence[str | list[int]], params: Sequence[SamplingParams], *, needs_hidden: bool = False
    ) -> Iterator[list["EngineRequest"]]:
        """Submit prompts; whatever still runs at the end is dropped."""
        items: list[EngineRequest] = []
        try:
            for prompt, one in zip(prompts, params, strict=True):
                items.append(self._engine.submit(prompt, one, needs_hidden=needs_hidden))
            yield items
        finally:
            for item in items:
                self._engine.cancel(item)

    def _rendered(
        self,
        conversations: Sequence[Sequence[Mapping[str, object]]],
        asked: Mapping[str, object],
        chat_template: str | None,
    ) -> list[str]:
        """Render conversations. asked: `tools` and the options of the prompt, under the names of a request's fields."""
        from pyvllm.entrypoints.openai.chat_messages import read_messages, read_tools
        from pyvllm.entrypoints.openai.chat_options import ChatOptions
        from pyvllm.entrypoints.openai.chat_request import prompt_options
        from pyvllm.entrypoints.openai.chat_service import ChatService
        from pyvllm.entrypoints.openai.fields import ApiError

        with self._lock:
            chat = self._chats.get(chat_template)
            if chat is None:
                chat = self._chats[chat_template] = ChatService(self._engine, ChatOptions(chat_template=chat_template))
        try:
            shown = read_tools(asked["tools"])
            options = prompt_options(asked)
            listed = [read_messages(list(messages)) for messages in conversations]
        except ApiError as error:
            raise InvalidArgument(error.message) from error
        return [chat.render(messages, shown, options) for messages in listed]

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
            logprobs=self._logprobs(item),
        )
        return RequestOutput(
            request_id=str(next(self._request_ids)),
            prompt=prompt if isinstance(prompt, str) else None,
            prompt_token_ids=tuple(item.request.prompt_token_ids),
            outputs=[answer],
        )

    def _logprobs(self, item: "EngineRequest") -> tuple[Mapping[int, Logprob], ...] | None:
        if item.request.params.logprobs is None:
            return None

        def named(token_id: int, logprob: float, rank: int) -> Logprob:
            piece = self._engine.tokenizer.piece(token_id, skip_special_tokens=False) or b""
            return Logprob(logprob=logprob, rank=rank, decoded_token=piece.decode("utf-8", "replace"))

        return tuple(
            {token.token_id: named(token.token_id, token.logprob, token.rank)}
            | {token_id: named(token_id, value, rank) for rank, (token_id, value) in enumerate(token.top, 1)}
            for token in item.logprobs
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


def _prompts(prompts: Prompt | Sequence[Prompt]) -> list[str | list[int]]:
    listed = [prompts] if _is_one(prompts) else list(prompts)
    return [_prompt(prompt, index) for index, prompt in enumerate(listed)]


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
