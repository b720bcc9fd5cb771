"""Draft trees: whatever tree is drafted, the ids are those of plain decoding; and what the trees are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.engine import Request, Result, endless, make_config, make_engine, plain_outcome, random_prompt, serve
from support.oracle import Target
from support.oracle_draft import Draft
from support.oracle_tree import speculate_with_trees
from support.processors import CASES
from support.successor import DRAFT, write_successor_draft, write_successor_target
from support.traffic import DETERMINISTIC, Models, Traffic, plain, traffic
from test_deepseek import SPECS

from eagle31rt import _core
from eagle31rt.errors import InvalidArgumentError, UnsupportedError

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
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("trees"), request.param)


@pytest.mark.parametrize("shape", SHAPES)
@settings(DETERMINISTIC, max_examples=30)
@given(traffic=traffic(max_drafts=MAX_NODES))
def test_ids_are_those_of_plain_decoding(models: Models, shape: str, traffic: Traffic) -> None:
    """Batches of up to 16 with trees, chains and no drafts; preempted, cancelled, in chunks, with prefix hits."""
    requests, stops, engine = traffic
    limit = SHAPES[shape]["num_speculative_tokens"]
    requests = models.with_stops([bounded(request, limit) for request in requests], stops)
    for request, result in zip(requests, serve(models.engine(**engine, **SHAPES[shape]), requests), strict=True):
        models.compare(request, result)


def bounded(request: Request, limit: int) -> Request:
    wanted = min(request.params["num_speculative_tokens"], limit)
    return replace(request, params={**request.params, "num_speculative_tokens": wanted})


def test_the_traffic_accepted_and_refused(models: Models) -> None:
    """Runs after the test above: equality proves nothing if no draft was ever accepted."""
    if models.drafted == 0:
        pytest.skip("the traffic test did not run")
    assert models.drafted > 10_000
    assert 500 < models.accepted < 0.5 * models.drafted


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
    if models.common["dtype"] != "float32":
        pytest.skip("rounding may change the order of nodes")
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


REFUSED: dict[str, tuple[Params, type[Exception], str]] = {
    "chain that is too long": ({"num_speculative_tokens": 17}, InvalidArgumentError, "0 to 16, or ask for draft trees"),
    "too many nodes": ({"num_speculative_tokens": 65, "tree_top_k": 4}, InvalidArgumentError, "0 to 64"),
    "too wide": ({"num_speculative_tokens": 64, "tree_top_k": 65}, InvalidArgumentError, "tree_top_k is 65"),
    "too many candidates": (
        {"num_speculative_tokens": 64, "tree_top_k": 20, "tree_depth": 8},
        InvalidArgumentError,
        "2820 candidates",
    ),
    "depth of a chain": ({"num_speculative_tokens": 4, "tree_depth": 3}, InvalidArgumentError, "tree_depth is 3"),
    "deeper than it has nodes": (
        {"num_speculative_tokens": 4, "tree_top_k": 2, "tree_depth": 5},
        InvalidArgumentError,
        "tree_depth is 5 and num_speculative_tokens 4",
    ),
    "two kinds": (
        {"num_speculative_tokens": 1, "tree_top_k": 2, "speculative_token_tree": [[0]]},
        InvalidArgumentError,
        "leave them out beside speculative_token_tree",
    ),
    "missing beginning": (
        {"num_speculative_tokens": 2, "speculative_token_tree": [[0], [1, 0]]},
        InvalidArgumentError,
        r"the path \(1, 0\) but not the one",
    ),
    "path twice": (
        {"num_speculative_tokens": 2, "speculative_token_tree": [[0], [0]]},
        InvalidArgumentError,
        r"\(0\) twice",
    ),
    "empty path": ({"num_speculative_tokens": 1, "speculative_token_tree": [[], [0]]}, InvalidArgumentError, "empty"),
    "negative rank": (
        {"num_speculative_tokens": 1, "speculative_token_tree": [[-1]]},
        InvalidArgumentError,
        "ranks are 0 to 63",
    ),
    "more drafts than places": (
        {"num_speculative_tokens": 3, "speculative_token_tree": [[0], [1]]},
        InvalidArgumentError,
        "2 paths and num_speculative_tokens is 3",
    ),
    "block": (
        {"num_speculative_tokens": 4, "tree_top_k": 2, "rejection_sample_method": "block"},
        UnsupportedError,
        '"block" verifies chains only',
    ),
    "synthetic": (
        {"num_speculative_tokens": 4, "tree_top_k": 2, "rejection_sample_method": "synthetic"},
        UnsupportedError,
        '"synthetic" verifies chains only',
    ),
    "drawn drafts": (
        {
            "num_speculative_tokens": 4,
            "tree_top_k": 2,
            "rejection_sample_method": "standard",
            "draft_sample_method": "probabilistic",
        },
        UnsupportedError,
        "draft_sample_method probabilistic",
    ),
    "device": (
        {"num_speculative_tokens": 4, "tree_top_k": 2, "decode_state": "device"},
        UnsupportedError,
        "decode_state host",
    ),
    "cuda": ({"num_speculative_tokens": 4, "tree_top_k": 2, "device": "cuda"}, UnsupportedError, "device cpu"),
    "no draft": ({"tree_top_k": 2, "draft": ""}, InvalidArgumentError, "no draft model is given"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_settings_are_refused_by_name(models: Models, case: str) -> None:
    settings_, error, message = REFUSED[case]
    config = make_config(*models.pair, **models.common)
    for name, value in settings_.items():
        setattr(config, name, value)
    with pytest.raises(error, match=message):
        _core.Engine(config)


@pytest.mark.parametrize("shape", SHAPES)
def test_standard_rejection_does_not_depend_on_company(models: Models, shape: str) -> None:
    """Its ids are a request's own, and for greedy ones those of plain decoding."""
    engine = models.engine(16, page_size=16, rejection_sample_method="standard", **SHAPES[shape])
    requests = batch(8)
    together = serve(engine, requests)
    assert together == [serve(engine, [request])[0] for request in requests]
    for request, result in zip(requests, together, strict=True):
        if request.params["temperature"] == 0:
            assert result.outcome == plain_outcome(models.plain, request).outcome
    assert accepted(together) > 0


def test_fewer_tokens_than_children(tmp_path: Path, models: Models) -> None:
    """A draft vocabulary of 4 ids cannot fill the places of ten children."""
    target = write_successor_target(tmp_path / "target")
    draft = write_successor_draft(tmp_path / "draft", target, replace(DRAFT, draft_vocab_size=4))
    for shape in ("wide", "static"):
        engine = make_engine(target.path, draft.path, **models.common, **SHAPES[shape])
        for request, result in zip(batch(3), serve(engine, batch(3)), strict=True):
            models.compare(request, result)
            assert 0 < result.num_draft_tokens < 64 * result.num_drafts
