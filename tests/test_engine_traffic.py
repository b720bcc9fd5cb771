"""Random traffic: whatever runs beside a request and however it is speculated for, its ids are those of plain decoding.

The oracle is step_simple() of an engine without a draft, each request alone. The pair of models agrees about half of
the time (support/successor.py), so that runs of every length are accepted, cut by stops, and refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from support.engine import Request, make_engine, plain_outcome, serve
from support.successor import EOS
from support.traffic import DETERMINISTIC, Models, Traffic, plain, traffic


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("successor"), request.param)


@DETERMINISTIC
@given(traffic=traffic())
def test_ids_are_those_of_plain_decoding(models: Models, traffic: Traffic) -> None:
    models.serve(traffic)


def test_the_traffic_accepted_and_refused(models: Models) -> None:
    """Runs after the test above: equality proves nothing if no draft was ever accepted, or none refused."""
    if models.drafted == 0:
        pytest.skip("the traffic test did not run")
    assert models.drafted > 2000
    assert 0.2 * models.drafted < models.accepted < 0.8 * models.drafted


@pytest.mark.parametrize("num_drafts", [0, 1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_any_draft_length(models: Models, num_drafts: int, temperature: float) -> None:
    """Batch of 7 against each alone, for every K, past any EOS."""
    engine = make_engine(*models.pair, **models.common, num_speculative_tokens=num_drafts)
    requests = [
        Request(
            np.random.default_rng(seed).integers(0, 96, 3 * seed + 1).tolist(),
            {"temperature": temperature, "seed": seed, "max_tokens": 50, "ignore_eos": True},
        )
        for seed in range(7)
    ]
    for request, result in zip(requests, serve(engine, requests), strict=True):
        models.compare(request, result)
        if num_drafts > 0:
            assert result.num_accepted_tokens > 0
            assert result.num_draft_tokens > result.num_accepted_tokens


@pytest.mark.parametrize("method", ["standard", "block"])
@pytest.mark.parametrize("drafting", ["greedy", "probabilistic"])
def test_rejection_sampling_does_not_depend_on_company(models: Models, method: str, drafting: str) -> None:
    """Its ids are not those of plain decoding, but for a fixed K they are the request's own."""
    options = {"rejection_sample_method": method, "draft_sample_method": drafting, "num_speculative_tokens": 5}
    engine = make_engine(*models.pair, **models.common, **options)
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
            assert result.outcome == plain_outcome(models.plain, plain(request)).outcome
    accepted, drafted = (sum(getattr(r, n) for r in together) for n in ("num_accepted_tokens", "num_draft_tokens"))
    assert 0.1 * drafted < accepted < 0.9 * drafted


def test_synthetic_acceptance_of_certain_rates(models: Models) -> None:
    """Rates of 1, 1, 0: every round of three drafts accepts exactly two."""
    options = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.0, 1.0, 0.0]}
    engine = make_engine(*models.pair, **models.common, num_speculative_tokens=3, **options)
    params = {"max_tokens": 31, "ignore_eos": True}  # 1 from the prompt, then ten rounds of 3
    for result in serve(engine, [Request([7, seed], {**params, "temperature": seed / 2}) for seed in range(3)]):
        assert result.runs == [1] + [3] * 10
        assert result.num_accepted_tokens_per_position == [10, 10, 0]


def test_synthetic_acceptance_of_uncertain_rates(models: Models) -> None:
    """rates[i] is the chance that the first i + 1 drafts all stand; five standard deviations of the count."""
    rates = [0.9, 0.6, 0.3]
    options = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": rates}
    engine = make_engine(*models.pair, **models.common, num_speculative_tokens=3, **options)
    params = {"max_tokens": 90, "ignore_eos": True, "temperature": 0.5}
    results = serve(engine, [Request([3], {**params, "seed": seed}) for seed in range(48)])
    full_rounds = sum(result.num_drafts for result in results)
    for position, rate in enumerate(rates):
        accepted = sum(result.num_accepted_tokens_per_position[position] for result in results)
        # The last round of a request may have fewer drafts: it lacks this position at most once a request.
        spread = 5 * np.sqrt(full_rounds * rate * (1 - rate))
        assert rate * (full_rounds - len(results)) - spread <= accepted <= rate * full_rounds + spread
