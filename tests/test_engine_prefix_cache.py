"""The prefix cache: what it serves, and that neither ids nor drafts know about it (public reports 22-26, 42)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import DraftSpec, write_draft
from support.engine import Request, Result, endless, make_engine, random_prompt, sampling, serve
from support.successor import write_successor_target
from support.traffic import Models

from eagle31rt import _core, _testing
from eagle31rt.errors import CheckpointError, InvalidArgumentError


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("prefix"), "bfloat16")


@pytest.fixture(params=["host", "device"])
def decode_state(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _engine(models: Models, **changes: Any) -> _core.Engine:
    return make_engine(*models.pair, **{**models.common, "num_speculative_tokens": 4, **changes})


def _in_turn(engine: _core.Engine, requests: list[Request]) -> list[Result]:
    return [serve(engine, [request])[0] for request in requests]


def _same_as_uncached(models: Models, requests: list[Request], results: list[Result]) -> None:
    """Not the ids only: the draft proposed the same tokens, so its KV of the cached prefix is complete."""
    expected = _in_turn(_engine(models, enable_prefix_caching=False), requests)
    assert all(result.num_cached_tokens == 0 for result in expected)
    assert [(r.outcome, r.runs, r.num_draft_tokens) for r in results] == [
        (r.outcome, r.runs, r.num_draft_tokens) for r in expected
    ]
    for request, result in zip(requests, results, strict=True):
        models.compare(request, result)


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 33, 40])
def test_a_repeated_prompt(models: Models, decode_state: str, page_size: int, length: int) -> None:
    engine = _engine(models, page_size=page_size, decode_state=decode_state)
    requests = [Request(random_prompt(length), endless(20))] * 3
    results = _in_turn(engine, requests)
    expected = (length - 1) // page_size * page_size  # at least one token is left to compute
    assert [r.num_cached_tokens for r in results] == [0, expected, expected]
    assert engine.stats["prefix_cache_hits"] == 2 * expected
    assert engine.stats["prefix_cache_queries"] == 3 * length
    _same_as_uncached(models, requests, results)


def test_prompts_that_part(models: Models, decode_state: str) -> None:
    """Equal for a page and for two, another id at the edge (23); A, A + B, A + C (25); P, Q, P (26)."""
    base, other = random_prompt(40, 1), random_prompt(40, 2)
    prompts = [base, [*base[:16], 5, *other], [*base[:32], 6], base[:33] + other, other, base + other, base + [7] * 20]
    requests = [Request(prompt, endless(12)) for prompt in prompts]
    results = _in_turn(_engine(models, decode_state=decode_state), requests)
    assert [r.num_cached_tokens for r in results] == [0, 16, 32, 32, 0, 32, 32]
    _same_as_uncached(models, requests, results)


def test_a_page_is_not_found_under_another_parent(models: Models) -> None:
    first, second = random_prompt(16, 1), random_prompt(16, 2)
    engine = _engine(models)
    results = _in_turn(engine, [Request([*p, 5], endless(4)) for p in (first + second, second, second + first)])
    assert [r.num_cached_tokens for r in results] == [0, 0, 16]  # the last finds what the second left


def _hash_states(ids: np.ndarray) -> np.ndarray:
    """PrefixCache::hash of rows of ids at the beginning of a sequence."""
    state = np.zeros(len(ids), np.uint64)
    for column in ids.astype(np.uint64).T:
        state = (state ^ column) * np.uint64(0x9E3779B97F4A7C15)
        state ^= state >> np.uint64(32)
    return state


def test_pages_of_equal_hash_are_told_apart() -> None:
    """Two beginnings whose states agree in the upper half: a third id each makes their hashes equal."""
    ids = np.random.default_rng(0).integers(0, 1 << 31, (400000, 2))
    states = _hash_states(ids)
    order = np.argsort(states)
    near = (states[order][1:] ^ states[order][:-1]) < 1 << 31
    first, second = order[:-1][near][0], order[1:][near][0]
    one = [*ids[first].tolist(), 5]
    other = [*ids[second].tolist(), 5 ^ int(states[first] ^ states[second])]
    assert one != other and len(set(_hash_states(np.array([one, other])).tolist())) == 1
    assert _testing.find_page([one], one) == 0 and _testing.find_page([one], other) == -1
    assert _testing.find_page([one, other], one) == 0 and _testing.find_page([one, other], other) == 1


@pytest.mark.parametrize("page_size", [1, 16])
def test_conversations_hit_as_without_speculation(models: Models, decode_state: str, page_size: int) -> None:
    """Report 42: three conversations of four turns, replayed with and without drafts."""
    hits = {}
    for num_drafts in (0, 1, 4):
        engine = _engine(models, num_speculative_tokens=num_drafts, page_size=page_size, decode_state=decode_state)
        texts = [random_prompt(11 + seed, seed) for seed in range(3)]
        cached = []
        for turn in range(4):
            requests = [Request(text, endless(9 + turn)) for text in texts]
            results = serve(engine, requests)
            cached += [r.num_cached_tokens for r in results]
            for text, result in zip(texts, results, strict=True):
                text += result.token_ids + random_prompt(3, turn)
        hits[num_drafts] = cached
    assert hits[0] == hits[1] == hits[4]
    assert sum(hits[0]) == (300 if page_size == 1 else 256)


def test_turns_are_drafted_as_without_the_cache(models: Models, decode_state: str) -> None:
    """Output that drafts were accepted in becomes a prefix: its draft entries are those of true features."""
    engine, requests, results = _engine(models, decode_state=decode_state, page_size=4), [], []
    text = random_prompt(9)
    for turn in range(4):
        requests.append(Request(text, endless(10 + turn)))
        results.append(serve(engine, [requests[-1]])[0])
        text = text + results[-1].token_ids + [3 + turn]
    # All full pages of what was computed: the newest token of a turn has no KV yet.
    expected = [0, *((len(r.prompt) + len(o.token_ids) - 1) // 4 * 4 for r, o in zip(requests, results, strict=True))]
    assert [r.num_cached_tokens for r in results] == expected[:-1]
    _same_as_uncached(models, requests, results)


DRAWN = {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"}


def test_a_hit_changes_no_bit_of_a_draft(models: Models, decode_state: str) -> None:
    """Drafts that are drawn, and ids that depend on their laws: one bit of a draft's KV or feature soon shows. Whole
    conversations, so that prefixes hold output as well."""
    results: dict[bool, list[Result]] = {True: [], False: []}
    for caching, found in results.items():
        engine = _engine(models, decode_state=decode_state, page_size=4, enable_prefix_caching=caching, **DRAWN)
        for seed in range(6):
            text = random_prompt(9 + seed, seed)
            for turn in range(3):
                found += _in_turn(engine, [Request(text, endless(16, temperature=1.0, seed=seed + 10 * turn))])
                text = text + found[-1].token_ids + [3 + turn]
    assert sum(r.num_cached_tokens for r in results[True]) > 300
    assert [(r.outcome, r.runs) for r in results[True]] == [(r.outcome, r.runs) for r in results[False]]


def test_samples_of_a_prompt_compute_it_once(models: Models, decode_state: str) -> None:
    """Reports 24 and n > 1: equal prompts that arrive together wait for the first one, page by page."""
    engine = _engine(models, decode_state=decode_state, max_num_batched_tokens=20)
    prompt = random_prompt(50)
    requests = [Request(prompt, endless(12, temperature=0.8, seed=seed)) for seed in range(8)]
    results = serve(engine, requests)
    assert [r.num_cached_tokens for r in results] == [0] + [48] * 7
    for request, result in zip(requests, results, strict=True):
        models.compare(request, result)


@pytest.mark.parametrize("step", [1, 2])
def test_who_waits_for_a_cancelled_prompt_goes_on(models: Models, decode_state: str, step: int) -> None:
    engine = _engine(models, decode_state=decode_state, max_num_batched_tokens=20)
    prompt = random_prompt(50)
    requests = [Request(prompt, endless(8), cancel_at=step), Request(prompt, endless(8)), Request(prompt, endless(8))]
    results = serve(engine, requests)
    assert [r.num_cached_tokens for r in results[1:]] == [16 * (step * 20 // 16), 48]
    for request, result in zip(requests, results, strict=True):
        models.compare(request, result)


def test_who_waits_for_a_preempted_prompt_goes_on(models: Models, decode_state: str) -> None:
    engine = _engine(models, decode_state=decode_state, max_num_batched_tokens=20)
    requests = [Request(random_prompt(50), endless(8), preempt_at=(1, 2)), Request(random_prompt(50), endless(8))]
    for request, result in zip(requests, serve(engine, requests), strict=True):
        models.compare(request, result)


def test_a_prefix_without_draft_entries(models: Models, decode_state: str) -> None:
    """Written with drafts off: the target's part is served, and drafting begins behind it. It must not read what some
    other request left in the draft's half of these pages, so acceptance does not depend on that."""
    prompt = random_prompt(48)
    params = endless(40, temperature=1.0)
    plain = Request(prompt, {**params, "num_speculative_tokens": 0})
    drafted = [Request(prompt, {**params, "seed": seed}) for seed in range(4)]
    others = [Request(random_prompt(60, seed), endless(30)) for seed in (11, 12, 13)]
    outcomes = []
    for before in ([], others):
        engine = models.engine(1, decode_state=decode_state, page_size=16, num_threads=1 + len(before) // 3, **DRAWN)
        serve(engine, before)
        results = _in_turn(engine, [plain, *drafted])
        assert [r.num_cached_tokens for r in results] == [0] + [32] * 4
        assert all(r.num_drafts > 0 for r in results[1:])
        models.compare(plain, results[0])
        outcomes.append([(r.outcome, r.runs) for r in results])
    assert outcomes[0] == outcomes[1]


def test_old_pages_make_room(models: Models, decode_state: str) -> None:
    """More prompts than the pool holds, some again and again: the newest are served, and nobody is preempted."""
    engine = models.engine(2, decode_state=decode_state, page_size=16, max_num_batched_tokens=64)
    results = []
    for round_ in range(12):
        for seed in (0, 100 + round_):
            request = Request(random_prompt(40, seed), endless(10))
            results += _in_turn(engine, [request])
            models.compare(request, results[-1])
    assert [r.num_cached_tokens for r in results] == [0, 0] + [32, 0] * 11
    stats = engine.stats
    assert stats["num_preemptions"] == 0 and stats["num_cached_pages"] > 8


def test_nothing_is_kept_without_it(models: Models) -> None:
    engine = _engine(models, enable_prefix_caching=False)
    _in_turn(engine, [Request(random_prompt(40), endless(10))] * 2)
    assert engine.stats["num_cached_pages"] == engine.stats["prefix_cache_queries"] == 0


def test_another_draft_in_a_running_engine(models: Models, decode_state: str) -> None:
    engine = _engine(models, decode_state=decode_state, max_num_batched_tokens=16)
    requests = [Request(random_prompt(33, seed), endless(40)) for seed in range(3)]
    expected = [r.token_ids for r in serve(engine, requests)]
    ids: list[list[int]] = [[], [], []]
    for index, request in enumerate(requests):
        engine.add_request(index, request.prompt, sampling(**request.params))
    drafts = 0
    for step in range(200):
        if step in (2, 5, 9):
            engine.swap_draft(str(models.pair[1]))
        for output in engine.step():
            ids[output.request_id] += output.new_token_ids
            drafts = max(drafts, output.metrics.num_drafts)
        engine.check()
        if not engine.has_unfinished_requests():
            break
    assert ids == expected and drafts > 5


def test_a_draft_that_is_refused_changes_nothing(models: Models, decode_state: str, tmp_path: Path) -> None:
    engine = _engine(models, decode_state=decode_state)
    request = Request(random_prompt(20), endless(30))
    expected = serve(engine, [request])[0]
    engine.add_request(0, request.prompt, sampling(**request.params))
    engine.step()
    with pytest.raises(CheckpointError):
        engine.swap_draft(str(tmp_path))
    engine.check()
    runs = [len(output.new_token_ids) for _ in range(len(expected.runs) - 1) for output in engine.step()]
    assert runs == expected.runs[1:]  # still drafted for by the old one
    with pytest.raises(InvalidArgumentError, match="without a draft"):
        models.plain.swap_draft(str(models.pair[1]))


def test_overrides_of_the_first_draft_do_not_change_another(models: Models, decode_state: str, tmp_path: Path) -> None:
    target = write_successor_target(tmp_path / "target")
    other = write_draft(tmp_path / "draft", target, DraftSpec(num_captured=2, capture_layers=(1, 4), num_kv_heads=2))
    engine = make_engine(
        str(target.directory),
        str(other.directory),
        **{**models.common, "num_speculative_tokens": 2, "decode_state": decode_state, "capture_layers": [2, 4]},
    )
    with pytest.raises(InvalidArgumentError, match="contradict the config of this one"):
        engine.swap_draft(str(other.directory))
    assert engine.info["capture_layers"] == [2, 4]


def test_a_draft_of_other_layers(models: Models, decode_state: str, tmp_path: Path) -> None:
    """A random draft that captures two layers instead of three: next to nothing of it is accepted, and the ids
    stay. Then the old one again."""
    target = write_successor_target(tmp_path / "target")
    other = write_draft(tmp_path / "draft", target, DraftSpec(num_captured=2, capture_layers=(1, 4), num_kv_heads=2))
    engine = _engine(models, decode_state=decode_state)
    request = Request(random_prompt(20), endless(40))
    expected = serve(engine, [request])[0]
    ids: list[int] = []
    engine.add_request(0, request.prompt, sampling(**request.params))
    for step in range(100):
        if step in (3, 8):
            engine.swap_draft(str(other.directory if step == 3 else models.pair[1]))
        for output in engine.step():
            ids += output.new_token_ids
            metrics = output.metrics
        engine.check()
        if step == 7:
            assert engine.info["capture_layers"] == [1, 4]
    assert ids == expected.token_ids
    assert 0 < metrics.num_accepted_tokens < expected.num_accepted_tokens
    again = serve(engine, [request])[0]
    models.compare(request, again)
