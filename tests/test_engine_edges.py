"""Edge inputs of speculation in a batch: lengths, budgets, ends, cancels, pages and draft lengths.

Everything is compared with plain decoding of the request alone; serve() checks the engine's invariants after each step
and that every KV page comes back.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import (
    Request,
    Result,
    endless,
    make_engine,
    plain_outcome,
    random_prompt,
    sampling,
    serve,
)
from support.oracle import Target
from support.oracle_draft import Draft, speculate
from support.successor import EOS, TARGET, write_successor_draft, write_successor_target

from eagle31rt.errors import InvalidArgumentError

MAX_MODEL_LEN = 64
K = 5


class Pair:
    """The models, a plain engine as the oracle, and speculating engines as asked for."""

    def __init__(self, directory: Path, eos: int = EOS) -> None:
        target = write_successor_target(directory / "target", replace(TARGET, eos_token_id=eos))
        draft = write_successor_draft(directory / "draft", target)
        self.paths = (target.directory, draft.directory)
        self.draft_ids = set((np.arange(len(draft.weights["d2t"])) + draft.weights["d2t"]).tolist())
        self.plain = make_engine(target.directory, max_model_len=MAX_MODEL_LEN)

    def engine(self, **changes: Any) -> Any:
        return make_engine(*self.paths, **{"max_model_len": MAX_MODEL_LEN, "num_speculative_tokens": K, **changes})

    def expected(self, request: Request) -> Result:
        params = {k: v for k, v in request.params.items() if k != "num_speculative_tokens"}
        return plain_outcome(self.plain, Request(request.prompt, params))

    def check(self, requests: list[Request], **changes: Any) -> list[Result]:
        results = serve(self.engine(**changes), requests)
        for request, result in zip(requests, results, strict=True):
            assert result.outcome == self.expected(request).outcome, request
        return results


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


# ---- prompts ----


@pytest.mark.parametrize("prompt", [[], [96], [-1], [5, 2**31 - 1]])
def test_a_bad_prompt_is_refused_and_harms_nobody(pair: Pair, prompt: list[int]) -> None:
    engine = pair.engine()
    neighbour = Request(random_prompt(9), endless(20))
    engine.add_request(0, neighbour.prompt, sampling(**neighbour.params))
    tokens = [t for output in engine.step() for t in output.new_token_ids]
    with pytest.raises(InvalidArgumentError, match="empty" if not prompt else "vocabulary of 96"):
        engine.add_request(1, prompt, sampling())
    while engine.has_unfinished_requests():
        tokens += [t for output in engine.step() for t in output.new_token_ids]
        engine.check()
    assert tokens == pair.expected(neighbour).token_ids


def test_prompt_of_one_token(pair: Pair) -> None:
    results = pair.check([Request([token], endless(30)) for token in (0, 1, 2, 95)])
    assert sum(result.num_accepted_tokens for result in results) > 0


@pytest.mark.parametrize("length", [MAX_MODEL_LEN, MAX_MODEL_LEN + 1])
def test_prompt_that_leaves_no_room_is_refused(pair: Pair, length: int) -> None:
    engine = pair.engine()
    with pytest.raises(InvalidArgumentError, match=f"at most {MAX_MODEL_LEN - 1}"):
        engine.add_request(0, random_prompt(length), sampling())
    assert not engine.has_unfinished_requests() and engine.step() == []


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("room", [1, 2, 3, K, K + 1, K + 2])
def test_prompts_up_to_the_length_limit(pair: Pair, room: int, page_size: int) -> None:
    """Drafts would cross max_model_len: the request ends there, with "length" and every token that fits."""
    request = Request(random_prompt(MAX_MODEL_LEN - room), endless(40))
    result = pair.check([request], page_size=page_size)[0]
    assert (len(result.token_ids), result.finish_reason) == (room, "length")


def test_draft_limit_shorter_than_the_targets(pair: Pair, tmp_path: Path) -> None:
    """A head trained for 16 positions is used past them: no table to read out of range."""
    target = write_successor_target(tmp_path / "target")
    text = (pair.paths[1] / "config.json").read_text()
    (tmp_path / "draft").mkdir()
    assert '"max_position_embeddings": 512' in text
    (tmp_path / "draft/config.json").write_text(text.replace('embeddings": 512', 'embeddings": 16'))
    (tmp_path / "draft/model.safetensors").write_bytes((pair.paths[1] / "model.safetensors").read_bytes())
    engine = make_engine(target.directory, tmp_path / "draft", max_model_len=MAX_MODEL_LEN, num_speculative_tokens=K)
    request = Request(random_prompt(15), endless(40))
    result = serve(engine, [request])[0]
    assert result == pair.check([request])[0]


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("budget", [1, 15, 16, 17, 512])
def test_page_and_chunk_edges(pair: Pair, page_size: int, budget: int) -> None:
    """Prompts that end on an edge, one before and one after; chunk sizes of the same kind."""
    requests = [Request(random_prompt(length, length), endless(18)) for length in (14, 15, 16, 17, 31, 32, 33)]
    results = pair.check(requests, page_size=page_size, max_num_batched_tokens=budget)
    accepted_at_once = {run - 1 for result in results for run in result.runs}
    assert {0, 1, K} <= accepted_at_once


def test_short_and_long_together(pair: Pair) -> None:
    requests = [Request(random_prompt(n, n), endless(40)) for n in (1, MAX_MODEL_LEN - 1, 2, MAX_MODEL_LEN - 2, 1, 40)]
    pair.check(requests)


def test_pad_id_inside_the_prompt(pair: Pair) -> None:
    """No id is special inside a prompt: not 0, not EOS."""
    pair.check([Request([0, 0, EOS, 5, EOS, 0], endless(20)), Request([EOS], endless(20)), Request([0], {})])


# ---- budgets ----


def test_max_tokens_of_zero_is_refused(pair: Pair) -> None:
    with pytest.raises(InvalidArgumentError, match="max_tokens is 0"):
        pair.engine().add_request(0, random_prompt(5), sampling(max_tokens=0))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_budget_around_a_run(pair: Pair, temperature: float) -> None:
    requests = [Request(random_prompt(7), endless(n, temperature=temperature)) for n in range(1, 2 * K + 4)]
    for n, result in enumerate(pair.check(requests), start=1):
        assert (len(result.token_ids), result.finish_reason) == (n, "length")
        if n <= 2:  # from the prompt, and from a row that leaves no room for a draft
            assert result.num_drafts == result.num_draft_tokens == 0


def test_all_finish_in_the_same_step(pair: Pair) -> None:
    requests = [Request(random_prompt(5, seed), endless(6, num_speculative_tokens=0)) for seed in range(8)]
    engine = pair.engine()
    for index, request in enumerate(requests):
        engine.add_request(index, request.prompt, sampling(**request.params))
    last: list[Any] = []
    while engine.has_unfinished_requests():
        last = engine.step()
        engine.check()
    assert [output.finish_reason for output in last] == ["length"] * 8
    assert engine.step() == [] and engine.info["num_free_pages"] == engine.info["num_pages"]


# ---- ends ----


def test_end_id_as_the_very_first_token(pair: Pair) -> None:
    request = Request(random_prompt(6), {"max_tokens": 20})
    first = pair.expected(request).token_ids[0]
    result = pair.check([replace(request, params={**request.params, "stop_token_ids": [first]})])[0]
    assert result.outcome == ([first], "stop", first) and result.num_drafts == 0


@pytest.mark.parametrize("place", ["accepted", "bonus"])
def test_end_id_inside_a_run(pair: Pair, tmp_path: Path, place: str) -> None:
    """As EOS of the model and as a stop id: emitted, counted, and nothing after it; with ignore_eos it is a token."""
    request = Request(random_prompt(9), endless(40))
    free = pair.check([request])[0]
    ends = np.cumsum(free.runs)
    bonus = set((ends - 1).tolist())
    first_of = [i for i in range(1, 40) if free.token_ids[i] not in free.token_ids[:i]]
    longest = [i for i in first_of if (i in bonus) == (place == "bonus") and _run_of(free, i) >= 3]
    index = longest[0]
    end = free.token_ids[index]

    stopped = pair.check([Request(request.prompt, {"max_tokens": 40, "ignore_eos": True, "stop_token_ids": [end]})])[0]
    assert stopped.outcome == (free.token_ids[: index + 1], "stop", end)
    other = Pair(tmp_path, eos=end)
    by_eos = other.check([Request(request.prompt, {"max_tokens": 40})])[0]
    assert by_eos == stopped
    assert other.check([request])[0] == free
    # Accepted tokens are those that were emitted: all of the run up to the end, the bonus excepted.
    rounds_before = [run - 1 for run in free.runs[1:] if run][: int(np.searchsorted(ends, index, side="right")) - 1]
    in_last = index - int(ends[len(rounds_before)]) + (place == "accepted")
    assert stopped.num_accepted_tokens == sum(rounds_before) + in_last
    assert stopped.num_drafts == len(rounds_before) + 1


def _run_of(result: Result, index: int) -> int:
    """Length of the run that emitted output `index`."""
    return result.runs[int(np.searchsorted(np.cumsum(result.runs), index, side="right"))]


def test_end_id_proposed_and_refused(pair: Pair, tmp_path: Path) -> None:
    prompt = random_prompt(9)
    target = Target(pair.paths[0])
    trace = speculate(target, Draft(pair.paths[1], target), prompt, 40, K)
    end = next(token for token in trace.refused if token not in trace.token_ids)
    result = Pair(tmp_path, eos=end).check([Request(prompt, {"max_tokens": 40})])[0]
    assert result.token_ids == trace.token_ids and result.finish_reason == "length"


def test_ids_that_the_draft_cannot_name(pair: Pair) -> None:
    """They end a run, and change nothing else."""
    results = pair.check([Request(random_prompt(4, seed), endless(50)) for seed in range(8)])
    unnamed = 0
    for result in results:
        starts = np.cumsum([0, *result.runs])
        for start, run in zip(starts, result.runs, strict=False):
            assert set(result.token_ids[start : start + run - 1]) <= pair.draft_ids
        unnamed += sum(token not in pair.draft_ids for token in result.token_ids)
    assert unnamed > 5


# ---- cancel ----


@pytest.mark.parametrize("cancel_at", range(9))
def test_cancel_at_each_stage(pair: Pair, cancel_at: int) -> None:
    """Waiting, in the middle of the prompt, after it, between rounds: neighbours go on, pages come back."""
    neighbour = Request(random_prompt(20, 4), endless(30))
    doomed = Request(random_prompt(30, 5), endless(30), cancel_at=cancel_at)
    results = serve(pair.engine(max_num_batched_tokens=12), [neighbour, doomed, neighbour])
    for result in (results[0], results[2]):
        assert result.outcome == pair.expected(neighbour).outcome
    assert results[1].token_ids == pair.expected(doomed).token_ids[: len(results[1].token_ids)]
    assert results[1].finish_reason == ""


def test_cancel_of_what_is_not_there(pair: Pair) -> None:
    engine = pair.engine()
    assert not engine.cancel(0)
    engine.add_request(0, random_prompt(4), sampling(max_tokens=1))
    engine.step()
    assert not engine.cancel(0)
    engine.add_request(0, random_prompt(4), sampling(max_tokens=9))  # the id is free again
    with pytest.raises(InvalidArgumentError, match="in use"):
        engine.add_request(0, random_prompt(4), sampling())
    assert engine.cancel(0) and not engine.cancel(0)
    assert not engine.has_unfinished_requests() and engine.step() == []
    engine.check()


# ---- pages ----


def _pool(pair: Pair, num_pages: int, page_size: int) -> dict[str, Any]:
    info = pair.engine(page_size=page_size).info
    return {"page_size": page_size, "kv_cache_memory_bytes": num_pages * info["kv_cache_bytes"] // info["num_pages"]}


@pytest.mark.parametrize("page_size", [1, 16])
def test_pool_of_exactly_one_request(pair: Pair, page_size: int) -> None:
    """33 tokens in all: the last one is never fed, so 32 entries; a second request waits for the first."""
    requests = [Request(random_prompt(13, seed), endless(20)) for seed in range(3)]
    pair.check(requests, **_pool(pair, 32 // page_size, page_size))


@pytest.mark.parametrize("page_size", [1, 16])
def test_pool_of_one_page_less(pair: Pair, page_size: int) -> None:
    engine = pair.engine(**_pool(pair, 32 // page_size - 1, page_size))
    with pytest.raises(InvalidArgumentError, match="kv_cache_memory_bytes"):
        engine.add_request(0, random_prompt(13), sampling(**endless(20)))
    fits = Request(random_prompt(5), endless(8))
    assert serve(engine, [fits])[0].outcome == pair.expected(fits).outcome


# ---- draft lengths ----


def test_draft_length_of_each_request(pair: Pair) -> None:
    """From 0 to the engine's K in one batch; a request that never drafts has no draft counters."""
    requests = [Request(random_prompt(8), endless(40, num_speculative_tokens=n)) for n in (-1, 0, 1, 2, 3, 4, 5)]
    results = pair.check(requests)
    assert len({tuple(result.token_ids) for result in results}) == 1
    assert results[1].num_drafts == 0 and results[1].num_accepted_tokens_per_position == []
    assert results[0] == results[6]
    drafted = [result.num_draft_tokens / result.num_drafts for result in results[2:]]
    assert drafted == sorted(drafted) and drafted[0] == 1


@pytest.mark.parametrize("wanted", [K + 1, 17, -2])
def test_draft_length_out_of_range_is_refused(pair: Pair, wanted: int) -> None:
    with pytest.raises(InvalidArgumentError, match="num_speculative_tokens"):
        pair.engine().add_request(0, random_prompt(5), sampling(num_speculative_tokens=wanted))


def test_speculation_off_is_the_plain_path(pair: Pair) -> None:
    requests = [Request(random_prompt(6, seed), endless(30, temperature=0.7, seed=seed)) for seed in range(5)]
    for result in pair.check(requests, num_speculative_tokens=0):
        assert result.runs == [1] * 30 and result.num_drafts == 0
