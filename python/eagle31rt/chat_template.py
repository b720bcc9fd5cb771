"""Renders chat templates. They come with checkpoints, so they are untrusted: see template_worker.py.

A template is rendered by a child process with limits on time and memory, because nothing inside one Python process can
stop `"a" * 10**12`, a regular expression or a deep recursion that has begun. The child is kept for the next rendering
(about 0.1 s to start, then under 1 ms each).
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from eagle31rt.errors import InvalidArgumentError, ResourceError

MAX_TEMPLATE_BYTES = 1 << 20
MAX_RENDERED_CHARACTERS = 16 << 20
MAX_SECONDS = 5.0
MAX_MEMORY_BYTES = 512 << 20
_START_SECONDS = 30.0  # of the child's interpreter on a busy machine
_WORKER = Path(__file__).parent / "template_worker.py"


class ChatTemplate:
    """One template's source; compiled at the first rendering."""

    def __init__(self, source: str) -> None:
        if not isinstance(source, str):
            raise InvalidArgumentError(f"chat_template must be text, got {type(source).__name__}")
        if len(source) > MAX_TEMPLATE_BYTES:
            raise InvalidArgumentError(f"chat_template is longer than {MAX_TEMPLATE_BYTES} characters")
        self.source = source

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text. Raises InvalidArgumentError for a broken, refusing, endless or memory-eating template."""
        try:
            request = json.dumps({"source": self.source, "variables": variables})
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"messages and template variables must be plain JSON values: {error}") from error
        reply = _renderer.render(request.encode("ascii"))
        if "error" in reply:
            raise InvalidArgumentError(f"chat template: {reply['error']}")
        return str(reply["text"])


class _Renderer:
    """The child process; one rendering at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def render(self, request: bytes) -> dict[str, Any]:
        with self._lock:
            finished = False
            try:
                reply = self._exchange(self._running_process(), request)
                finished = True
            finally:
                if not finished:
                    self._stop()  # also after an interrupt: a late answer must not be taken for the next one's
            return reply

    def close(self) -> None:
        with self._lock:
            self._stop()

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        limits = [str(MAX_MEMORY_BYTES), str(MAX_RENDERED_CHARACTERS), str(int(MAX_SECONDS) + 1)]
        # The child finds jinja2 wherever this process does.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            self._process = subprocess.Popen(
                [sys.executable, str(_WORKER), *limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as error:
            raise ResourceError(f"cannot start the process that renders chat templates: {error}") from error
        if _read_line(self._process, time.monotonic() + _START_SECONDS) != b"ready\n":
            raise ResourceError(f"the process that renders chat templates does not start: {sys.executable} {_WORKER}")
        return self._process

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> dict[str, Any]:
        deadline = time.monotonic() + MAX_SECONDS
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # it died: the missing answer says so below
                process.stdin.write(request + b"\n")
                process.stdin.flush()
        line = _read_line(process, deadline)
        if line.endswith(b"\n"):
            reply: dict[str, Any] = json.loads(line)
            if reply.get("restart"):
                self._stop()
            return reply
        if time.monotonic() >= deadline:
            raise InvalidArgumentError(f"chat template: did not finish within {MAX_SECONDS:g} seconds")
        raise InvalidArgumentError("chat template: broke its renderer (too deep a recursion or too much memory)")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):  # a request that was never read is still buffered
                    pipe.close()


def _read_line(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """One line with its newline; less if the process ends or the deadline (time.monotonic) passes."""
    if process.stdout is None:
        return b""
    descriptor = process.stdout.fileno()
    blocks: list[bytes] = []
    while (remaining := deadline - time.monotonic()) > 0:
        if not select.select([descriptor], [], [], remaining)[0]:
            break
        block = os.read(descriptor, 1 << 20)
        blocks.append(block)
        if not block or block.endswith(b"\n"):
            break
    return b"".join(blocks)


_renderer = _Renderer()
atexit.register(_renderer.close)
