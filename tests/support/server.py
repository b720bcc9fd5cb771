"""A tiny pair with a tokenizer, and a server of it in a thread, for tests that speak HTTP."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle31rt import AsyncLLM
from eagle31rt.server.app import Application
from eagle31rt.server.options import ServerOptions
from eagle31rt.server.run import DrainingServer
from support.successor import TARGET, write_successor_draft, write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

MODEL = "tiny"
NUM_DRAFTS = 4
MAX_LENGTH = 8192
_PATIENCE_SECONDS = 60.0


def write_pair(folder: Path) -> tuple[Path, Path]:
    """Target, with its tokenizer, and draft."""
    target = write_successor_target(folder / "target", replace(TARGET, max_position_embeddings=MAX_LENGTH))
    write_tiny_tokenizer(target.directory)
    return target.directory, write_successor_draft(folder / "draft", target).directory


def engine_arguments(draft: Path | None, **changes: Any) -> dict[str, Any]:
    speculation = None
    if draft is not None:
        speculation = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": NUM_DRAFTS}
    arguments = {"speculative_config": speculation, "num_threads": 1, "kv_cache_memory_bytes": 16 << 20, "seed": 1}
    return {**arguments, "max_num_seqs": 16, **changes}


class _Announcing(DrainingServer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.ready = threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.ready.set()


@contextmanager
def slowed(llm: AsyncLLM) -> Iterator[None]:
    """Every step takes 5 ms longer, so that an endless request is certainly still running when a test looks."""
    stop = threading.Event()

    def slow_down() -> None:
        while not stop.is_set():
            llm._engine.run_between_steps(lambda engine: time.sleep(0.005))

    thread = threading.Thread(target=slow_down)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@dataclass
class RunningServer:
    llm: AsyncLLM
    app: Application
    server: DrainingServer
    thread: threading.Thread
    loop: asyncio.AbstractEventLoop

    @property
    def url(self) -> str:
        return self.server.address

    def begin_drain(self) -> None:
        """What SIGTERM does."""
        self.loop.call_soon_threadsafe(self.server.begin_drain)

    def wait_closed(self) -> None:
        self.thread.join(_PATIENCE_SECONDS)
        assert not self.thread.is_alive()


@contextmanager
def running_server(model: Path, draft: Path | None = None, **changes: Any) -> Iterator[RunningServer]:
    """`changes`: fields of ServerOptions, and `engine` with arguments of AsyncLLM."""
    llm = AsyncLLM(model, **engine_arguments(draft, **changes.pop("engine", {})))
    options = ServerOptions(served_model_names=(MODEL,), port=0, access_log=False, log_level="warning", **changes)
    app = Application(llm, options)
    server = _Announcing(app, llm, options)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(server.serve()), name="server")
    thread.start()
    try:
        assert server.ready.wait(_PATIENCE_SECONDS)
        yield RunningServer(llm, app, server, thread, loop)
    finally:
        if thread.is_alive():
            loop.call_soon_threadsafe(server.begin_drain)
        thread.join(_PATIENCE_SECONDS)
        loop.close()
        llm.shutdown()
