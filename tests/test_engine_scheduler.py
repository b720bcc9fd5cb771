"""Who runs, in which pages, and that nobody's ids depend on it: preemption, priorities, deadlines, cancels, budgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from support.engine import Request, Result, endless, make_engine, options, random_prompt, sampling, serve
from support.traffic import Models

from eagle31rt import _core
from eagle31rt.errors import InvalidArgumentError

REQUESTS = [
    Request(random_prompt(33, 1), endless(20)),
    Request(random_prompt(5, 2), endless(24, temperature=0.8, seed=7)),
    Request(random_prompt(33, 1), endless(16, temperature=1.0, seed=3)),
    Request([9], endless(12)),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("scheduler"), "bfloat16")


def _engine(models: Models, pages: int = 0, **changes: Any) -> _core.Engine:
    """An engine with so many KV pages, 0 = ample."""
    config = {**models.common, "num_speculative_tokens": 3, **changes}
    if pages > 0:
        info = make_engine(*models.pair, **config).info
        config["kv_cache_memory_bytes"] = pages * (int(str(info["kv_cache_bytes"])) // int(str(info["num_pages"])))
    return make_engine(*models.pair, **config)


def _compare(models: Models, requests: list[Request], results: list[Result]) -> None:
    for request, result in zip(requests, results, strict=True):
        models.compare(request, result)


@pytest.mark.parametrize("decode_state", ["host", "device"])
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_preemption_before_any_step(models: Models, decode_state: str, num_drafts: int) -> None:
    """Rounds of drafts begin and end as without it: the runs are equal, not the ids only."""
    engine = _engine(models, num_speculative_tokens=num_drafts, decode_state=decode_state, max_num_batched_tokens=16)
    expected = serve(engine, REQUESTS)
    _compare(models, REQUESTS, expected)
    for step in range(1, 24):
        victim = step % len(REQUESTS)
        requests = [replace(r, preempt_at=(step,)) if i == victim else r for i, r in enumerate(REQUESTS)]
        before = engine.stats["num_preemptions"]
        results = serve(engine, requests)
        assert [r.outcome for r in results] == [r.outcome for r in expected]
        assert [r.runs for r in results] == [r.runs for r in expected]
        if step < 6:
            assert engine.stats["num_preemptions"] == before + 1


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("decode_state", ["host", "device"])
@pytest.mark.parametrize("caching", [True, False])
def test_a_pool_with_room_for_one(models: Models, page_size: int, decode_state: str, caching: bool) -> None:
    """Four requests share the pages of the longest one: they take turns, and all of them end."""
    entries = max(len(request.prompt) + request.params["max_tokens"] - 1 for request in REQUESTS)
    engine = _engine(
        models,
        pages=-(-entries // page_size),
        page_size=page_size,
        decode_state=decode_state,
        enable_prefix_caching=caching,
    )
    _compare(models, REQUESTS, serve(engine, REQUESTS))
    assert engine.stats["num_preemptions"] > 0
    assert engine.stats["num_used_pages"] == 0


@pytest.mark.parametrize("num_drafts", [0, 1, 5])
def test_one_request_needs_no_more_than_its_entries(models: Models, num_drafts: int) -> None:
    """Drafts are cut to the pages that there are: they neither need another one nor preempt."""
    engine = _engine(models, pages=4 + 30 - 1, page_size=1, num_speculative_tokens=num_drafts)
    request = Request(random_prompt(4), endless(30))
    result = serve(engine, [request])[0]
    models.compare(request, result)
    assert engine.stats["num_preemptions"] == 0
    assert (result.num_drafts > 0) == (num_drafts > 0)


@pytest.mark.parametrize("chunk", [1, 2, 3, 15, 16, 17, 64])
@pytest.mark.parametrize("decode_state", ["host", "device"])
def test_any_chunk(models: Models, chunk: int, decode_state: str) -> None:
    """Report 22: the last slot of a chunk holds the known next token. Acceptance says so, ids would not."""
    whole = serve(_engine(models, enable_prefix_caching=False), REQUESTS)
    cut = serve(_engine(models, max_num_batched_tokens=chunk, decode_state=decode_state), REQUESTS)
    assert [(r.outcome, r.runs) for r in cut] == [(r.outcome, r.runs) for r in whole]


def test_priorities_come_before_arrival(models: Models) -> None:
    engine = _engine(models, max_num_seqs=1)
    for index, priority in enumerate([0, 5, -1, 0]):
        engine.add_request(index, random_prompt(4, index), sampling(**endless(3)), options(priority=priority))
    finished: list[int] = []
    while engine.has_unfinished_requests():
        finished += [output.request_id for output in engine.step() if output.finish_reason]
    assert finished == [2, 0, 3, 1]


def test_an_urgent_request_does_not_wait_for_pages_of_another(models: Models) -> None:
    """Its prompt is being computed by one of low rank, which prompts of middle rank keep from going on."""
    engine = _engine(models, max_num_batched_tokens=16, max_num_seqs=8)
    prompt = random_prompt(80, 1)
    engine.add_request(0, prompt, sampling(**endless(4)), options(priority=10))
    engine.step()
    engine.add_request(1, prompt, sampling(**endless(4)), options(priority=-10))
    first_step: int | None = None
    for step in range(1, 12):
        engine.add_request(1 + step, random_prompt(80, 1 + step), sampling(**endless(1)), options(priority=0))
        if any(output.request_id == 1 for output in engine.step()) and first_step is None:
            first_step = step
        engine.check()
    assert first_step == 5  # one page is in the cache when it comes, or less, and a step computes 16 rows


def test_many_may_wait(models: Models) -> None:
    """Cancels and deadlines find a request among the waiting ones; order and accounts hold."""
    engine = _engine(models, max_num_seqs=2)
    for index in range(300):
        timeout = 1e-9 if index % 7 == 3 else 0.0
        engine.add_request(
            index, [5 + index % 9], sampling(**endless(2)), options(priority=index % 3, timeout_seconds=timeout)
        )
    for index in range(0, 300, 5):
        assert engine.cancel(index) and not engine.cancel(index)
    engine.check()
    finished: dict[str, list[int]] = {"length": [], "abort": []}
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finish_reason:
                finished[output.finish_reason].append(output.request_id)
        engine.check()
    left = [index for index in range(300) if index % 5 != 0]
    assert sorted(finished["abort"]) == [index for index in left if index % 7 == 3]
    assert finished["length"] == sorted((i for i in left if i % 7 != 3), key=lambda index: (index % 3, index))
    assert engine.stats["num_waiting"] == engine.stats["num_running"] == 0


def test_the_last_in_order_is_preempted(models: Models) -> None:
    """Two requests that outgrow the pool: the one of lower rank, although older, gives way until the other is done."""
    engine = _engine(models, pages=4, num_speculative_tokens=0)
    engine.add_request(0, random_prompt(16, 1), sampling(**endless(30)), options(priority=1))
    engine.add_request(1, random_prompt(16, 2), sampling(**endless(30)), options(priority=0))
    finished: list[int] = []
    while engine.has_unfinished_requests():
        finished += [output.request_id for output in engine.step() if output.finish_reason]
        engine.check()
    assert finished == [1, 0]
    assert engine.stats["num_preemptions"] == 1


def test_what_never_fits_is_refused(models: Models) -> None:
    engine = _engine(models, pages=3)
    prompt = random_prompt(20)
    engine.check_request(prompt, sampling(max_tokens=29))  # 48 entries
    for call in (engine.check_request, lambda *args: engine.add_request(0, *args)):
        with pytest.raises(InvalidArgumentError, match="4 KV pages of 16 tokens and the engine has 3"):
            call(prompt, sampling(max_tokens=30))
    assert not engine.has_unfinished_requests()


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf")])
def test_bad_timeouts_are_refused(models: Models, timeout: float) -> None:
    with pytest.raises(InvalidArgumentError, match="timeout_seconds"):
        _engine(models).add_request(0, [5], sampling(), options(timeout_seconds=timeout))


@pytest.mark.parametrize("decode_state", ["host", "device"])
def test_a_deadline_ends_one_request(models: Models, decode_state: str) -> None:
    """One that waits and one that runs are over at once, one has 30 years, and the neighbour has none."""
    engine = _engine(models, decode_state=decode_state, max_num_seqs=2)
    for index, timeout in enumerate([1e9, 0.0, 1e-9]):
        request = REQUESTS[index]
        engine.add_request(index, request.prompt, sampling(**request.params), options(timeout_seconds=timeout))
    results = [Result() for _ in range(3)]
    while engine.has_unfinished_requests():
        for output in engine.step():
            results[output.request_id].token_ids += output.new_token_ids
            results[output.request_id].finish_reason = output.finish_reason
            results[output.request_id].error = output.error
        engine.check()
    assert [r.finish_reason for r in results] == ["length", "length", "abort"]
    assert "timeout_seconds" in results[2].error and results[2].token_ids == []
    assert results[0].token_ids == serve(engine, REQUESTS[:1])[0].token_ids


@pytest.mark.parametrize("decode_state", ["host", "device"])
def test_pages_come_back_after_a_storm_of_cancels(models: Models, decode_state: str) -> None:
    engine = _engine(models, pages=20, decode_state=decode_state, max_num_batched_tokens=24)
    for number in range(120):
        request = REQUESTS[number % len(REQUESTS)]
        engine.add_request(number, request.prompt, sampling(**request.params), options(priority=number % 3))
        if number % 3 == 0:
            engine.step()
        if number >= 6:
            engine.cancel(number - (5 if number % 2 else 6))
        engine.check()
    for number in range(120):
        engine.cancel(number)
    engine.check()
    stats = engine.stats
    assert stats["num_used_pages"] == stats["num_running"] == stats["num_waiting"] == 0
    assert engine.info["num_free_pages"] == engine.info["num_pages"]
    _compare(models, REQUESTS, serve(engine, REQUESTS))
