"""Structured output under speculation: masks along the drafts, state that follows what was emitted, and faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.constraints import Choice, RandomSubsets, ToyConstraint
from support.engine import Request, Result, endless, make_engine, plain_outcome, random_prompt, sampling, serve
from support.successor import EOS, successors
from support.traffic import MAX_DRAFTS, Models

NEXT = [int(token) for token in successors(96)]


@pytest.fixture(scope="module", params=["host", "device"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("constraint"), "float32", decode_state=request.param)


def chain(first: int, length: int) -> list[int]:
    """What the pair likes to say after `first`."""
    ids = [NEXT[first]]
    while len(ids) < length:
        ids.append(NEXT[ids[-1]])
    return ids


def run(models: Models, params: dict[str, Any], num_drafts: int = 5, prompt: int = 40) -> Result:
    """Between two neighbours, whose ids must be their own; the result is that of plain decoding."""
    engine = models.engine(sequences=4, page_size=16, num_speculative_tokens=num_drafts)
    neighbours = [Request(random_prompt(4, seed), endless(25, temperature=0.5, seed=seed)) for seed in range(2)]
    request = Request([prompt], {"max_tokens": 25, **params})
    first, result, last = serve(engine, [neighbours[0], request, neighbours[1]])
    for neighbour, other in zip(neighbours, (first, last), strict=True):
        assert other.outcome == plain_outcome(models.plain, neighbour).outcome
    expected = plain_outcome(models.plain, request)
    assert (result.outcome, result.error) == (expected.outcome, expected.error)
    return result


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 6, 7])
def test_the_end_of_the_grammar_ends_the_request(models: Models, num_drafts: int, length: int) -> None:
    """vllm#44006, sglang PR#21723: drafts ran past the end of the grammar."""
    text = chain(40, length)
    result = run(models, {"constraint": lambda: Choice([text]), "ignore_eos": True}, num_drafts)
    assert (result.token_ids, result.finish_reason, result.stop_token_id) == (text, "stop", -1)
    if min(num_drafts, length - 1) > 1:
        assert result.num_accepted_tokens > 0


def test_yes_or_no(models: Models) -> None:
    """Drafts: what the pair would say, of which the grammar allows nothing."""
    yes, no = [70], [71, 72]
    assert not {70, 71} & set(chain(40, 6))
    result = run(models, {"constraint": lambda: Choice([yes, no])})
    assert result.token_ids in (yes, no) and result.finish_reason == "stop"


def test_end_of_sequence_where_the_grammar_may_end(models: Models) -> None:
    """It ends the request as it always does, and the constraint is not shown it."""
    text = chain(40, 3)
    result = run(models, {"constraint": lambda: Choice([text, [*text, 9, 9, 9]]), "logit_bias": {EOS: 50.0, 9: -50.0}})
    assert (result.token_ids, result.finish_reason, result.stop_token_id) == ([*text, EOS], "stop", EOS)


def test_length_and_end_at_the_same_token(models: Models) -> None:
    text = chain(40, 4)
    assert run(models, {"constraint": lambda: Choice([text]), "max_tokens": 4}).finish_reason == "stop"
    assert run(models, {"constraint": lambda: Choice([text]), "max_tokens": 3}).finish_reason == "length"


def test_its_state_is_what_was_emitted_after_every_step(models: Models) -> None:
    engine = models.engine(sequences=4, page_size=16)
    constraint = RandomSubsets(3)
    engine.add_request(0, [40], sampling(**endless(40), constraint=lambda: constraint))
    emitted: list[int] = []
    accepted = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            emitted += output.new_token_ids
            accepted = output.metrics.num_accepted_tokens
            assert constraint.accepted == emitted
    assert len(emitted) == 40 and accepted > 5


class Faulty(RandomSubsets):
    """Fails in one method, once so many ids were accepted."""

    def __init__(self, method: str, count: int) -> None:
        super().__init__(seed=4)
        self.method, self.count = method, count

    def _fail(self, method: str) -> None:
        if self.method == method and len(self.accepted) >= self.count:
            raise ValueError(f"{method} is out of order")

    def fill_mask(self, mask: np.ndarray) -> None:
        self._fail("fill_mask")
        super().fill_mask(mask)

    def accept(self, token_id: int) -> bool:
        self._fail("accept")
        return super().accept(token_id)

    def is_finished(self) -> bool:
        self._fail("is_finished")
        return False

    def roll_back(self, num_tokens: int) -> None:
        self._fail("roll_back")
        super().roll_back(num_tokens)


@pytest.mark.parametrize("count", [0, 1, 4, 9])
@pytest.mark.parametrize("method", ["fill_mask", "accept", "is_finished"])
def test_an_exception_ends_that_request_only(models: Models, method: str, count: int) -> None:
    """At the same token as plain decoding would meet it, drafts or not."""
    result = run(models, {"constraint": lambda: Faulty(method, count), "ignore_eos": True})
    assert result.finish_reason == "error"
    assert f"{method} is out of order" in result.error and "constraint" in result.error
    assert len(result.token_ids) == {"fill_mask": count, "accept": count + 1, "is_finished": max(count, 1)}[method]


