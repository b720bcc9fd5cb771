"""Metrics: vLLM's names, values that agree with what was asked, and the one warning about a poor draft."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.server import MODEL, NUM_DRAFTS, RunningServer, engine_arguments, running_server, write_pair

from eagle31rt import AsyncLLM, SamplingParams
from eagle31rt.metrics import AcceptanceWatch, ServerMetrics
from eagle31rt.request import Request


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(*write_pair(tmp_path_factory.mktemp("pair")), expose_vllm_metric_names=True) as server:
        yield server


def scrape(server: RunningServer) -> dict[str, float]:
    """Values by name, with the labels that tell samples of one name apart."""
    text = httpx.get(f"{server.url}/metrics").text
    values: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key not in ("model_name", "engine")}
            values[sample.name + "".join(f" {key}={value}" for key, value in sorted(labels.items()))] = sample.value
    return values


def test_counters_agree_with_the_answers(server: RunningServer) -> None:
    before = scrape(server)
    body = {"model": MODEL, "prompt": "abc", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/completions", json=body).json()
    httpx.post(f"{server.url}/v1/completions", json={**body, "max_tokens": 0})
    after = scrape(server)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    assert reply["usage"]["completion_tokens"] == 30
    expected: dict[str, float] = {
        "prompt_tokens_total": 4,
        "generation_tokens_total": 30,
        "request_success_total finished_reason=length": 1,
        "time_to_first_token_seconds_count": 1,
        "e2e_request_latency_seconds_count": 1,
        "request_decode_time_seconds_count": 1,
        "request_inference_time_seconds_count": 1,
        "request_prompt_tokens_sum": 4,
        "request_generation_tokens_sum": 30,
        "request_params_max_tokens_sum": 30,
        "request_params_n_sum": 1,
        "http_requests_total status=200": 1,
        "http_requests_total status=400": 1,
    }
    assert {name: grown[f"eagle31rt:{name}"] for name in expected} == expected
    parts = ("request_queue_time_seconds_sum", "request_prefill_time_seconds_sum")
    waited, computed = (grown[f"eagle31rt:{name}"] for name in parts)
    assert waited > 0 and computed > 0
    assert waited + computed == pytest.approx(grown["eagle31rt:time_to_first_token_seconds_sum"])
    drafts, accepted = (
        grown["eagle31rt:spec_decode_num_drafts_total"],
        grown["eagle31rt:spec_decode_num_accepted_tokens_total"],
    )
    assert drafts > 0 and 0 < accepted <= grown["eagle31rt:spec_decode_num_draft_tokens_total"]
    per_position = [
        grown.get(f"eagle31rt:spec_decode_num_accepted_tokens_per_pos_total position={position}", 0.0)
        for position in range(NUM_DRAFTS)
    ]
    assert sum(per_position) == accepted and per_position == sorted(per_position, reverse=True)
    # Every step but the first gave at least one token: 30 = first + one and the accepted ones of each further step
    assert grown["eagle31rt:inter_token_latency_seconds_count"] < 29
    assert (after["eagle31rt:num_requests_running"], after["eagle31rt:kv_cache_usage_perc"]) == (0, 0)
    assert after["process_resident_memory_bytes"] > 0


def test_queue_time_begins_before_the_engine_may_run_the_request(tmp_path: Path) -> None:
    class LateMetrics(ServerMetrics):
        """The engine's thread takes the request in before the event loop's thread gets here."""

        def on_submit(self, request: Request) -> None:
            time.sleep(0.1)
            super().on_submit(request)

    async def run() -> LateMetrics:
        model, draft = write_pair(tmp_path)
        llm = AsyncLLM(model, **engine_arguments(draft))
        llm.observer = LateMetrics(llm, MODEL)
        async for _ in llm.generate({"prompt_token_ids": [5, 6]}, SamplingParams(temperature=0, max_tokens=3)):
            pass
        llm.shutdown()
        return llm.observer

    text = asyncio.run(run()).render("text/plain")[0].decode()
    (queued,) = (line for line in text.splitlines() if line.startswith("eagle31rt:request_queue_time_seconds_sum"))
    assert 0 < float(queued.rpartition(" ")[2]) < 0.1


def test_vllm_names_carry_the_same_values(server: RunningServer) -> None:
    values = scrape(server)
    own = {name.removeprefix("eagle31rt:"): value for name, value in values.items() if name.startswith("eagle31rt:")}
    theirs = {name.removeprefix("vllm:"): value for name, value in values.items() if name.startswith("vllm:")}
    missing = {name.partition(" ")[0] for name in own.keys() - theirs.keys()}
    assert missing <= {
        "http_requests_total",
        "http_requests_created",
        "prefix_cache_pages",
        "spec_decode_draft_acceptance_rate",
        "step_seconds_total",
        "decode_steps_total",
    }
    assert all(own[name] == value for name, value in theirs.items())
    assert {
        "num_preemptions_total",
        "prefix_cache_queries_total",
        "prefix_cache_hits_total",
        "num_requests_waiting",
    } <= theirs.keys()


def test_time_and_reasons_of_steps(server: RunningServer) -> None:
    values = scrape(server)

    def of(name: str, label: str) -> dict[str, float]:
        start = f"eagle31rt:{name}_total {label}="
        return {key.removeprefix(start): value for key, value in values.items() if key.startswith(start)}

    seconds, steps = of("step_seconds", "part"), of("decode_steps", "reason")
    assert set(seconds) == {"draft", "verify", "sample", "host"} and min(seconds.values()) > 0
    assert set(steps) == {"fixed", "no_draft", "plain", "best", "probe", "back_off"}
    assert steps.pop("fixed") > 0 and set(steps.values()) == {0.0}


def add(watch: AcceptanceWatch, rate: float, windows: int) -> None:
    for _ in range(windows):
        watch.add(500, 1500, round(1500 * rate))


def test_a_poor_draft_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = AcceptanceWatch()
    with caplog.at_level(logging.WARNING):
        add(watch, 0.5, 2)
        add(watch, 0.8, 1)  # not staying under
        add(watch, 0.5, 2)
        assert not caplog.records and watch.rate == 0.5
        add(watch, 0.4, 5)
    assert len(caplog.records) == 1
    assert all(word in caplog.text for word in ("0.70", "0.40", "retrain", "off"))
    good: Any = AcceptanceWatch()
    assert good.rate is None
    add(good, 0.71, 9)
    assert len(caplog.records) == 1
