"""Drafting that is off for a while costs no draft work, and goes on as if it had never been off.

The engine with its state on the device always lets the draft follow, so with the same limits in the same steps it gives
the rounds that a draft without a gap would have given. Drafts are drawn here: one bit of a draft's KV soon shows.
"""

from __future__ import annotations

from typing import Any

import pytest
from support.engine import Request, Result, endless, random_prompt, sampling, serve
from support.traffic import MAX_DRAFTS, Models

from eagle31rt import _core, _testing

DRAWN = {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"}
OFF_AND_ON = ((3, 0), (20, MAX_DRAFTS))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("lazy"), "bfloat16")


def _engine(models: Models, **changes: Any) -> _core.Engine:
    """A new engine: what an earlier one cached must not help."""
    settings = {"page_size": 16, "kept_features_memory_bytes": 1 << 20, **DRAWN, **changes}
    engine = models.engine(4, **settings)
    models._engines.clear()
    return engine


def _rounds(results: list[Result]) -> list[tuple[Any, ...]]:
    return [(r.outcome, r.runs, r.num_drafts, r.num_accepted_tokens_per_position) for r in results]


def _without_a_gap(models: Models, requests: list[Request], **changes: Any) -> list[Result]:
    return serve(_engine(models, decode_state="device", **changes), requests)


def _request(limits: tuple[tuple[int, int], ...] = OFF_AND_ON, length: int = 20, **changes: Any) -> Request:
    return Request(random_prompt(length), endless(60, temperature=1.0, seed=5), limits=limits, **changes)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("batch", [1, 3])
def test_rounds_after_a_pause(models: Models, page_size: int, batch: int) -> None:
    requests = [_request(), _request(((5, 0), (9, 3))), _request((), length=33)][:batch]
    results = serve(_engine(models, page_size=page_size), requests)
    assert _rounds(results) == _rounds(_without_a_gap(models, requests, page_size=page_size))
    assert results[0].num_drafts > 3 and results[0].num_accepted_tokens > 5


def test_a_pause_costs_no_draft_work(models: Models) -> None:
    engine = _engine(models, profile=True)
    engine.add_request(0, random_prompt(20), sampling(**endless(60)))
    draft_times = []
    for step in range(24):
        if step in (0, 6, 18):
            _testing.limit_drafts(engine, 0, 4 if step == 6 else 0)
        engine.step()
        draft_times.append(engine.profile()["draft"])
    assert [time > 0 for time in draft_times] == [False] * 6 + [True] * 12 + [False] * 6


@pytest.mark.parametrize("budget", [1, 16, 512])
def test_off_during_the_prompt(models: Models, budget: int) -> None:
    """Off for all of it, and on again in the middle of it."""
    for on_again in (2, 50 if budget == 1 else 8):
        requests = [_request(((0, 0), (on_again, MAX_DRAFTS)), length=40)]
        settings = {"max_num_batched_tokens": budget}
        results = serve(_engine(models, **settings), requests)
        assert _rounds(results) == _rounds(_without_a_gap(models, requests, **settings))
        assert results[0].num_drafts > 3


def test_features_that_were_not_kept_are_computed_again(models: Models) -> None:
    """No memory for features: the rows behind the last observed position run again, without writing KV."""
    requests = [_request(((2, 0), (7, MAX_DRAFTS))), _request((), length=40)]
    results = serve(_engine(models, kept_features_memory_bytes=0), requests)
    assert _rounds(results) == _rounds(_without_a_gap(models, requests))


def test_too_much_to_compute_again(models: Models) -> None:
    """Long off, few tokens to come: the draft goes on without the beginning."""
    limits = ((2, 0), (30, MAX_DRAFTS))
    for memory in (0, 3 * 16 * 4 * 400):
        request = Request(random_prompt(20), endless(55), limits=limits)
        (result,) = serve(_engine(models, kept_features_memory_bytes=memory), [request])
        models.compare(request, result)
        assert result.num_drafts > 2


def test_preempted_while_off(models: Models) -> None:
    requests = [_request(preempt_at=(10,)), _request(((1, 0), (12, 8)), preempt_at=(4, 15))]
    results = serve(_engine(models), requests)
    assert _rounds(results) == _rounds(_without_a_gap(models, requests))


@pytest.mark.parametrize("memory", [1 << 20, 0])
@pytest.mark.parametrize("page_size", [1, 16])
def test_a_prefix_that_was_computed_without_drafts(models: Models, memory: int, page_size: int) -> None:
    """Two requests at once that draft behind it, and one later: as if nothing had been cached. Where no features are
    kept the rows are run again, and pages are whole then: the last one has too few tokens to come for that."""
    prompt = random_prompt(24)
    plain = Request(prompt, {**endless(4), "num_speculative_tokens": 0})
    drafted = [Request([*prompt[:17], 7 + i], endless(70, temperature=1.0, seed=i)) for i in range(3)]
    drafted[2] = Request(drafted[2].prompt, endless(12, temperature=1.0, seed=9))
    engine = _engine(models, page_size=page_size, kept_features_memory_bytes=memory)
    serve(engine, [plain])
    results = serve(engine, drafted[:2]) + serve(engine, drafted[2:])
    assert [r.num_cached_tokens for r in results] == [17 if page_size == 1 else 16] * 3
    uncached = _engine(models, page_size=page_size, enable_prefix_caching=False)
    assert _rounds(results) == _rounds(serve(uncached, drafted[:2]) + serve(uncached, drafted[2:]))
    assert all(r.num_drafts > 1 for r in results)


def test_a_new_draft_while_rows_run_again(models: Models) -> None:
    """Pages behind those rows are published already; the new draft makes their entries."""
    engine = _engine(models, page_size=1, kept_features_memory_bytes=0, max_num_batched_tokens=4)
    engine.add_request(0, random_prompt(20), sampling(**endless(70)))
    for step in range(40):
        if step in (8, 20):
            _testing.limit_drafts(engine, 0, 0 if step == 8 else MAX_DRAFTS)
        if step == 21:
            engine.swap_draft(str(models.pair[1]))
        outputs = engine.step()
        assert (len(outputs) == 0) == (step < 4 or 20 <= step < 23)
        engine.check()


def test_a_new_draft_in_a_pause(models: Models) -> None:
    """Features of the old draft's layers are of no use to it."""
    engine = _engine(models, rejection_sample_method="equality", draft_sample_method="greedy")
    request = Request(random_prompt(20), endless(60))
    engine.add_request(0, request.prompt, sampling(**request.params))
    ids: list[int] = []
    for step in range(60):
        if step in (4, 12):
            _testing.limit_drafts(engine, 0, 0 if step == 4 else MAX_DRAFTS)
        if step == 8:
            engine.swap_draft(str(models.pair[1]))
        for output in engine.step():
            ids += output.new_token_ids
        engine.check()
    assert ids == serve(models.plain, [request], simple=True)[0].token_ids
