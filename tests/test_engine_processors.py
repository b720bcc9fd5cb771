"""Parameters that change logits, on every verify row: ids and log-probabilities are those of plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import successor
from support.constraints import RandomSubsets
from support.engine import Request, Result, endless, make_engine, plain_outcome, random_prompt, run_decoder, serve
from support.processors import CASES
from support.traffic import DETERMINISTIC, MAX_DRAFTS, Models, plain

from eagle31rt import _core, _testing

Params = dict[str, Any]


def on_fake_device(config: _core.EngineConfig) -> _core.Engine:
    return _testing.engine_on_fake_device(config, _testing.FakeDevice())


@pytest.fixture(scope="module", params=["host", "device", "fake"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    state = "host" if request.param == "host" else "device"
    make = on_fake_device if request.param == "fake" else _core.Engine
    return Models(tmp_path_factory.mktemp("processors"), "float32", make, decode_state=state)


SAMPLERS: list[Params] = [
    {},
    {"temperature": 0.9, "seed": 4},
    {"temperature": 1.2, "top_k": 7, "top_p": 0.8, "seed": 5},
]


def loops(vocab_size: int) -> np.ndarray:
    """Successors that repeat: ids below 32 follow themselves, others go round in twos and threes."""
    ids = np.arange(vocab_size)
    in_threes = 64 + (ids - 64) // 3 * 3 + (ids - 64 + 1) % 3
    in_threes[94:] = [95, 94]  # two are left
    return np.select([ids < 32, ids < 64], [ids, ids ^ 1], in_threes)


@pytest.fixture(scope="module", params=["host", "device"])
def looping(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(successor, "successors", loops)
        yield Models(tmp_path_factory.mktemp("loops"), "float32", decode_state=request.param)


def compare(models: Models, requests: list[Request], results: list[Result]) -> list[Result]:
    expected = [plain_outcome(models.plain, plain(request)) for request in requests]
    for request, one, other in zip(requests, results, expected, strict=True):
        assert one.outcome == other.outcome, request
        assert one.error == other.error, request
        assert one.logprobs == other.logprobs and one.prompt_logprobs == other.prompt_logprobs, request
    return expected


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("num_drafts", [0, 1, 3, 5])
def test_each_parameter(models: Models, name: str, num_drafts: int) -> None:
    """Beside requests without it, in one batch; it must change something, or the test could not tell."""
    without = [Request(random_prompt(3 + seed, seed), endless(30, **SAMPLERS[seed])) for seed in range(3)]
    requests = [replace(request, params={**request.params, **CASES[name]}) for request in without]
    engine = models.engine(sequences=8, page_size=16, num_speculative_tokens=num_drafts)
    mixed = [request for pair in zip(without, requests, strict=True) for request in pair]
    results = serve(engine, mixed)
    expected = compare(models, mixed, results)
    for one, other in zip(expected[0::2], expected[1::2], strict=True):
        assert one.token_ids != other.token_ids
    if num_drafts > 0:
        assert sum(result.num_accepted_tokens for result in results[1::2]) > 0


LOOPS: list[Params] = [
    *(CASES[name] for name in ("repetition_penalty", "frequency_penalty", "presence_penalty", "negative_penalties")),
    {"bad_words": [[7, 7, 7, 7], [40, 41, 40, 41, 40], [6] * 7, [71, 72]]},
]


@pytest.mark.parametrize("params", LOOPS, ids=lambda params: "-".join(params))
@pytest.mark.parametrize("num_drafts", [1, 2, 5])
def test_ids_that_repeat_in_the_drafts(looping: Models, params: Params, num_drafts: int) -> None:
    """What is counted and matched lies in the drafts themselves, up to the newest one."""
    without = [
        Request([token], endless(30, seed=token, temperature=0.7 * (token % 2))) for token in (6, 7, 9, 40, 41, 70)
    ]
    requests = [replace(request, params={**request.params, **params}) for request in without]
    engine = looping.engine(sequences=8, page_size=16, num_speculative_tokens=num_drafts)
    results = serve(engine, requests)
    expected = compare(looping, requests, results)
    plain_results = [plain_outcome(looping.plain, request) for request in without]
    assert sum(one.token_ids != other.token_ids for one, other in zip(expected, plain_results, strict=True)) >= 2
    assert sum(result.num_accepted_tokens for result in results) > 10


@st.composite
def mixed_requests(draw: st.DrawFn) -> list[Request]:
    requests = []
    for seed in range(draw(st.integers(1, 5))):
        params = {"max_tokens": draw(st.sampled_from([1, 4, 25])), **draw(st.sampled_from(SAMPLERS))}
        for name in draw(st.lists(st.sampled_from(list(CASES)), max_size=3)):
            params.update(CASES[name])
        if draw(st.booleans()):
            params["num_logprobs"] = draw(st.sampled_from([0, 1, 5]))
        if draw(st.booleans()):
            params["num_prompt_logprobs"] = draw(st.sampled_from([0, 1, 64]))
        params["min_tokens"] = min(params.get("min_tokens", 0), params["max_tokens"])
        params["num_speculative_tokens"] = draw(st.integers(-1, MAX_DRAFTS))
        prompt = random_prompt(draw(st.sampled_from([1, 5, 17, 40])), seed % 2)  # some begin as others do
        preempt_at = draw(st.sampled_from([(), (2,), (1, 4, 6), tuple(range(3, 40, 3))]))
        requests.append(Request(prompt, params, arrival=draw(st.integers(0, 3)), preempt_at=preempt_at))
    return requests


@settings(DETERMINISTIC, max_examples=60)
@given(requests=mixed_requests(), rows=st.sampled_from([1, 7, 512]), page_size=st.sampled_from([1, 16]))
def test_mixed_traffic(models: Models, requests: list[Request], rows: int, page_size: int) -> None:
    """Preempted and in chunks, with prompts that the prefix cache knows."""
    engine = models.engine(sequences=2, page_size=page_size, max_num_batched_tokens=rows)
    compare(models, requests, serve(engine, requests))


Processor = Callable[[np.ndarray, list[int], list[int]], None]


def penalize(repetition: float, frequency: float, presence: float) -> Processor:
    def process(row: np.ndarray, prompt: list[int], output: list[int]) -> None:
        for token in set(prompt) | set(output):
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        for token in set(output):
            row[token] -= frequency * output.count(token) + presence

    return process


def add_bias(row: np.ndarray, prompt: list[int], output: list[int]) -> None:
    for token, bias in CASES["logit_bias"]["logit_bias"].items():
        row[token] += bias


def ban_words(row: np.ndarray, prompt: list[int], output: list[int]) -> None:
    for word in CASES["bad_words"]["bad_words"]:
        if output[len(output) - len(word) + 1 :] == word[:-1]:
            row[word[-1]] = -np.inf


def keep_allowed(row: np.ndarray, prompt: list[int], output: list[int]) -> None:
    kept = row[CASES["allowed_token_ids"]["allowed_token_ids"]]
    row[:] = -np.inf
    row[CASES["allowed_token_ids"]["allowed_token_ids"]] = kept


ORACLES: dict[str, Processor] = {
    "repetition_penalty": penalize(1.8, 0.0, 0.0),
    "frequency_penalty": penalize(1.0, 1.5, 0.0),
    "presence_penalty": penalize(1.0, 0.0, 2.0),
    "negative_penalties": penalize(0.6, -1.0, -2.0),
    "logit_bias": add_bias,
    "bad_words": ban_words,
    "allowed_token_ids": keep_allowed,
}


@pytest.mark.parametrize("name", ORACLES)
def test_greedy_ids_are_those_of_the_formulas(models: Models, name: str) -> None:
    prompt = random_prompt(6)
    tokens = list(prompt)
    for _ in range(20):
        row = run_decoder(models.pair[0], tokens, dtype="float32")[0][-1].astype(np.float64)
        ORACLES[name](row, prompt, tokens[len(prompt) :])
        tokens.append(int(np.argmax(row)))
    engine = models.engine(sequences=8, page_size=16, num_speculative_tokens=3)
    result = serve(engine, [Request(prompt, endless(20, **CASES[name]))])[0]
    assert result.token_ids == tokens[len(prompt) :]
    assert result.num_accepted_tokens > 0


METHODS: list[Params] = [
    {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"},
    {"rejection_sample_method": "block"},
    {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.0, 1.0, 0.5]},
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method["rejection_sample_method"])
def test_no_method_emits_what_is_banned(models: Models, method: Params) -> None:
    """Nor what a constraint refuses, although kSynthetic accepts drafts without looking at them."""
    engine = models.engine(sequences=8, page_size=16, num_speculative_tokens=3, **method)
    allowed = list(range(3, 85))
    params = endless(30, temperature=0.8, constraint=lambda: RandomSubsets(1), allowed_token_ids=allowed)
    requests = [Request(random_prompt(4, seed), {**params, "seed": seed}) for seed in range(4)]
    results = serve(engine, requests)
    assert sum(result.num_accepted_tokens for result in results) > 10
    for result in results:
        assert result.finish_reason == "length"
        follower = RandomSubsets(1)
        assert all(token in allowed and follower.accept(token) for token in result.token_ids)


def test_host_and_device_state_give_the_same_law(models: Models) -> None:
    """Every id, run and counter of stochastic verification with processors, against state on the host."""
    config = {"num_speculative_tokens": 3, **METHODS[0]}
    requests = [
        Request(random_prompt(3, seed), endless(30, temperature=1.0, seed=seed, **CASES[name]))
        for seed, name in enumerate(["all", "frequency_penalty", "bad_words", "logit_bias", "constraint"])
    ]
    engine = models.engine(sequences=8, page_size=16, **config)
    assert serve(engine, requests) == serve(make_engine(*models.pair, **models.common, **config), requests)
