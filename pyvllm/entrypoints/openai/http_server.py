"""uvicorn around the application: from a listening socket to an orderly end."""

import asyncio
import signal
import socket
from collections.abc import Sequence

import uvicorn

from pyvllm.entrypoints.openai.app import build_app
from pyvllm.entrypoints.openai.serving import Service

#: Seconds that running requests have after SIGTERM; container runtimes kill after ten.
SHUTDOWN_S = 6

#: Seconds more in which they are told to stop, which takes one token.
ABORT_S = 3

#: Seconds that an idle connection is kept. Source: vLLM 0.33, VLLM_HTTP_TIMEOUT_KEEP_ALIVE.
KEEP_ALIVE_S = 5


class _Server(uvicorn.Server):
    """Gives running requests SHUTDOWN_S seconds and then an answer that says why they were stopped."""

    def __init__(self, config: uvicorn.Config, service: Service, stop_fd: int | None) -> None:
        super().__init__(config)
        self._service = service
        self._stop_fd = stop_fd

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve, and to watch for the end."""
        await super().startup(sockets)
        if self._stop_fd is not None:
            asyncio.get_running_loop().add_reader(self._stop_fd, self._stop)

    def _stop(self) -> None:
        if self._stop_fd is not None:
            asyncio.get_running_loop().remove_reader(self._stop_fd)
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the connections, idle ones at once."""
        asyncio.get_running_loop().call_later(SHUTDOWN_S, self._service.abort)
        await super().shutdown(sockets)


def serve(service: Service, api_keys: Sequence[str], listener: socket.socket, stop_fd: int | None = None) -> None:
    """Serve until `stop_fd` can be read, or, without one, until SIGTERM or SIGINT.

    The caller closes service and listener.
    """
    config = uvicorn.Config(
        build_app(service, api_keys),
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=SHUTDOWN_S + ABORT_S,
    )
    server = _Server(config, service, stop_fd)
    if stop_fd is not None:
        # Another program's process: its signals are not uvicorn's to take.
        asyncio.run(server._serve([listener]))
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn stops on these and then raises them once more, which would end the process before the engine closes.
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listener])
