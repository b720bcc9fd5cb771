"""What every HTTP request passes first: API key, drain, the limit on how many wait; and last, errors."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from eagle31rt.server.errors import ApiError
from eagle31rt.server.options import ServerOptions

logger = logging.getLogger("eagle31rt.server")

_OPEN_PATHS = frozenset(("/health", "/metrics"))  # for probes and scrapers: no key, no limit


class Gate:
    """ASGI middleware. Counts the requests in progress, so that a drain knows when all are answered."""

    def __init__(
        self, app: ASGIApp, options: ServerOptions, max_requests: int, on_response: Callable[[int], None]
    ) -> None:
        """`max_requests`: in progress at once. `on_response` gets the status of every answer."""
        self._app = app
        self._keys = [_digest(key.encode()) for key in options.api_keys]
        self._max_requests = max_requests
        self._retry_after = {"Retry-After": str(options.limits.retry_after_seconds)}
        self._on_response = on_response
        self._num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    async def wait_idle(self) -> None:
        """Returns when no request is in progress."""
        await self._idle.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _OPEN_PATHS:
            await self._app(scope, receive, send)
            return

        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._on_response(message["status"])
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal.response()(scope, receive, counted_send)
            return
        self._num_active += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, counted_send)
        except asyncio.CancelledError:
            if not self.draining:
                raise
            logger.warning("a request was cut off by the end of the server")
        except (
            Exception
        ) as error:  # answered with a 500 by now; its text may hold a prompt, so only its place is logged
            logger.error("internal error: %s at %s", type(error).__name__, _place(error))
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self._idle.set()

    def _refusal(self, scope: Scope) -> ApiError | None:
        if self._keys and not self._has_key(scope):
            return ApiError(
                401, "the API key is missing or wrong: send Authorization: Bearer KEY", code="invalid_api_key"
            )
        if self.draining:
            return ApiError(503, "the server is about to end", code="draining", headers=self._retry_after)
        if self._num_active >= self._max_requests:
            message = f"{self._num_active} requests are in progress (--max-num-seqs, --max-waiting-requests); try later"
            return ApiError(429, message, code="queue_full", headers=self._retry_after)
        return None

    def _has_key(self, scope: Scope) -> bool:
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value
        scheme, _, key = given.partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, one) for one in self._keys]  # all of them: no early end
        return any(matches) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    """Of one length, so that comparing takes the same time for every key."""
    return hashlib.sha256(key).digest()


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-4:]))
