"""Bad requests: the right status, OpenAI's shape, the field's name; limits, keys, leaving clients, draining."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import MODEL, RunningServer, running_server, slowed, write_pair

from eagle31rt.errors import ResourceError
from eagle31rt.server.options import Limits

CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
COMPLETION = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}
ENDLESS = {**COMPLETION, "max_tokens": 8000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def server(pair: tuple[Path, Path]) -> Iterator[RunningServer]:
    with running_server(*pair) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


def error_of(reply: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    body = reply.json()
    assert list(body) == ["error"] and sorted(body["error"]) == ["code", "message", "param", "type"]
    error: dict[str, Any] = body["error"]
    assert error["message"] and error["type"]
    return error


# What is wrong -> the field that the answer names.
BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 1000, "temperature": 1}, "n"),
    ({"n": 2, "temperature": 0}, "n"),
    ({"seed": -5}, "seed"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 2**40}, "max_tokens"),
    ({"min_tokens": 9}, "min_tokens"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a"] * 10000}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x" * 5000]}, "stop"),
    ({"stop_token_ids": [96]}, "stop_token_ids"),
    ({"stop_token_ids": "x"}, "stop_token_ids"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"a": 1}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias"),
    ({"logit_bias": {"96": 1}}, "logit_bias"),
    ({"logit_bias": [1]}, "logit_bias"),
    ({"allowed_token_ids": [1000]}, "allowed_token_ids"),
    ({"allowed_token_ids": []}, "allowed_token_ids"),
    ({"bad_words": [" "]}, "bad_words"),
    ({"prompt_logprobs": 1000}, "prompt_logprobs"),
    ({"num_speculative_tokens": 9}, "num_speculative_tokens"),
    ({"num_speculative_tokens": -1}, "num_speculative_tokens"),
    ({"speculative": "never"}, "speculative"),
    ({"speculative": 99}, "speculative"),
    ({"speculative": 1, "num_speculative_tokens": 2}, "speculative"),
    ({"priority": 2**40}, "priority"),
    ({"timeout_seconds": -1}, "timeout_seconds"),
    ({"request_id": ""}, "request_id"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": True}}, "stream_options"),
    ({"stream": "yes"}, "stream"),
    ({"temprature": 1}, "temprature"),
    ({"best_of": 3}, "best_of"),
    ({"lora_request": {}}, "lora_request"),
    ({"chat_template": "{{ x }}"}, "chat_template"),
    ({"guided_regex": "("}, "guided_regex"),
    ({"guided_regex": "(a{1000}){1000}"}, "guided_regex"),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
    ({"guided_json": {"type": "nonsense"}}, "guided_json"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": {"json": False}}, "structured_outputs"),
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": []}}}}, "response_format"),
]


@pytest.mark.parametrize(("change", "field"), BAD_FIELDS, ids=lambda value: repr(value)[:40])
def test_bad_fields_are_named(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
        error = error_of(http.post(path, json={**body, **change}))
        assert error["param"] == field
        assert field in error["message"] or "structured_outputs" in error["message"]


@pytest.mark.parametrize(
    "prompt",
    [
        "",
        [],
        None,
        5,
        {},
        {"prompt_token_ids": [5]},
        [96],
        [-1],
        [5.5],
        [[5], "a", 7],
        "a" * 9000,
        [5] * 9000,
        "\ud800",
    ],
)
def test_bad_prompts(http: httpx.Client, prompt: Any) -> None:
    body = json.dumps({**COMPLETION, "prompt": prompt})
    assert error_of(http.post("/v1/completions", content=body))["param"] == "prompt"


@pytest.mark.parametrize(
    "messages",
    [None, [], "x", [5], [{"content": "x"}], [{"role": "user", "content": 5}],
     [{"role": "user", "content": [{"type": "image_url"}]}], [{"role": "user", "content": "a" * 9000}]],
)  # fmt: skip
def test_bad_messages(http: httpx.Client, messages: Any) -> None:
    assert error_of(http.post("/v1/chat/completions", json={**CHAT, "messages": messages}))["param"] == "messages"


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"5", b'"x"', b"\xff\xfe", b'{"prompt": "\xc3\x28"}', b'{"temperature": NaN}',
     b'{"temperature": Infinity}', b'{"temperature": 1e999}', b'{"seed": 1' + b"0" * 5000 + b"}", b"[" * 1000,
     b'{"a": [' + b"[]," * (1 << 18) + b"[]]}",
     b'{"prompt": ' + b"[" * 1000 + b"]" * 1000 + b"}", b'{"a":' * 70 + b"1" + b"}" * 70,
     b'{"a":' * 100000 + b"1" + b"}" * 100000],
    ids=lambda body: repr(body[:24]),
)  # fmt: skip
def test_bodies_that_are_no_request(http: httpx.Client, body: bytes) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert error_of(http.post(path, content=body))["param"] == "body"


def test_unknown_models_and_paths(http: httpx.Client) -> None:
    for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT), ("/tokenize", {"prompt": "a"})):
        error = error_of(http.post(path, json={**body, "model": "gpt-x"}), 404)
        assert (error["param"], error["code"]) == ("model", "model_not_found") and "gpt-x" in error["message"]
    error_of(http.get("/v1/models/other"), 404)
    error_of(http.get("/nothing"), 404)
    error_of(http.get("/v1/completions"), 405)
    error_of(http.post("/swap_draft", json={}), 404)  # only with --enable-admin


def test_fields_without_effect_and_null_are_accepted(http: httpx.Client) -> None:
    body = {**COMPLETION, "user": "me", "suffix": None, "stop": None, "seed": None, "best_of": 1, "logit_bias": {}}
    assert http.post("/v1/completions", json=body).status_code == 200


def test_bodies_have_a_limit(pair: tuple[Path, Path]) -> None:
    with (
        running_server(pair[0], limits=Limits(max_body_bytes=1000)) as server,
        httpx.Client(base_url=server.url) as http,
    ):
        big = json.dumps({**COMPLETION, "user": "x" * 2000}).encode()
        assert error_of(http.post("/v1/completions", content=big), 413)["param"] == "body"
        blocks = iter([big[:600], big[600:]])  # chunked: no length announced
        assert error_of(http.post("/v1/completions", content=blocks), 413)["param"] == "body"


def test_keys(pair: tuple[Path, Path]) -> None:
    with running_server(pair[0], api_keys=("right", "other")) as server, httpx.Client(base_url=server.url) as http:
        for header in (None, "Bearer wrong", "right", "Basic right", "Bearer x", "Bearer right2"):
            headers = {} if header is None else {"Authorization": header}
            assert (
                error_of(http.post("/v1/completions", json=COMPLETION, headers=headers), 401)["code"]
                == "invalid_api_key"
            )
        for key in ("right", "other"):
            headers = {"Authorization": f"Bearer {key}"}
            assert http.post("/v1/completions", json=COMPLETION, headers=headers).status_code == 200
        assert http.get("/health").status_code == 200


def test_a_full_queue_is_a_429(pair: tuple[Path, Path]) -> None:
    changes: dict[str, Any] = {
        "engine": {"max_num_seqs": 1},
        "limits": Limits(max_waiting_requests=1, retry_after_seconds=7),
    }
    with running_server(pair[0], **changes) as server, httpx.Client(base_url=server.url) as http:
        # More than there is room for at any time: trying again would not help.
        for field, change in (("n", {"temperature": 1, "n": 3}), ("prompt", {"prompt": ["a", "b", "c"]})):
            assert error_of(http.post("/v1/completions", json={**COMPLETION, **change}))["param"] == field
        with slowed(server.llm), http.stream("POST", "/v1/completions", json=ENDLESS) as one:
            lines = one.iter_lines()
            next(lines)
            with http.stream("POST", "/v1/completions", json={**ENDLESS, "max_tokens": 5}) as two:
                reply = http.post("/v1/completions", json=COMPLETION)
                assert error_of(reply, 429)["code"] == "queue_full" and reply.headers["retry-after"] == "7"
                one.close()
                two.read()


def test_a_client_that_leaves_frees_its_pages(server: RunningServer, http: httpx.Client) -> None:
    gone = threading.Event()
    cancel = server.app.metrics.on_cancel

    def watch(*arguments: Any) -> None:
        cancel(*arguments)
        gone.set()

    server.app.metrics.on_cancel = watch  # type: ignore[method-assign]
    try:
        for body in (ENDLESS, {**ENDLESS, "stream": False}):
            gone.clear()
            with slowed(server.llm), httpx.Client(base_url=server.url) as client:
                if body["stream"]:
                    with client.stream("POST", "/v1/completions", json=body) as reply:
                        next(reply.iter_lines())
                else:
                    with pytest.raises(httpx.ReadTimeout):
                        client.post("/v1/completions", json={**body, "n": 8, "temperature": 1}, timeout=0.05)
            assert gone.wait(60)
        assert http.post("/v1/completions", json=COMPLETION).status_code == 200  # at least one more step
        assert server.llm.num_unfinished == 0 and server.llm.stats["num_used_pages"] == 0
    finally:
        del server.app.metrics.on_cancel  # type: ignore[attr-defined]


def test_a_drain_finishes_what_runs_and_refuses_more(pair: tuple[Path, Path]) -> None:
    with running_server(*pair) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        body = {**ENDLESS, "max_tokens": 100}
        with slowed(server.llm), http.stream("POST", "/v1/completions", json=body) as reply:
            lines = reply.iter_lines()
            first = next(lines)
            server.begin_drain()
            status = 200
            while status == 200:  # the drain begins within the loop's next turns
                status = http.get("/health").status_code
            refused = http.post("/v1/completions", json=COMPLETION)
            assert error_of(refused, 503)["code"] == "draining" and "retry-after" in refused.headers
            data = [first, *(line for line in lines if line)]
        assert data[-1] == "data: [DONE]" and '"finish_reason":"length"' in data[-2]
        server.wait_closed()


def test_a_drain_that_takes_too_long_aborts(pair: tuple[Path, Path]) -> None:
    with running_server(*pair, shutdown_timeout=0.0) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        with slowed(server.llm), http.stream("POST", "/v1/completions", json=ENDLESS) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.begin_drain()
            data = [line for line in lines if line]
        assert '"finish_reason":"abort"' in data[-2]
        server.wait_closed()


def test_what_the_runtime_has_no_room_for_is_a_429(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: Any, **__: Any) -> None:
        raise ResourceError("4 others are being compiled")

    monkeypatch.setattr(server.llm, "prepare", busy)
    reply = http.post("/v1/completions", json=COMPLETION)
    assert error_of(reply, 429)["code"] == "busy" and reply.headers["retry-after"] == "1"


def test_an_internal_error_shows_and_logs_no_text(
    server: RunningServer, http: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret prompt abc")

    monkeypatch.setattr(server.llm, "prepare", broken)
    error = error_of(http.post("/v1/completions", json=COMPLETION), 500)
    assert "secret" not in error["message"] and error["code"] == "internal"
    http.get("/version")  # the log is written when the answer has gone
    assert "RuntimeError" in caplog.text and "secret" not in caplog.text and "Traceback" not in caplog.text
