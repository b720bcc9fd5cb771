"""Runs the application under uvicorn: start-up report, signals, drain."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn

from eagle31rt.async_llm import AsyncLLM
from eagle31rt.server.app import Application
from eagle31rt.server.options import ServerOptions

logger = logging.getLogger("eagle31rt.server")

_KEEP_ALIVE_SECONDS = 60  # a connection closed just when it is used again is an error that its client sees
_LAST_SECONDS = 5  # for answers on their way when the drain has ended


def serve(model: Path, engine_arguments: dict[str, Any], options: ServerOptions) -> int:
    """Loads the model and serves it until a signal; the exit status is 0 after a drain."""
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    llm = AsyncLLM(model, **engine_arguments)
    try:
        logger.info("%s", memory_report(llm.info))
        server = DrainingServer(Application(llm, options), llm, options)
        asyncio.run(server.serve())
        if not server.started:
            return 1
    finally:
        llm.shutdown()
    return 0


def memory_report(info: dict[str, Any]) -> str:
    """What target, draft, KV and logits take, in one line."""
    kv = f"KV cache {_megabytes(info['kv_cache_bytes'])} ({info['num_pages']} pages of {info['page_size']} tokens"
    kv += f"; target {_megabytes(info['target_kv_bytes'])}, draft {_megabytes(info['draft_kv_bytes'])})"
    parts = [f"target {_megabytes(info['weight_bytes'])}", f"draft {_megabytes(info['draft_weight_bytes'])}", kv]
    return "memory: " + ", ".join([*parts, f"logits {_megabytes(info['logits_bytes'])}"])


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


class DrainingServer(uvicorn.Server):
    """The first SIGTERM or SIGINT lets running requests end and refuses new ones with 503; a second aborts them."""

    def __init__(self, app: Application, llm: AsyncLLM, options: ServerOptions) -> None:
        config = uvicorn.Config(
            app,
            host=options.host,
            port=options.port,
            log_config=None,
            access_log=options.access_log,
            log_level=options.log_level,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_SECONDS,
        )
        super().__init__(config)
        self._app = app
        self._llm = llm
        self._timeout = options.shutdown_timeout
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain_task: asyncio.Task[None] | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            logger.info("listening on %s", self.address)

    @property
    def address(self) -> str:
        """Where it listens, once started."""
        host, port = self.servers[0].sockets[0].getsockname()[:2]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """uvicorn's own would raise the signal again at the end; here a drained end is a success."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGTERM, signal.SIGINT)
        previous = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """In the event loop's thread; a second call aborts what runs, a third leaves without answering."""
        if self._drain_task is not None:
            self.force_exit = self.should_exit
            self.should_exit = True
            self._llm.abort_all()
            return
        self._app.gate.draining = True
        logger.info("draining: running requests have %g s, new ones are refused", self._timeout)
        self._drain_task = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await asyncio.wait_for(self._app.gate.wait_idle(), self._timeout)
        except asyncio.TimeoutError:
            logger.warning("%d samples have not ended in time and are aborted", self._llm.num_unfinished)
            self._llm.abort_all()
        self.should_exit = True
