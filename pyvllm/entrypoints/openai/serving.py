"""Requests between the event loop and the engine.

The engine computes on its own thread and answers many requests in one step; prompts are tokenised on another, so the
event loop never waits for either. A request whose client has gone stops after the step that runs.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from uuid import uuid4

from pyvllm import logger
from pyvllm.engine.engine_core import EngineRequest
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.entrypoints.openai.protocol import (
    ApiError,
    Choice,
    CompletionRequest,
    bad_request,
    completion_body,
    parse_completion,
)
from pyvllm.errors import InvalidArgument

#: HTTP requests that run or wait; each may hold a body of 16 MiB.
MAX_WAITING = 256

#: Names of unknown request fields that are worth a line each; a client could invent more without end.
MAX_NAMES_LOGGED = 32


class CompletionService:
    """Answers completion requests from one engine."""

    def __init__(self, engine: LLMEngine, names: Sequence[str]) -> None:
        """engine: closed by `close`. names: what the model is called, the first one in answers."""
        self.names = tuple(names)
        self.max_model_len = engine.max_model_len
        self._engine = engine
        self._tokenising = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenise")
        self._created = int(time.time())
        self._waiting: set[asyncio.Event] = set()
        self._names_logged: set[str] = set()

    def models(self) -> dict[str, object]:
        """Return the body of `/v1/models`."""
        entry = {"object": "model", "created": self._created, "owned_by": "pyvllm", "max_model_len": self.max_model_len}
        return {"object": "list", "data": [{"id": name, **entry} for name in self.names]}

    async def offload_report(self, *, with_names: bool) -> dict[str, object]:
        """Return the body of `/offload`: the offload report of `docs/plan.md`, recounted now.

        with_names: also list every weight, under `placements`; it is left out otherwise.
        """
        report = await asyncio.to_thread(self._engine.offload_report)
        return report if with_names else {key: value for key, value in report.items() if key != "placements"}

    async def complete(self, body: bytes, gone: asyncio.Event) -> dict[str, object]:
        """Answer one request.

        gone: set when nobody waits for the answer any more. Raises ApiError for whatever is not an answer.
        """
        request = parse_completion(body, self.max_model_len)
        if request.model is not None and request.model not in self.names:
            text = f"the model {request.model!r:.200} does not exist; served: {', '.join(self.names)}"
            raise ApiError(404, "NotFoundError", text, "model")
        self._log_unknown(request.unknown)
        if len(self._waiting) >= MAX_WAITING:
            raise ApiError(503, "ServiceUnavailableError", f"{MAX_WAITING} requests are waiting; try again later")
        self._waiting.add(gone)
        try:
            return self._body(request, await self._answers(request, gone))
        finally:
            self._waiting.remove(gone)

    def abort(self) -> None:
        """Stop every request, running or waiting; from the event loop only."""
        for gone in self._waiting:
            gone.set()

    def close(self) -> None:
        """Drop what is still waiting and free the engine."""
        self._tokenising.shutdown(wait=True, cancel_futures=True)
        self._engine.close()

    async def _answers(self, request: CompletionRequest, gone: asyncio.Event) -> list[EngineRequest]:
        """Submit every prompt of a request and wait for all answers, or until nobody does."""
        count = _Countdown(len(request.prompts) * request.n)
        waits = [asyncio.create_task(event.wait()) for event in (count.is_over, gone)]
        items: list[EngineRequest] = []
        try:
            await count.loop.run_in_executor(self._tokenising, self._submit, request, items, count)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            for item in items:
                self._engine.cancel(item)
        if not count.is_over.is_set():
            raise ApiError(503, "ServiceUnavailableError", "the request was stopped: the server is shutting down")
        return items

    def _submit(self, request: CompletionRequest, items: list[EngineRequest], count: "_Countdown") -> None:
        """Queue every answer of every prompt. `items` grows as it goes, so that an error leaves the list of them."""
        try:
            for prompt in request.prompts:
                for index in range(request.n):
                    items.append(self._engine.submit(prompt, request.answer_params(index), count.hear))
        except InvalidArgument as error:
            raise bad_request(str(error), "prompt") from error

    def _body(self, request: CompletionRequest, items: Sequence[EngineRequest]) -> dict[str, object]:
        for item in items:
            if item.error is not None:
                raise ApiError(500, "InternalServerError", str(item.error))
        choices = [
            Choice(
                text=item.output.text,
                finish_reason=item.finish_reason or "abort",
                num_tokens=len(item.request.output_token_ids),
            )
            for item in items
        ]
        num_prompt_tokens = sum(len(item.request.prompt_token_ids) for item in items[:: request.n])
        name = request.model or self.names[0]
        return completion_body(f"cmpl-{uuid4().hex}", int(time.time()), name, choices, num_prompt_tokens)

    def _log_unknown(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._names_logged and len(self._names_logged) < MAX_NAMES_LOGGED:
                self._names_logged.add(name)
                logger.warning(f"server: unknown request field {name!r:.80} is ignored")


class _Countdown:
    """Counts finished answers, told from the engine's thread, and sets an event of the loop when all are."""

    def __init__(self, size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.is_over = asyncio.Event()
        self._left = size

    def hear(self, _text: str, finished: bool, _num_tokens: int) -> None:
        """Listen to one answer."""
        if finished:
            # The loop may be closed already when the engine drops its last requests.
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._one_finished)

    def _one_finished(self) -> None:
        self._left -= 1
        if not self._left:
            self.is_over.set()