def test_a_roll_back_that_fails_ends_that_request_only(models: Models) -> None:
    """Plain decoding never rolls back, so only the ids before can be compared."""
    engine = models.engine(sequences=4, page_size=16)
    requests = [Request([40], endless(20, constraint=lambda: Faulty("roll_back", 3))), Request([41], endless(20))]
    bad, good = serve(engine, requests)
    assert bad.finish_reason == "error" and "roll_back is out of order" in bad.error
    assert bad.token_ids == plain_outcome(models.plain, requests[0]).token_ids[: len(bad.token_ids)]
    assert good.outcome == plain_outcome(models.plain, requests[1]).outcome


class Contradiction(RandomSubsets):
    def accept(self, token_id: int) -> bool:
        return len(self.accepted) < 6 and super().accept(token_id)


class DeadEnd(RandomSubsets):
    def allowed(self) -> list[int]:
        return super().allowed() if len(self.accepted) < 5 else []


@pytest.mark.parametrize(
    ("make", "num_tokens", "message"),
    [
        (lambda: Contradiction(2), 7, "which its mask allows"),
        (lambda: DeadEnd(2), 5, "ban every id"),
        (lambda: Choice([]), 0, "ban every id"),
    ],
)
def test_a_constraint_that_cannot_go_on(
    models: Models, make: Callable[[], ToyConstraint], num_tokens: int, message: str
) -> None:
    result = run(models, {"constraint": make, "ignore_eos": True})
    assert (len(result.token_ids), result.finish_reason) == (num_tokens, "error")
    assert message in result.error


def test_what_is_left_of_the_grammar_may_be_banned(models: Models) -> None:
    """min_tokens holds back the only id that the grammar leaves."""
    text = chain(40, 3)
    params = {"constraint": lambda: Choice([text, [*text, 9]]), "allowed_token_ids": [*text, EOS], "min_tokens": 8}
    result = run(models, params)
    assert (result.token_ids, result.finish_reason) == (text, "error")
    assert "ban every id" in result.error


@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_processor_that_fails_ends_that_request_only(models: Models, count: int) -> None:
    def process(prompt: list[int], output: list[int], logits: np.ndarray) -> None:
        if len(output) >= count:
            raise KeyError("no such rule")

    result = run(models, {"logits_processors": [lambda *_: None, process], "ignore_eos": True})
    assert (len(result.token_ids), result.finish_reason) == (count, "error")
    assert "logits_processors[1]" in result.error and "no such rule" in result.error


@pytest.mark.parametrize("count", [0, 1, 5])
@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_processor_that_leaves_no_id(models: Models, value: float, count: int) -> None:
    """What was accepted before that row comes out first, as in plain decoding."""

    def process(prompt: list[int], output: list[int], logits: np.ndarray) -> None:
        if len(output) >= count:
            logits[:] = value

    result = run(models, {"logits_processors": [process], "ignore_eos": True})
    assert (len(result.token_ids), result.finish_reason) == (count, "error")
    assert "leave no id" in result.error


def test_a_processor_may_force_an_id(models: Models) -> None:
    """By +inf, at any temperature; a ban is stronger."""

    def process(prompt: list[int], output: list[int], logits: np.ndarray) -> None:
        logits[50 + len(output) % 2] = np.inf

    params = {"logits_processors": [process], "temperature": 1.0, "max_tokens": 6, "bad_words": [[51, 50]]}
    result = run(models, params)
    assert result.token_ids[:2] == [50, 51] and result.token_ids[2] != 50


@pytest.mark.parametrize("num_pages", [30, 45])
def test_preempted_in_the_middle_of_a_round(models: Models, num_pages: int) -> None:
    """vllm PR#31944: drafts and grammar state from before a preemption met those after it."""
    info = models.engine(sequences=4, page_size=1).info
    pool = num_pages * int(info["kv_cache_bytes"]) // int(info["num_pages"])
    config = {**models.common, "page_size": 1, "num_speculative_tokens": 4, "kv_cache_memory_bytes": pool}
    engine = make_engine(*models.pair, **config, **models.changes)
    requests = [
        Request([40 + seed], endless(25, seed=seed, temperature=0.6, constraint=partial(RandomSubsets, seed)))
        for seed in range(3)
    ]
    results = serve(engine, [replace(request, preempt_at=(3, 7)) for request in requests])
    for request, result in zip(requests, results, strict=True):
        assert result.outcome == plain_outcome(models.plain, request).outcome
    assert engine.stats["num_preemptions"] > 3


def test_longest_drafts(models: Models) -> None:
    """Every draft stands, and every one is advanced over and rolled back."""
    text = chain(40, 20)
    result = run(models, {"constraint": lambda: Choice([[*text, 5]])}, MAX_DRAFTS)
    assert result.token_ids == [*text, 5]
