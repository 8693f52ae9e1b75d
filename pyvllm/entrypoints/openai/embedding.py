"""`/v1/embeddings`: its bodies, and the vector of a text. No HTTP here."""

import base64
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from math import sqrt
from typing import TYPE_CHECKING

from pyvllm.entrypoints.openai import fields as read
from pyvllm.entrypoints.openai.answering import Admit, Listen
from pyvllm.entrypoints.openai.chat_answer import Json
from pyvllm.entrypoints.openai.chat_service import raise_if_failed
from pyvllm.entrypoints.openai.fields import bad_request, shown
from pyvllm.entrypoints.openai.protocol import texts_or_tokens
from pyvllm.errors import GenerationError, InvalidArgument
from pyvllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pyvllm.engine.engine_core import EngineRequest
    from pyvllm.engine.llm_engine import LLMEngine

MAX_INPUTS = 2048

#: Fields that vLLM or OpenAI serve and this server does not, with the values that ask for nothing.
NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "dimensions": (),
    "truncate_prompt_tokens": (),
    "add_special_tokens": (True,),
    "normalize": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
}
_ACTING = ("model", "input", "encoding_format", "priority")


def embedding_of(item: "EngineRequest") -> list[float]:
    """Give the vector of a finished request: its last token's final hidden state, scaled to length 1.

    Raises GenerationError if the request has failed. Source: vLLM's pooler of type LAST with normalisation.
    """
    if item.error is not None:
        raise item.error
    if item.hidden is None:
        raise GenerationError("the request was stopped before its embedding was computed")
    values: list[float] = item.hidden.float().tolist()
    length = sqrt(sum(value * value for value in values))
    if not 0 < length < float("inf"):
        raise GenerationError(f"the embedding has length {length}: the dtype overflows; try dtype float32")
    return [value / length for value in values]


def embed(engine: "LLMEngine", texts: Sequence[str | Sequence[int]]) -> tuple[list[list[float]], int]:
    """Give the vectors of texts, and how many tokens they have together. Raises InvalidArgument or GenerationError."""
    with engine.call():
        items: list[EngineRequest] = []
        try:
            for text in texts:
                items.append(engine.submit(text, SamplingParams(), needs_hidden=True))
            for item in items:
                item.wait()
            return [embedding_of(item) for item in items], sum(len(item.request.prompt_token_ids) for item in items)
        finally:
            for item in items:
                engine.cancel(item)


def open_embedding(engine: "LLMEngine", body: bytes, admit: Admit, listen: Listen) -> "EmbeddingAnswer":
    """Read and submit a request to `/v1/embeddings`. Raises ApiError; none stays queued then."""
    fields = read.read_object(body)
    read.refuse_unless_neutral(fields, NEUTRAL)
    form = fields.get("encoding_format") or "float"
    if form not in ("float", "base64"):
        raise bad_request(f"'encoding_format' must be float or base64, got {shown(form)}", "encoding_format")
    inputs = texts_or_tokens(fields.get("input"), "input", MAX_INPUTS)
    unknown = tuple(name for name in fields if name not in NEUTRAL and name not in _ACTING)
    answer = EmbeddingAnswer(admit(read.text(fields, "model"), unknown), form == "base64")
    priority = read.priority(fields, engine.prepared.cache.scheduling_policy)
    hear = listen(False)
    try:
        for text in inputs:
            told = partial(hear, len(answer.items))
            item = engine.submit(text, SamplingParams(), told, priority=priority, needs_hidden=True)
            answer.items.append(item)
    except InvalidArgument as error:
        for item in answer.items:
            engine.cancel(item)
        raise bad_request(str(error), "input") from error
    return answer


class EmbeddingAnswer:
    """The vectors of one request."""

    is_stream = False

    def __init__(self, name: str, is_base64: bool) -> None:
        """name: what the model is called in the answer. is_base64: little-endian float32 instead of numbers."""
        self.items: list[EngineRequest] = []
        self._name = name
        self._is_base64 = is_base64

    def opening(self) -> Iterator[Json]:
        """Give nothing: embeddings have no stream."""
        yield from ()

    def hear(self, index: int, text: str, finished: bool, num_tokens: int) -> Iterator[Json]:
        """Give nothing: embeddings have no stream."""
        yield from ()

    def closing(self) -> Iterator[Json]:
        """Give nothing: embeddings have no stream."""
        yield from ()

    def body(self) -> Json:
        """Give OpenAI's list of embeddings."""
        for item in self.items:
            raise_if_failed(item)
        data = [
            {"object": "embedding", "index": index, "embedding": self._written(embedding_of(item))}
            for index, item in enumerate(self.items)
        ]
        num_tokens = sum(len(item.request.prompt_token_ids) for item in self.items)
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        return {"object": "list", "data": data, "model": self._name, "usage": usage}

    def _written(self, values: Sequence[float]) -> object:
        return base64.b64encode(array("f", values).tobytes()).decode() if self._is_base64 else list(values)
