"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}} and a status."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

from starlette.responses import Response

from eagle31rt.errors import Eagle31rtError, InvalidArgumentError, ResourceError, UnsupportedError

_MAX_MESSAGE = 2000
_TYPES = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
# What the Python API calls things, taken off messages that HTTP clients see.
_PREFIX = re.compile(r"(?:(?:prompt|conversation) 0: )+")


class ApiError(Exception):
    """Answered as it stands. `param` is the field of the request that is wrong, `code` a word for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, object]:
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        # A lone surrogate of the request must not make the answer undecodable.
        message = self.message[:_MAX_MESSAGE].encode("utf-8", "replace").decode("utf-8")
        return {"error": {"message": message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return JsonResponse(self.body(), self.status, self.headers)


class JsonResponse(Response):
    """Compact JSON, non-ASCII characters as they are."""

    media_type = "application/json"

    def __init__(self, content: object, status_code: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(encode_json(content), status_code, dict(headers or {}))


def encode_json(content: object) -> bytes:
    """Raises ValueError for NaN and infinities, which JSON does not have."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")


def bad_request(param: str | None, message: str, code: str | None = None) -> ApiError:
    return ApiError(400, message, param, code)


def from_runtime_error(error: Eagle31rtError, fields: Iterable[str], otherwise: str | None) -> ApiError:
    """What a request was refused for. `fields` are its field names: the first that the message speaks of is `param`."""
    message = _PREFIX.sub("", str(error)).replace("SamplingParams.", "")
    if isinstance(error, ResourceError):  # such as too many grammars being compiled
        return ApiError(429, message, code="busy", headers={"Retry-After": "1"})
    if not isinstance(error, (InvalidArgumentError, UnsupportedError)):
        return ApiError(500, message, code="engine")
    words = {word: place for place, word in reversed(list(enumerate(re.findall(r"\w+", message))))}
    named = [name for name in fields if name in words]
    param = min(named, key=lambda name: words[name]) if named else otherwise
    return bad_request(param, message, "unsupported" if isinstance(error, UnsupportedError) else None)
