"""Every sampling parameter is checked where a request is submitted; the error names it, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine import Request, make_engine, plain_outcome, sampling, serve
from support.successor import write_successor_target

from eagle31rt import _core
from eagle31rt.errors import InvalidArgumentError

INF, NAN = float("inf"), float("nan")
BAD: list[tuple[str, Any, str]] = [
    ("repetition_penalty", 0.0, "give a positive number"),
    ("repetition_penalty", -1.0, "give a positive number"),
    ("repetition_penalty", NAN, "give a positive number"),
    ("repetition_penalty", INF, "give a positive number"),
    ("frequency_penalty", 2.5, "give -2 to 2"),
    ("frequency_penalty", NAN, "give -2 to 2"),
    ("presence_penalty", -2.5, "give -2 to 2"),
    ("presence_penalty", INF, "give -2 to 2"),
    ("logit_bias", {96: 1.0}, "outside the vocabulary of 96"),
    ("logit_bias", {-1: 1.0}, "outside the vocabulary of 96"),
    ("logit_bias", {5: NAN}, "give a finite number"),
    ("logit_bias", {5: -INF}, "give a finite number"),
    ("allowed_token_ids", [1, 96], "contains 96"),
    ("allowed_token_ids", [5] * 97, "give at most 96"),
    ("bad_words", [[3], []], r"bad_words\[1\] is empty"),
    ("bad_words", [[3, 96]], "contains 96"),
    ("bad_words", [[3]] * 1025, "give at most 1024"),
    ("bad_words", [[3] * 65], "give at most 64"),
    ("num_logprobs", -2, "give -1 to 64"),
    ("num_logprobs", 65, "give -1 to 64"),
    ("num_prompt_logprobs", -2, "give -1 to 64"),
    ("num_prompt_logprobs", 65, "give -1 to 64"),
]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> _core.Engine:
    return make_engine(write_successor_target(tmp_path_factory.mktemp("checks")).directory)


@pytest.mark.parametrize(("name", "value", "message"), BAD)
def test_bad_values_are_refused_by_name(engine: _core.Engine, name: str, value: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        engine.add_request(0, [5], sampling(**{name: value}))
    assert str(caught.value).startswith(name)
    assert not engine.has_unfinished_requests()


LIMITS: list[dict[str, Any]] = [
    {"repetition_penalty": 1e-3},
    {"repetition_penalty": 1e30},
    {"frequency_penalty": -2.0, "presence_penalty": 2.0},
    {"logit_bias": {0: 3e38, 95: -3e38}},
    {"allowed_token_ids": [95] * 96},
    {"bad_words": [[95] * 64] * 1024},
    {"num_logprobs": 64, "num_prompt_logprobs": 64},
]


@pytest.mark.parametrize("params", LIMITS)
def test_limits_themselves_are_served(engine: _core.Engine, params: dict[str, Any]) -> None:
    request = Request([5, 6], {"max_tokens": 3, **params})
    assert serve(engine, [request])[0] == plain_outcome(engine, request)
