"""Policy "auto": whatever the controller chooses, ids are those of plain decoding, and stats say what it chose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from support.engine import Request, make_engine, serve
from support.traffic import DETERMINISTIC, Models, Traffic, traffic

from eagle31rt import _core
from eagle31rt.engine_config import make_engine_config
from eagle31rt.errors import InvalidArgumentError, UnsupportedError

REASONS = ("fixed", "no_draft", "plain", "best", "probe", "back_off")


@pytest.fixture(scope="module", params=["host", "device"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("successor")
    return Models(folder, "float32", decode_state=request.param, speculation_policy="auto")


@settings(DETERMINISTIC, max_examples=100)
@given(traffic=traffic())
def test_ids_are_those_of_plain_decoding(models: Models, traffic: Traffic) -> None:
    models.serve(traffic)


def requests_of(count: int, length: int) -> list[Request]:
    draws = np.random.default_rng(3)
    return [
        Request(draws.integers(0, 96, 5).tolist(), {"max_tokens": length, "ignore_eos": True}) for _ in range(count)
    ]


@pytest.mark.parametrize("decode_state", ["host", "device"])
def test_stats_say_why(models: Models, decode_state: str) -> None:
    settings = {**models.common, "num_speculative_tokens": 4, "decode_state": decode_state}
    fixed = make_engine(*models.pair, **settings)
    auto = make_engine(*models.pair, **settings, speculation_policy="auto")
    requests = requests_of(4, 60)
    steps = {}
    for engine in (fixed, auto):
        for request, result in zip(requests, serve(engine, requests), strict=True):
            models.compare(request, result)
        steps[engine] = {reason: engine.stats[f"num_{reason}_steps"] for reason in REASONS}
        assert engine.stats["verify_nanoseconds"] > 0
        assert (engine.stats["draft_nanoseconds"] > 0) == (decode_state == "host")
    assert steps[fixed]["fixed"] == sum(steps[fixed].values()) > 0
    assert steps[auto]["fixed"] == 0 and steps[auto]["plain"] >= 3
    assert steps[auto]["probe"] + steps[auto]["best"] > 0


def engine_that_accepts(models: Models, rate: float) -> _core.Engine:
    return make_engine(
        *models.pair,
        **models.common,
        num_speculative_tokens=4,
        speculation_policy="auto",
        rejection_sample_method="synthetic",
        synthetic_acceptance_rates=[rate] * 4,
    )


def test_nothing_is_drafted_where_nothing_is_accepted(models: Models) -> None:
    """A synthetic rate of zero: after some tries the engine decodes plainly."""
    engine = engine_that_accepts(models, 0.0)
    requests = requests_of(2, 80)
    serve(engine, requests)
    (result, _) = serve(engine, requests)
    assert result.num_drafts <= 20 and len(result.token_ids) == 80


def test_everything_is_drafted_where_all_is_accepted(models: Models) -> None:
    """The limit of a request holds, and none is drafted for one that asked for none."""
    engine = engine_that_accepts(models, 1.0)
    limited = [
        Request(request.prompt, {**request.params, "num_speculative_tokens": limit})
        for request, limit in zip(requests_of(3, 80), (0, 2, 4), strict=True)
    ]
    none, two, four = serve(engine, limited)
    assert none.num_draft_tokens == 0
    assert len(two.num_accepted_tokens_per_position) == 2 and len(four.num_accepted_tokens_per_position) == 4


def test_what_is_not_known_is_refused(models: Models) -> None:
    with pytest.raises(InvalidArgumentError, match=r"speculation_policy.*fixed or auto"):
        make_engine(*models.pair, **models.common, num_speculative_tokens=2, speculation_policy="always")
    with pytest.raises(UnsupportedError, match=r"speculation_policy auto.*fixed with draft trees"):
        make_engine(*models.pair, **models.common, num_speculative_tokens=8, tree_top_k=2, speculation_policy="auto")


@pytest.mark.parametrize(("method", "warns"), [("equality", False), ("standard", True)])
def test_ratio_methods_are_said_to_be_exact_in_distribution_only(
    models: Models, method: str, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    speculation = {
        "model": str(models.pair[1]),
        "num_speculative_tokens": 2,
        "policy": "auto",
        "rejection_sample_method": method,
    }
    config = make_engine_config(models.pair[0], speculation, dtype="auto", kv_cache_dtype="auto", integers={})
    assert config.speculation_policy == "auto"
    assert ("exact in distribution only" in caplog.text) == warns
