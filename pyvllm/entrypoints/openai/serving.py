"""Requests in turn: between the event loop and the engine.

One thread generates, in the order of arrival, so the event loop never waits for a model. A request whose client has
gone stops at its next token.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

from pyvllm import logger
from pyvllm.engine.llm_engine import LLMEngine
from pyvllm.entrypoints.openai.protocol import (
    ApiError,
    Choice,
    CompletionRequest,
    bad_request,
    completion_body,
    parse_completion,
)
from pyvllm.errors import GenerationError, InvalidArgument

#: Requests that run or wait; each may hold a body of 16 MiB.
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
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="generate")
        self._created = int(time.time())
        self._waiting: set[asyncio.Event] = set()
        self._names_logged: set[str] = set()

    def models(self) -> dict[str, object]:
        """Return the body of `/v1/models`."""
        entry = {"object": "model", "created": self._created, "owned_by": "pyvllm", "max_model_len": self.max_model_len}
        return {"object": "list", "data": [{"id": name, **entry} for name in self.names]}

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
            answer = await self._in_thread(request, gone)
        finally:
            self._waiting.remove(gone)
        if answer is None:
            raise ApiError(503, "ServiceUnavailableError", "the request was stopped: the server is shutting down")
        return answer

    def abort(self) -> None:
        """Stop every request, running or waiting, at its next token; from the event loop only."""
        for gone in self._waiting:
            gone.set()

    def close(self) -> None:
        """Wait for the running request, drop the waiting ones and free the engine."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._engine.close()

    async def _in_thread(self, request: CompletionRequest, gone: asyncio.Event) -> dict[str, object] | None:
        stop = threading.Event()
        work = asyncio.get_running_loop().run_in_executor(self._thread, self._generate, request, stop)
        watch = asyncio.create_task(gone.wait())
        try:
            await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                stop.set()
            return await work
        finally:
            stop.set()
            watch.cancel()

    def _generate(self, request: CompletionRequest, stop: threading.Event) -> dict[str, object] | None:
        """Run every prompt of a request; None if the event stopped it."""
        choices, num_prompt_tokens = [], 0
        try:
            for prompt in request.prompts:
                for index in range(request.n):
                    if stop.is_set():
                        return None
                    done = self._engine.generate(prompt, request.answer_params(index), lambda *_: not stop.is_set())
                    size = len(done.token_ids)
                    choices.append(Choice(text=done.text, finish_reason=done.finish_reason, num_tokens=size))
                num_prompt_tokens += len(done.prompt_token_ids)
        except InvalidArgument as error:
            raise bad_request(str(error), "prompt") from error
        except GenerationError as error:
            raise ApiError(500, "InternalServerError", str(error)) from error
        name = request.model or self.names[0]
        return completion_body(f"cmpl-{uuid4().hex}", int(time.time()), name, choices, num_prompt_tokens)

    def _log_unknown(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self._names_logged and len(self._names_logged) < MAX_NAMES_LOGGED:
                self._names_logged.add(name)
                logger.warning(f"server: unknown request field {name!r:.80} is ignored")
