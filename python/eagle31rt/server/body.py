"""Reads a request's body as a JSON object, within limits on size, depth and numbers."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from starlette.requests import ClientDisconnect, Request

from eagle31rt.server.errors import ApiError, bad_request
from eagle31rt.server.options import Limits

_MAX_INTEGER = 2**64 - 1  # the widest field (seed)
_MAX_DIGITS = 400  # of any number
_MAX_BRACKETS = 1 << 18  # opening ones, also those in text: a million lists would hold the interpreter for 0.5 s

Result = TypeVar("Result")


async def read_body(request: Request, limits: Limits, parse: Callable[[dict[str, Any]], Result]) -> Result:
    """What `parse` makes of the JSON object, in another thread: large bodies must not hold up other requests.

    Raises what `parse` does, or ApiError: 408 for a body that does not come, 413 for too large a one, 400 for what is
    no JSON object.
    """
    try:
        body = await asyncio.wait_for(_read(request, limits.max_body_bytes), limits.max_body_seconds)
    except asyncio.TimeoutError as error:
        message = f"the body did not come within {limits.max_body_seconds:g} seconds"
        raise ApiError(408, message, "body", "body_timeout") from error
    return await asyncio.to_thread(lambda: parse(parse_object(body, limits.max_json_depth)))


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and (len(announced) > 18 or int(announced) > max_bytes):
        raise _too_large(max_bytes)
    blocks: list[bytes] = []
    size = 0
    try:
        async for block in request.stream():
            size += len(block)
            if size > max_bytes:
                raise _too_large(max_bytes)
            blocks.append(block)
    except ClientDisconnect as error:
        raise ApiError(499, "the client left before its request was complete") from error
    return b"".join(blocks)


def _too_large(max_bytes: int) -> ApiError:
    return ApiError(413, f"the body is larger than {max_bytes} bytes (--max-body-bytes)", "body", "body_too_large")


def parse_object(body: bytes, max_depth: int) -> dict[str, Any]:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise bad_request("body", f"the body is not valid UTF-8: byte {error.start} cannot be decoded") from error
    if text.count("[") + text.count("{") > _MAX_BRACKETS:
        raise bad_request("body", f"the body has more than {_MAX_BRACKETS} opening brackets", "body_too_complex")
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_int=_integer, parse_float=_float)
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    except ValueError as error:
        raise bad_request("body", f"the body is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise bad_request("body", f"the body must be a JSON object, got {_json_type(value)}")
    _check_depth(value, max_depth)
    return value


def _check_depth(value: dict[str, Any], max_depth: int) -> None:
    level: list[Any] = [value]
    for _ in range(max_depth):
        children = [one.values() if isinstance(one, dict) else one for one in level]
        level = [child for group in children for child in group if isinstance(child, (dict, list))]
        if not level:
            return
    raise _too_deep(max_depth)


def _too_deep(max_depth: int) -> ApiError:
    return bad_request("body", f"the body is nested more than {max_depth} levels deep", "body_too_deep")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > 21 or abs(int(digits)) > _MAX_INTEGER:
        raise ValueError(f"the number {digits[:24]}... is beyond 64 bits")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > _MAX_DIGITS or math.isinf(value := float(digits)):
        raise ValueError(f"the number {digits[:24]}... is too large")
    return value


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
