"""Requests that could hold up, break or mislead a server, and that it answers in time and by name."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.server import MAX_LENGTH, MODEL, RunningServer, running_server, slowed, write_pair

from eagle31rt.request import Sample
from eagle31rt.server import body as body_module
from eagle31rt.server.gate import Gate
from eagle31rt.server.options import Limits, ServerOptions

COMPLETION = {"model": MODEL, "prompt": "abc", "max_tokens": 4, "temperature": 0}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
ENDLESS = {**COMPLETION, "max_tokens": 8000, "ignore_eos": True, "stream": True}
END_OF_SEQUENCE = 2


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def server(pair: tuple[Path, Path]) -> Iterator[RunningServer]:
    with running_server(*pair, enable_admin=True) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


def refused(http: httpx.Client, path: str, body: dict[str, Any]) -> str:
    """The field that the 400 names."""
    reply = http.post(path, content=json.dumps(body))
    assert reply.status_code == 400, reply.text
    return str(reply.json()["error"]["param"])


def test_tokenising_lets_other_threads_run(server: RunningServer) -> None:
    """With a switch interval of hours, another thread runs only where this one gives the lock of Python away."""
    go, ran = threading.Lock(), threading.Event()
    go.acquire()
    interval = sys.getswitchinterval()

    def other() -> None:
        with go:
            ran.set()

    thread = threading.Thread(target=other)
    thread.start()
    text = "a\U0001f600" * 200_000
    sys.setswitchinterval(10_000)
    try:
        go.release()
        server.llm.get_tokenizer().encode(text)
        assert ran.is_set()
    finally:
        sys.setswitchinterval(interval)
        thread.join()


def test_bodies_are_read_outside_of_the_event_loop(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    parse = body_module.parse_object

    def watched(body: bytes, max_depth: int) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return parse(body, max_depth)

    monkeypatch.setattr(body_module, "parse_object", watched)
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize", "/swap_draft"):
        assert http.post(path, json={"nonsense": 1}).status_code == 400
    assert len(threads) == 5 and server.thread.name not in threads


def test_text_that_cannot_fit_is_refused_before_it_is_tokenised(
    server: RunningServer, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = server.llm.get_tokenizer()
    encode, lengths = tokenizer.encode, []

    def watched(text: str, add_special_tokens: bool = True) -> list[int]:
        lengths.append(len(text))
        return encode(text, add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode", watched)
    text = "a" * (MAX_LENGTH * tokenizer.max_token_bytes + 1)
    assert refused(http, "/v1/completions", {**COMPLETION, "prompt": text}) == "prompt"
    assert refused(http, "/v1/completions", {**COMPLETION, "prompt": text, "add_special_tokens": False}) == "prompt"
    chat = {**CHAT, "messages": [{"role": "user", "content": text}]}
    assert refused(http, "/v1/chat/completions", chat) == "messages"
    assert refused(http, "/tokenize", {"prompt": text}) == "prompt"
    assert not lengths
    for add in (True, False):  # its end is what counts
        cut = {**COMPLETION, "prompt": text, "truncate_prompt_tokens": 5, "add_special_tokens": add}
        reply = http.post("/v1/completions", json=cut)
        assert reply.status_code == 200 and reply.json()["usage"]["prompt_tokens"] == 5
    assert lengths == [len(text)] * 2


def test_lists_have_limits(http: httpx.Client) -> None:
    limits = Limits()
    assert refused(http, "/v1/completions", {**COMPLETION, "prompt": ["a"] * (limits.max_prompts + 1)}) == "prompt"
    messages = CHAT["messages"] * (limits.max_messages + 1)  # type: ignore[operator]
    assert refused(http, "/v1/chat/completions", {**CHAT, "messages": messages}) == "messages"
    assert refused(http, "/tokenize", {"messages": messages}) == "messages"
    assert refused(http, "/v1/chat/completions", {**CHAT, "tools": [{}] * 2000}) == "tools"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"allowed_token_ids": [END_OF_SEQUENCE], "min_tokens": 2}, "allowed_token_ids"),
        ({"allowed_token_ids": [70], "bad_words": ["A"]}, "allowed_token_ids"),
        ({"guided_choice": ["A"], "bad_words": ["A"]}, "structured_outputs"),
    ],
)
def test_parameters_that_leave_no_token_are_the_clients(
    server: RunningServer, http: httpx.Client, change: dict[str, Any], field: str
) -> None:
    if "bad_words" in change and "allowed_token_ids" in change:
        change = {**change, "allowed_token_ids": server.llm.get_tokenizer().encode("A", add_special_tokens=False)}
    assert refused(http, "/v1/completions", {**COMPLETION, **change}) == field
    lines = http.post("/v1/completions", json={**COMPLETION, **change, "stream": True}).text.split("\n\n")
    assert json.loads(lines[-3].removeprefix("data: "))["error"]["param"] == field and "[DONE]" in lines[-2]


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "chat_template"])
def test_template_variables_that_are_fields_are_refused(http: httpx.Client, name: str) -> None:
    body = {**CHAT, "chat_template_kwargs": {name: []}}
    assert refused(http, "/v1/chat/completions", body) == "chat_template_kwargs"


def test_odd_names_are_no_internal_error(http: httpx.Client) -> None:
    assert http.post("/v1/chat/completions", json={**CHAT, "chat_template_kwargs": {"self": 1}}).status_code == 200
    assert refused(http, "/v1/completions", {"\ud800": 1, "prompt": "a"}) == "?"
    for model in ("x" * 5000, "~nobody-here/x", "a\0b"):
        assert refused(http, "/swap_draft", {"model": model}) == "model"


@pytest.mark.parametrize("request_id", ["a\nERROR forged", "a\rb", "\x1b[2J", "a" * 257])
def test_request_ids_cannot_forge_logs(http: httpx.Client, request_id: str) -> None:
    assert refused(http, "/v1/completions", {**COMPLETION, "request_id": request_id}) == "request_id"


def test_a_failed_request_is_logged_with_its_quoted_id(
    server: RunningServer, http: httpx.Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(sample: Sample, step: Any) -> None:
        sample.output.finish_reason, sample.output.stop_reason = "error", "the device was lost"

    monkeypatch.setattr(Sample, "apply", failing)
    body = {**COMPLETION, "request_id": "it's", "guided_choice": ["A"]}
    assert http.post("/v1/completions", json=body).status_code == 500
    assert """request "it's" failed""" in caplog.text


def test_null_beside_calls_is_no_text(server: RunningServer) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
    user, result = {"role": "user", "content": "a"}, {"role": "tool", "content": "1"}
    texts = [
        server.llm.chat_prompt([user, {"role": "assistant", "content": content, "tool_calls": [call]}, result]).text
        for content in (None, "")
    ]
    assert texts[0] == texts[1]


def test_obfuscation_may_be_asked_for_and_does_nothing(http: httpx.Client) -> None:
    body = {**COMPLETION, "stream": True, "stream_options": {"include_obfuscation": True}}
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 200 and "obfuscation" not in reply.text


def test_a_second_signal_aborts_and_streams_still_end(pair: tuple[Path, Path]) -> None:
    with running_server(*pair) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        with slowed(server.llm), http.stream("POST", "/v1/completions", json=ENDLESS) as reply:
            lines = reply.iter_lines()
            next(lines)
            server.begin_drain()
            server.begin_drain()
            data = [line for line in lines if line]
        assert data[-1] == "data: [DONE]" and '"finish_reason":"abort"' in data[-2]
        server.wait_closed()


def test_what_is_cut_off_at_the_end_leaves_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def endless(*_: Any) -> None:
        await asyncio.Event().wait()

    async def cut_off(draining: bool) -> None:
        gate = Gate(endless, ServerOptions(served_model_names=("m",)), 1, lambda status: None)
        task = asyncio.ensure_future(gate({"type": "http", "path": "/x", "headers": []}, endless, endless))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        gate.draining = draining
        task.cancel()
        await task

    with caplog.at_level(logging.WARNING):
        asyncio.run(cut_off(draining=True))
    assert [record.levelname for record in caplog.records if record.name == "eagle31rt.server"] == ["WARNING"]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cut_off(draining=False))
