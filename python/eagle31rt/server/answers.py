"""Sends what a RequestStream gives, whole or as server-sent events. A client that leaves frees its KV pages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eagle31rt.outputs import RequestOutput
from eagle31rt.request_stream import RequestStream
from eagle31rt.sampling_params import SamplingParams
from eagle31rt.server.errors import ApiError, bad_request, encode_json
from eagle31rt.server.formats import AnswerFormat, Json

logger = logging.getLogger("eagle31rt.server")

# Beginnings of the engine's messages about a request's own parameters.
_OWN_FAULTS = ("no token may follow", "no finite logit is left", "constraint failed")
_BANS = ("structured_outputs", "allowed_token_ids", "bad_words", "min_tokens")  # in order of suspicion

_SSE_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # proxies must not hold tokens back
]


async def whole_answer(stream: RequestStream, answer: AnswerFormat, receive: Receive) -> Json:
    """The body when all requests have ended. Raises ApiError if one failed while it ran, or if the client left."""
    outputs: dict[int, RequestOutput] = {}
    async with _closed_when_client_leaves(stream, receive):
        async for position, output in _outputs(stream):
            outputs[position] = output
            _raise_failure(output, stream)
    if len(outputs) < len(stream.requests):
        raise ApiError(499, "the client left")
    return answer.whole([outputs[position] for position in range(len(outputs))])


class EventStream(Response):
    """Server-sent events; ends with [DONE] as OpenAI's do."""

    def __init__(self, stream: RequestStream, answer: AnswerFormat) -> None:
        self.status_code = 200
        self.background = None
        self._stream = stream
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
        async with _closed_when_client_leaves(self._stream, receive):
            async for event in self._events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _events(self) -> AsyncIterator[bytes]:
        for chunk in self._answer.first_chunks():
            yield _event(chunk)
        try:
            async for position, output in _outputs(self._stream):
                _raise_failure(output, self._stream)
                yield _event(self._answer.chunk(position, output))
            for chunk in self._answer.last_chunks():
                yield _event(chunk)
        except ApiError as error:  # the status is sent: the error is the last event
            yield _event(error.body())
        yield b"data: [DONE]\n\n"


def _event(content: object) -> bytes:
    return b"data: " + encode_json(content) + b"\n\n"


async def _outputs(stream: RequestStream) -> AsyncIterator[tuple[int, RequestOutput]]:
    try:
        while True:
            yield await stream.next_output()
    except StopAsyncIteration:
        return


def _raise_failure(output: RequestOutput, stream: RequestStream) -> None:
    for sample in output.outputs:
        if sample.finish_reason != "error":
            continue
        field = _responsible_field(stream.requests[0].params, str(sample.stop_reason))
        if field is not None:
            raise bad_request(field, f"{field}: {sample.stop_reason}")
        logger.error("request %r failed while it ran", output.request_id)
        raise ApiError(500, f"the request failed while it ran: {sample.stop_reason}", code="engine")


def _responsible_field(params: SamplingParams, message: str) -> str | None:
    """The field by which a client made its own request fail: it leaves no token. None for failures of the server."""
    if not message.startswith(_OWN_FAULTS):
        return None
    given = [name for name in _BANS if getattr(params, name)]
    return given[0] if given else None


@asynccontextmanager
async def _closed_when_client_leaves(stream: RequestStream, receive: Receive) -> AsyncIterator[None]:
    """Closes the stream on the way out, and as soon as the connection is gone."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        stream.close()

    watcher = asyncio.create_task(watch())
    try:
        yield
    finally:
        watcher.cancel()
        stream.close()
