"""Hostile bodies: the parser raises nothing but ApiError, the server never answers 5xx and harms no neighbour."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.server import MODEL, RunningServer, running_server, write_pair

from eagle31rt.server.body import parse_object
from eagle31rt.server.errors import ApiError
from eagle31rt.server.options import Limits
from eagle31rt.server.parameters import sampling_params
from eagle31rt.server.protocol import ChatRequest, CompletionRequest, parse_request

CORPUS: list[dict[str, Any]] = [
    {"prompt": "abc", "temperature": 0.7, "seed": 3, "stop": ["a", "b"], "logit_bias": {"5": 1.5}, "n": 2},
    {"prompt": [5, 6, 7], "top_k": 5, "top_p": 0.9, "min_p": 0.1, "logprobs": 2, "speculative": 2, "echo": True},
    {"prompt": ["a", "b"], "guided_regex": "[ab]{2,5}", "stream": True, "stream_options": {"include_usage": True}},
    {"prompt": "x", "structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    {"messages": [{"role": "user", "content": "ab"}], "logprobs": True, "top_logprobs": 3, "tools": []},
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "x"}]}], "max_completion_tokens": 3},
    {"messages": [{"role": "user", "content": "ab"}], "response_format": {"type": "json_object"}, "bad_words": ["a"]},
    {"prompt": "abc", "allowed_token_ids": [5, 6], "stop_token_ids": [7], "prompt_logprobs": 1, "priority": -1},
]
FIELDS = sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields})
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-3, 99)
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(["(a*)*b", "[", "\\p{L}{1,999}", "\ud800", "off", "a" * 3000]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """A valid body with some fields changed, and sometimes some bytes."""
    body = {**draw(st.sampled_from(CORPUS)), **draw(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3))}
    encoded = bytearray(json.dumps(body).encode())
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 3]))):
        encoded[draw(st.integers(0, len(encoded) - 1))] = draw(st.integers(0, 255))
    return bytes(encoded)


def small(body: bytes) -> bytes:
    """Without asking for much work."""
    try:
        value = json.loads(body)
        return json.dumps({"max_tokens": 3, **value}).encode() if isinstance(value, dict) else body
    except (ValueError, RecursionError):
        return body


@settings(max_examples=300, deadline=None)
@given(bodies() | st.binary(max_size=60))
def test_the_parser_refuses_by_name(body: bytes) -> None:
    for kind in (CompletionRequest, ChatRequest):
        try:
            sampling_params(parse_request(kind, parse_object(body, 64)), Limits(), 4)
        except ApiError as error:
            assert 400 <= error.status < 500 and error.param


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(*write_pair(tmp_path_factory.mktemp("pair")), engine={"max_model_len": 64}) as server:
        yield server


@pytest.fixture
def innocent(server: RunningServer) -> Iterator[None]:
    """A neighbour that asks for the same all the time, and must get the same."""
    body = {"model": MODEL, "prompt": "abc", "temperature": 0.9, "seed": 5, "max_tokens": 40}
    texts: set[str] = set()
    statuses: set[int] = set()
    stop = threading.Event()

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as http:
            while not stop.is_set():
                reply = http.post("/v1/completions", json=body)
                statuses.add(reply.status_code)
                texts.add(reply.json()["choices"][0]["text"])

    thread = threading.Thread(target=ask)
    with httpx.Client(base_url=server.url, timeout=60) as http:
        alone = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    thread.start()
    yield
    stop.set()
    thread.join()
    assert (texts, statuses) == ({alone}, {200})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=bodies() | st.binary(max_size=60))
def test_the_server_answers_hostile_bodies(server: RunningServer, innocent: None, body: bytes) -> None:
    path = "/v1/chat/completions" if b'"messages"' in body else "/v1/completions"
    reply = httpx.post(server.url + path, content=small(body), timeout=60)
    assert reply.status_code < 500
    if reply.status_code >= 400:
        assert reply.json()["error"]["param"]


def test_nothing_is_left(server: RunningServer) -> None:
    """Runs last: no request of the storm holds pages."""
    reply = httpx.post(f"{server.url}/v1/completions", json={"prompt": "abc", "max_tokens": 2}, timeout=60)
    assert reply.status_code == 200
    assert server.llm.num_unfinished == 0 and server.llm.stats["num_used_pages"] == 0
