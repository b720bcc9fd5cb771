"""Random traffic: whatever runs beside a request and however it is speculated for, its ids are those of plain decoding.

The oracle is step_simple() of an engine without a draft, each request alone. The pair of models agrees about half of
the time (support/successor.py), so that runs of every length are accepted, cut by stops, and refused.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.engine import Request, Result, make_engine, plain_outcome, serve
from support.successor import EOS, write_successor_draft, write_successor_target

MAX_MODEL_LEN = 96
MAX_DRAFTS = 8
DETERMINISTIC = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=500,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    directory = tmp_path_factory.mktemp("successor")
    target = write_successor_target(directory / "target")
    draft = write_successor_draft(directory / "draft", target)
    common = {"dtype": request.param, "max_model_len": MAX_MODEL_LEN}
    return {
        "pair": (target.directory, draft.directory),
        "common": common,
        "plain": make_engine(target.directory, **common),
        "engines": {},
        "drafted": [0, 0],
    }


@st.composite
def _requests(draw: st.DrawFn) -> Request:
    """Half of the requests are greedy; prompts are short or near a page edge, sometimes close to max_model_len."""
    length = draw(st.sampled_from([1, 2, 5, 15, 16, 17, 31, 33, 70]))
    prompt = np.random.default_rng(draw(st.integers(0, 40))).integers(0, 96, length).tolist()
    params: dict[str, Any] = {
        "max_tokens": draw(st.sampled_from([1, 2, 3, 7, 16, 24, 40])),
        "num_speculative_tokens": draw(st.integers(-1, MAX_DRAFTS)),
        "seed": draw(st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])),
        "ignore_eos": draw(st.booleans()),
    }
    if draw(st.booleans()):
        params["temperature"] = draw(st.sampled_from([0.3, 0.7, 1.0, 1.5]))
        params["top_k"] = draw(st.sampled_from([0, 0, 1, 5]))
        params["top_p"] = draw(st.sampled_from([1.0, 1.0, 0.8]))
        params["min_p"] = draw(st.sampled_from([0.0, 0.0, 0.1]))
    if draw(st.integers(0, 3)) == 0:
        params["min_tokens"] = draw(st.integers(0, params["max_tokens"]))
    cancel = draw(st.integers(0, 12)) if draw(st.integers(0, 9)) == 0 else None
    return Request(prompt, params, arrival=draw(st.sampled_from([0, 0, 0, 1, 2, 5, 9])), cancel_at=cancel)


@st.composite
def _traffic(draw: st.DrawFn) -> tuple[list[Request], list[int], dict[str, Any]]:
    """(requests, for each the place in its plain output whose id becomes a stop id or -1, engine settings)."""
    requests = draw(st.lists(_requests(), min_size=1, max_size=16))
    stops = [draw(st.sampled_from([-1, -1, 0, 1, 2, 4, 7])) for _ in requests]
    engine = {
        "page_size": draw(st.sampled_from([1, 16])),
        "max_num_seqs": draw(st.sampled_from([1, 2, 4, 16])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 7, 40, 512])),
        "num_threads": draw(st.sampled_from([1, 1, 2])),
        "sequences": draw(st.sampled_from([1, 3, 16])),  # room in the KV pool
    }
    return requests, stops, engine


def _engine(models: dict[str, Any], sequences: int, **changes: Any) -> Any:
    """Engines are kept: a later example runs in the memory that earlier ones left behind."""
    key = (sequences, *sorted(changes.items()))
    if key not in models["engines"]:
        config = {**models["common"], "num_speculative_tokens": MAX_DRAFTS, **changes}
        info = make_engine(*models["pair"], **{**config, "kv_cache_memory_bytes": 1 << 20}).info
        bytes_per_page = info["kv_cache_bytes"] // info["num_pages"]
        pages = -(-MAX_MODEL_LEN // config["page_size"])
        config["kv_cache_memory_bytes"] = pages * sequences * bytes_per_page
        models["engines"][key] = make_engine(*models["pair"], **config)
    return models["engines"][key]


def _with_stop(models: dict[str, Any], request: Request, place: int) -> Request:
    """A request that ends inside its own plain output, if it is long enough."""
    if place < 0:
        return request
    output = plain_outcome(models["plain"], _plain(request)).token_ids
    if place >= len(output):
        return request
    return replace(request, params={**request.params, "stop_token_ids": [output[place], 5]})


def _plain(request: Request) -> Request:
    return replace(request, params={k: v for k, v in request.params.items() if k != "num_speculative_tokens"})


def _compare(models: dict[str, Any], request: Request, result: Result) -> None:
    expected = plain_outcome(models["plain"], _plain(request))
    if request.cancel_at is not None and result.finish_reason in ("", "abort"):
        assert result.token_ids == expected.token_ids[: len(result.token_ids)], request
        return
    assert result.outcome == expected.outcome, request
    assert result.num_accepted_tokens + result.num_drafts <= len(result.token_ids), request


@DETERMINISTIC
@given(traffic=_traffic())
def test_ids_are_those_of_plain_decoding(
    models: dict[str, Any], traffic: tuple[list[Request], list[int], dict[str, Any]]
) -> None:
    requests, stops, settings_ = traffic
    requests = [_with_stop(models, request, place) for request, place in zip(requests, stops, strict=True)]
    results = serve(_engine(models, **settings_), requests)
    for request, result in zip(requests, results, strict=True):
        _compare(models, request, result)
        models["drafted"][0] += result.num_draft_tokens
        models["drafted"][1] += result.num_accepted_tokens


def test_the_traffic_accepted_and_refused(models: dict[str, Any]) -> None:
    """Runs after the test above: equality proves nothing if no draft was ever accepted, or none refused."""
    drafted, accepted = models["drafted"]
    if drafted == 0:
        pytest.skip("the traffic test did not run")
    assert drafted > 2000
    assert 0.2 * drafted < accepted < 0.8 * drafted


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_any_draft_length(models: dict[str, Any], num_drafts: int, temperature: float) -> None:
    """Batch of 7 against each alone, for every K, past any EOS."""
    engine = make_engine(*models["pair"], **models["common"], num_speculative_tokens=num_drafts)
    requests = [
        Request(
            np.random.default_rng(seed).integers(0, 96, 3 * seed + 1).tolist(),
            {"temperature": temperature, "seed": seed, "max_tokens": 50, "ignore_eos": True},
        )
        for seed in range(7)
    ]
    for request, result in zip(requests, serve(engine, requests), strict=True):
        _compare(models, request, result)
        if num_drafts > 0:
            assert result.num_accepted_tokens > 0
            assert result.num_draft_tokens > result.num_accepted_tokens


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
def test_rejection_sampling_does_not_depend_on_company(models: dict[str, Any], method: str, drafting: str) -> None:
    """Its ids are not those of plain decoding, but for a fixed K they are the request's own."""
    options = {"rejection_sample_method": method, "draft_sample_method": drafting, "num_speculative_tokens": 5}
    engine = make_engine(*models["pair"], **models["common"], **options)
    requests = [
        Request(
            np.random.default_rng(seed).integers(0, 96, 1 + 5 * (seed % 5)).tolist(),
            {"temperature": [0.0, 0.6, 1.0][seed % 3], "seed": seed, "max_tokens": 30, "stop_token_ids": [EOS]},
            arrival=seed % 4,
        )
        for seed in range(12)
    ]
    together = serve(engine, requests)
    alone = [serve(engine, [replace(request, arrival=0)])[0] for request in requests]
    for one, other in zip(together, alone, strict=True):
        assert one == other
    for request, result in zip(requests, together, strict=True):
        if request.params["temperature"] == 0:
            assert result.outcome == plain_outcome(models["plain"], _plain(request)).outcome
    accepted, drafted = (sum(getattr(r, n) for r in together) for n in ("num_accepted_tokens", "num_draft_tokens"))
    assert 0.1 * drafted < accepted < 0.9 * drafted


