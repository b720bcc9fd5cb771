"""Draft trees: whatever tree is drafted, the ids are those of plain decoding; and what the trees are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.engine import (
    Request,
    Result,
    endless,
    make_engine,
    plain_outcome,
    random_prompt,
    run_decoder,
    sampling,
    serve,
)
from support.oracle import Target
from support.oracle_draft import Draft
from support.oracle_tree import speculate_with_trees
from support.processors import CASES
from support.successor import DRAFT, write_successor_draft, write_successor_target
from support.traffic import DETERMINISTIC, Models, Traffic, plain, traffic
from test_deepseek import SPECS

Params = dict[str, Any]
MAX_NODES = 64
# 64 places, 8 deep: an uneven tree, whose places stand in no order.
STATIC = sorted(
    [(0,) * n for n in range(1, 9)]
    + [(a, b) for a in range(1, 6) for b in range(3)]
    + [(a,) for a in range(1, 8)]
    + [(0, b, c) for b in range(1, 5) for c in range(3)]
    + [(0, b) for b in range(1, 5)]
    + [(0, 0, 1, d, e) for d in range(3) for e in range(4)]
    + [(0, 0, 1, d) for d in range(3)]
    + [(0, 0, c) for c in (1, 2, 5)],
    key=lambda path: path[::-1],
)
SHAPES: dict[str, Params] = {
    "dynamic": {"num_speculative_tokens": 64, "tree_top_k": 4, "tree_depth": 8},
    "wide": {"num_speculative_tokens": 64, "tree_top_k": 10, "tree_depth": 8},
    "narrow": {"num_speculative_tokens": 9, "tree_top_k": 2},
    "static": {"num_speculative_tokens": 64, "speculative_token_tree": STATIC},
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def traffic_models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("traffic"), request.param)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("trees"), "float32")


@pytest.mark.parametrize("shape", SHAPES)
@settings(DETERMINISTIC, max_examples=25)
@given(traffic=traffic(max_drafts=MAX_NODES))
def test_ids_are_those_of_plain_decoding(traffic_models: Models, shape: str, traffic: Traffic) -> None:
    """Batches of up to 16 with trees, chains and no drafts; preempted, cancelled, in chunks, with prefix hits."""
    requests, stops, engine = traffic
    limit = SHAPES[shape]["num_speculative_tokens"]
    traffic_models.serve(([bounded(request, limit) for request in requests], stops, engine), **SHAPES[shape])


def bounded(request: Request, limit: int) -> Request:
    wanted = min(request.params["num_speculative_tokens"], limit)
    return replace(request, params={**request.params, "num_speculative_tokens": wanted})


def test_the_traffic_accepted_and_refused(traffic_models: Models) -> None:
    """Runs after the test above: equality proves nothing if no draft was ever accepted."""
    if traffic_models.drafted == 0:
        pytest.skip("the traffic test did not run")
    assert traffic_models.drafted > 8_000
    assert 400 < traffic_models.accepted < 0.5 * traffic_models.drafted


def batch(count: int, **params: Any) -> list[Request]:
    return [
        Request(random_prompt(3 * seed + 1, seed), endless(50, seed=seed, temperature=0.8 * (seed % 2), **params))
        for seed in range(count)
    ]


def accepted(results: list[Result]) -> int:
    return sum(result.num_accepted_tokens for result in results)


def test_a_chain_given_as_a_tree_is_the_chain(models: Models) -> None:
    """The same drafts, rounds and metrics, at any budget."""
    chain = models.engine(16, page_size=16, num_speculative_tokens=7)
    places = [(0,) * n for n in range(1, 8)]
    tree = models.engine(16, page_size=16, num_speculative_tokens=7, speculative_token_tree=places)
    for budget in (1, 2, 5, 7):
        requests = batch(7, num_speculative_tokens=budget)
        results = serve(chain, requests)
        assert serve(tree, requests) == results
        assert accepted(results) > 0


@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
def test_a_chain_given_as_a_tree_is_the_chain_by_ratio_as_well(models: Models, drafting: str) -> None:
    """The same draws, coins and residuals."""
    options = {"rejection_sample_method": "standard", "draft_sample_method": drafting, "num_speculative_tokens": 7}
    places = [(0,) * n for n in range(1, 8)]
    tree = models.engine(16, page_size=16, **options, speculative_token_tree=places)
    results = serve(models.engine(16, page_size=16, **options), batch(8))
    assert serve(tree, batch(8)) == results
    assert 0 < accepted(results) < sum(result.num_draft_tokens for result in results)


def test_drawn_trees_keep_the_law(models: Models) -> None:
    """Second tokens behind the most frequent first one against the target's own law: chi square over 1200 seeds."""
    prompt, places = random_prompt(6), [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    options = {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"}
    engine = models.engine(16, page_size=16, num_speculative_tokens=7, speculative_token_tree=places, **options)
    requests = [Request(prompt, endless(5, temperature=1.0, seed=seed)) for seed in range(1200)]
    results = serve(engine, requests)
    assert accepted(results) > 500
    firsts = np.bincount([result.token_ids[0] for result in results], minlength=96)
    first = int(firsts.argmax())
    counts = np.bincount([r.token_ids[1] for r in results if r.token_ids[0] == first], minlength=96)
    logits, _ = run_decoder(models.pair[0], [*prompt, first], dtype=models.common["dtype"])
    law = np.exp(logits[-1].astype(np.float64) - logits[-1].max())
    expected = law / law.sum() * counts.sum()
    common = expected >= 8
    observed = np.append(counts[common], counts[~common].sum())
    expected = np.append(expected[common], expected[~common].sum())
    freedom = len(observed) - 1
    assert freedom > 5
    assert ((observed - expected) ** 2 / expected).sum() < freedom + 4 * np.sqrt(2 * freedom)


def test_one_draft_is_the_most_probable_one(models: Models) -> None:
    requests = batch(5, num_speculative_tokens=1)
    one = serve(models.engine(16, page_size=16, num_speculative_tokens=1), requests)
    for shape in SHAPES.values():
        trees = serve(models.engine(16, page_size=16, **shape), requests)
        assert [result.runs for result in trees] == [result.runs for result in one]
        assert accepted(trees) == accepted(one)


@pytest.mark.parametrize("shape", SHAPES)
def test_more_nodes_accept_more(models: Models, shape: str) -> None:
    """A tree of m nodes is the beginning of a larger one, so a round of it never accepts more."""
    engine = models.engine(16, page_size=16, **SHAPES[shape])
    limit = SHAPES[shape]["num_speculative_tokens"]
    rounds = []
    for budget in (1, 3, 9, limit):
        results = serve(engine, batch(9, num_speculative_tokens=budget))
        for request, result in zip(batch(9), results, strict=True):
            models.compare(request, result)
        rounds.append(sum(result.num_drafts for result in results))
    assert rounds == sorted(rounds, reverse=True) and rounds[0] > rounds[-1]


def test_a_tree_accepts_more_than_a_chain_of_its_budget(models: Models) -> None:
    chain = serve(models.engine(16, page_size=16, num_speculative_tokens=16), batch(16))
    tree = serve(models.engine(16, page_size=16, num_speculative_tokens=16, tree_top_k=4), batch(16))
    assert sum(result.num_drafts for result in tree) < sum(result.num_drafts for result in chain)


@pytest.mark.parametrize(("budget", "top_k", "depth"), [(12, 4, 4), (30, 3, 6), (7, 7, 1)])
def test_rounds_are_those_of_the_oracle(models: Models, budget: int, top_k: int, depth: int) -> None:
    """Which nodes are drafted, from which states, positions and ancestors: all of it shows in what is accepted."""
    target = Target(models.pair[0])
    draft = Draft(models.pair[1], target)
    settings_ = {"num_speculative_tokens": budget, "tree_top_k": top_k, "tree_depth": depth}
    engine = models.engine(16, page_size=16, **settings_)
    requests = [Request(random_prompt(9 + seed, seed), endless(30)) for seed in range(4)]
    for request, result in zip(requests, serve(engine, requests), strict=True):
        ids, runs = speculate_with_trees(target, draft, request.prompt, 30, budget, top_k, depth)
        assert (result.token_ids, result.runs) == (ids, runs)


def test_counters_are_by_depth(models: Models) -> None:
    result = serve(models.engine(16, page_size=16, **SHAPES["wide"]), batch(1))[0]
    assert len(result.num_accepted_tokens_per_position) == 8
    assert result.num_draft_tokens > 50 * result.num_drafts // 2
    reached = [sum(run > depth + 1 for run in result.runs[1:]) for depth in range(8)]
    assert result.num_accepted_tokens_per_position == reached
    assert reached[0] > 0


@pytest.mark.parametrize("shape", ["dynamic", "static"])
@pytest.mark.parametrize("name", CASES)
def test_parameters_see_the_path_of_their_row(models: Models, shape: str, name: str) -> None:
    """Beside requests without them, in one batch; also log-probabilities."""
    samplers: list[Params] = [{}, {"temperature": 0.9, "seed": 4}, {"temperature": 1.2, "top_k": 7, "seed": 5}]
    without = [Request(random_prompt(3 + seed, seed), endless(30, **samplers[seed])) for seed in range(3)]
    more = {"num_logprobs": 2, "num_prompt_logprobs": 1, **CASES[name]}
    requests = [replace(request, params={**request.params, **more}) for request in without]
    mixed = [request for pair in zip(without, requests, strict=True) for request in pair]
    results = serve(models.engine(8, page_size=16, **SHAPES[shape]), mixed)
    for request, result in zip(mixed, results, strict=True):
        expected = plain_outcome(models.plain, plain(request))
        assert result.outcome == expected.outcome and result.error == expected.error
        assert result.logprobs == expected.logprobs and result.prompt_logprobs == expected.prompt_logprobs
    assert accepted(results[1::2]) > 0


WINDOW = {"sliding_window": 9}
TARGETS: dict[str, TargetSpec] = {
    "latent attention": SPECS["experts"],
    "window": TargetSpec(model_type="mistral", config=WINDOW),
    "windows of some layers": TargetSpec(
        model_type="qwen2",
        config={"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2},
    ),
}


@pytest.mark.parametrize("shape", ["wide", "static"])
@pytest.mark.parametrize("target", TARGETS)
def test_targets_of_other_kinds(tmp_path: Path, target: str, shape: str) -> None:
    """Cold, preempted, and with prompts that the prefix cache knows."""
    checkpoint = write_target(tmp_path / "target", replace(TARGETS[target], unigram_strength=3.0), seed=1)
    draft = write_draft(tmp_path / "draft", checkpoint, DraftSpec(num_kv_heads=2), seed=2)
    common = {"dtype": "float32", "page_size": 4}
    requests = [
        Request(random_prompt(20, 9) + random_prompt(5 + 9 * i, i), endless(24, temperature=0.8 * (i % 2), seed=i))
        for i in range(5)
    ]
    oracle = make_engine(checkpoint.path, enable_prefix_caching=False, **common)
    expected = [plain_outcome(oracle, request).token_ids for request in requests]
    engine = make_engine(checkpoint.path, draft.path, **common, **SHAPES[shape])
    preempted = [replace(request, preempt_at=(2 + i, 5)) for i, request in enumerate(requests)]
    for _ in range(2):
        results = serve(engine, preempted)
        assert [result.token_ids for result in results] == expected
        assert accepted(results) > 0
    assert engine.stats["num_preemptions"] > 4 and engine.stats["prefix_cache_hits"] > 0


def test_drafts_give_way_to_other_requests(models: Models) -> None:
    """Entries of a tree that no token will have go back before anybody is preempted for them."""
    engine = models.engine(2, page_size=1, **SHAPES["wide"])
    requests = batch(3)
    before = engine.stats["num_preemptions"]
    for request, result in zip(requests, serve(engine, requests), strict=True):
        models.compare(request, result)
    assert engine.stats["num_preemptions"] == before


@pytest.mark.parametrize(("shape", "drafting"), [*((shape, "greedy") for shape in SHAPES), ("static", "probabilistic")])
def test_standard_rejection_does_not_depend_on_company(models: Models, shape: str, drafting: str) -> None:
    """Its ids are a request's own, and for greedy ones those of plain decoding."""
    options = {"rejection_sample_method": "standard", "draft_sample_method": drafting}
    engine = models.engine(16, page_size=16, **options, **SHAPES[shape])
    requests = batch(8)
    together = serve(engine, requests)
    assert together == [serve(engine, [request])[0] for request in requests]
    for request, result in zip(requests, together, strict=True):
        if request.params["temperature"] == 0:
            assert result.outcome == plain_outcome(models.plain, request).outcome
    assert accepted(together) > 0


def test_another_draft_in_the_middle(models: Models) -> None:
    engine = models.engine(16, page_size=16, **SHAPES["dynamic"])
    requests, ids = batch(4), {}
    for index, request in enumerate(requests):
        engine.add_request(index, request.prompt, sampling(**request.params))
    for step in range(200):
        if step == 4:
            engine.swap_draft(str(models.pair[1]))
        for output in engine.step():
            ids[output.request_id] = ids.get(output.request_id, []) + list(output.new_token_ids)
        engine.check()
    assert not engine.has_unfinished_requests()
    for index, request in enumerate(requests):
        assert ids[index] == plain_outcome(models.plain, request).token_ids


def test_fewer_tokens_than_children(tmp_path: Path, models: Models) -> None:
    """A draft vocabulary of 4 ids cannot fill the places of ten children."""
    target = write_successor_target(tmp_path / "target")
    draft = write_successor_draft(tmp_path / "draft", target, replace(DRAFT, draft_vocab_size=4))
    for shape in ("wide", "static"):
        engine = make_engine(target.path, draft.path, **models.common, **SHAPES[shape])
        for request, result in zip(batch(3), serve(engine, batch(3)), strict=True):
            models.compare(request, result)
            assert 0 < result.num_draft_tokens < 64 * result.num_drafts