def test_synthetic_acceptance_of_certain_rates(models: dict[str, Any]) -> None:
    """Rates of 1, 1, 0: every round of three drafts accepts exactly two."""
    options = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.0, 1.0, 0.0]}
    engine = make_engine(*models["pair"], **models["common"], num_speculative_tokens=3, **options)
    params = {"max_tokens": 31, "ignore_eos": True}  # 1 from the prompt, then ten rounds of 3
    for result in serve(engine, [Request([7, seed], {**params, "temperature": seed / 2}) for seed in range(3)]):
        assert result.runs == [1] + [3] * 10
        assert result.num_accepted_tokens_per_position == [10, 10, 0]


def test_synthetic_acceptance_of_uncertain_rates(models: dict[str, Any]) -> None:
    """rates[i] is the chance that the first i + 1 drafts all stand; five standard deviations of the count."""
    rates = [0.9, 0.6, 0.3]
    options = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    engine = make_engine(*models["pair"], **models["common"], num_speculative_tokens=3, **options)
    params = {"max_tokens": 90, "ignore_eos": True, "temperature": 0.5}
    results = serve(engine, [Request([3], {**params, "seed": seed}) for seed in range(48)])
    full_rounds = sum(result.num_drafts for result in results)
    for position, rate in enumerate(rates):
        accepted = sum(result.num_accepted_tokens_per_position[position] for result in results)
        # The last round of a request may have fewer drafts: it lacks this position at most once a request.
        spread = 5 * np.sqrt(full_rounds * rate * (1 - rate))
        assert rate * (full_rounds - len(results)) - spread <= accepted <= rate * full_rounds + spread
