"""SamplingParams and speculative_config: every value is honoured or refused by name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from eagle31rt import SamplingParams
from eagle31rt.config import SpeculativeConfig
from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.inputs import params_per_prompt, priority_per_prompt
from eagle31rt.sampling_params import NEUTRAL_VALUES, RequestOutputKind
from eagle31rt.seeds import derive_seed


def test_defaults_are_those_of_vllm() -> None:
    expected = {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": None, "max_tokens": 16}
    expected |= {"min_tokens": 0, "ignore_eos": False, "stop_token_ids": [], "num_speculative_tokens": None}
    params = SamplingParams()
    assert {name: getattr(params, name) for name in expected} == expected


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0},
        {"top_k": -1},
        {"top_k": 1, "top_p": 1e-9, "min_p": 1.0},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"max_tokens": None, "min_tokens": 10},
        {"max_tokens": 5, "min_tokens": 5},
        {"stop_token_ids": None},
        {"stop_token_ids": [0, 7]},
        {"num_speculative_tokens": 0},
        {"num_speculative_tokens": 16},
        {"n": 3, "temperature": 0.5},
        {"stop": [], "logit_bias": {}, "bad_words": [], "repetition_penalty": 1, "logprobs": None},
        {"stop": "x", "include_stop_str_in_output": True},
        {"stop": ["x", "\u20ac" * 300]},
        {"presence_penalty": -2, "frequency_penalty": 2.0, "repetition_penalty": 1e-3},
        {"logit_bias": {0: -100, 7: 100.0}, "allowed_token_ids": [3], "bad_words": ["a"]},
        {"logprobs": 0, "prompt_logprobs": 64},
        {"logprobs": -1},
        {"logits_processors": [len]},
        {"truncate_prompt_tokens": -1},
        {"truncate_prompt_tokens": 1},
        {"output_kind": RequestOutputKind.DELTA},
        {"thinking_token_budget": -1, "skip_reading_prefix_cache": False},
    ],
)
def test_accepts(values: dict[str, Any]) -> None:
    params = SamplingParams(**values)
    assert all(getattr(params, name) == value for name, value in values.items())


def test_seed_of_minus_one_is_no_seed() -> None:
    assert SamplingParams(seed=-1).seed is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("temperature", value) for value in (-0.1, math.nan, math.inf, "1", None, True)],
        *[("top_p", value) for value in (0, 0.0, -0.5, 1.0001, math.nan)],
        *[("top_k", value) for value in (-2, 1.5, 2**31, True)],
        *[("min_p", value) for value in (-0.1, 1.1, math.nan)],
        *[("seed", value) for value in (-2, 2**64, 1.0, "0")],
        *[("max_tokens", value) for value in (0, -1, 2**31, 1.0)],
        *[("min_tokens", value) for value in (-1, 17, None)],
        *[("stop_token_ids", value) for value in ([-1], ["a"], "12", 3, [1.0], [2**31])],
        *[("num_speculative_tokens", value) for value in (-1, 65, 2.0, False)],
        *[("n", value) for value in (0, -1, 1.0)],
        *[(name, 1) for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output")],
        *[(name, value) for name in ("presence_penalty", "frequency_penalty") for value in (-2.1, 2.1, math.nan, "1")],
        *[("repetition_penalty", value) for value in (0, 0.0, -1.0, math.nan, math.inf)],
        *[("stop", value) for value in (3, [3], [""], "", ["a"] * 65, "x" * 1025, "\u20ac" * 342, ["\ud800"], b"x")],
        *[("bad_words", value) for value in ("x", [1], [""], ["a"] * 513, ["\ud800"])],
        *[(name, value) for name in ("logprobs", "prompt_logprobs") for value in (-2, 65, 1.0, True, "1")],
        *[("logit_bias", value) for value in ([1], {"1": 1.0}, {-1: 1.0}, {2**31: 1.0}, {True: 1.0})],
        *[("logit_bias", {1: value}) for value in (100.5, -101, math.nan, "1", None)],
        *[("allowed_token_ids", value) for value in ([], "12", [-1], [1.0], {1: 2}, 3)],
        *[("logits_processors", value) for value in (len, [3], "x")],
        *[("truncate_prompt_tokens", value) for value in (0, -2, 1.5)],
        *[("output_kind", value) for value in (0, "delta")],
        ("n", 16385),
    ],
)
def test_refuses_bad_values_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"SamplingParams\.{name}"):
        SamplingParams(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NEUTRAL_VALUES)
def test_refuses_what_is_not_implemented_by_name(name: str) -> None:
    for value in NEUTRAL_VALUES[name]:
        assert getattr(SamplingParams(**{name: value}), name) == value
    with pytest.raises(UnsupportedError, match=rf"SamplingParams\.{name} is not supported"):
        SamplingParams(**{name: object()})


def test_a_long_value_does_not_fill_the_message() -> None:
    with pytest.raises(InvalidArgumentError) as error:
        SamplingParams(stop_token_ids="x" * 100_000)  # type: ignore[arg-type]
    assert len(str(error.value)) < 400


def test_every_field_is_honoured_or_listed_as_unsupported() -> None:
    """A field that validate() knows nothing about would be dropped silently."""
    nested: list[Any] = []
    for _ in range(100_000):  # deeper than repr() can go
        nested = [nested]
    for field in dataclasses.fields(SamplingParams):
        for value in (object(), nested, {"a": nested}, 10**4000, -(10**6000)):
            with pytest.raises((UnsupportedError, InvalidArgumentError), match=field.name) as error:
                SamplingParams(**{field.name: value})
            assert len(str(error.value)) < 500


def test_stop_strings_are_a_list() -> None:
    assert SamplingParams().stop_strings == []
    assert SamplingParams(stop="ab").stop_strings == ["ab"]
    assert SamplingParams(stop=["ab", "c"]).stop_strings == ["ab", "c"]
    with pytest.raises(InvalidArgumentError, match=r"SamplingParams\.stop needs detokenize=True"):
        SamplingParams(stop="x", detokenize=False)


def test_unknown_name_and_greedy_n() -> None:
    with pytest.raises(TypeError, match="best_off"):
        SamplingParams(best_off=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgumentError, match="n must be 1 with temperature=0"):
        SamplingParams(n=2, temperature=0.0)


def test_one_or_one_per_prompt_and_checked_again() -> None:
    one, other = SamplingParams(max_tokens=1), SamplingParams(max_tokens=2)
    assert params_per_prompt(one, 2) == [one, one]
    assert params_per_prompt([one, other], 2) == [one, other]
    assert params_per_prompt(None, 1) == [SamplingParams()]
    with pytest.raises(InvalidArgumentError, match="2 sampling_params for 3 prompts"):
        params_per_prompt([one, other], 3)
    with pytest.raises(InvalidArgumentError, match="sampling_params 1: must be SamplingParams, got dict"):
        params_per_prompt([one, {}], 2)  # type: ignore[list-item]
    other.top_p = 7.0
    with pytest.raises(InvalidArgumentError, match=r"sampling_params 1: SamplingParams\.top_p"):
        params_per_prompt([one, other], 2)


def test_priorities() -> None:
    assert priority_per_prompt(None, 2) == [0, 0]
    assert priority_per_prompt(-3, 2) == [-3, -3]
    assert priority_per_prompt([5, 1], 2) == [5, 1]
    for priority in ([1], "12", 1.5, True):
        with pytest.raises(InvalidArgumentError, match="priority must be an integer or one for each of 2 prompts"):
            priority_per_prompt(priority, 2)  # type: ignore[arg-type]
    for value in (2**31, "1", None):
        with pytest.raises(InvalidArgumentError, match="priority 1: must be an integer of 32 bits"):
            priority_per_prompt([0, value], 2)  # type: ignore[list-item]


def test_derived_seeds_are_those_of_the_core() -> None:
    testing = pytest.importorskip("eagle31rt._testing")
    for seed in (0, 1, 2**63, 2**64 - 1, 0x0123456789ABCDEF):
        assert derive_seed(seed, 0) == seed
        for index in (1, 2, 1000):
            assert derive_seed(seed, index) == testing.derive_seed(seed, index)
    assert len({derive_seed(7, index) for index in range(1000)}) == 1000


BASE: dict[str, Any] = {"method": "eagle3", "model": "draft", "num_speculative_tokens": 4}


def test_speculative_config_defaults_and_full() -> None:
    assert SpeculativeConfig.parse(BASE) == SpeculativeConfig(model="draft", num_speculative_tokens=4)
    assert SpeculativeConfig.parse(BASE).rejection_sample_method == "equality"
    full = {
        **BASE,
        "policy": "fixed",
        "rejection_sample_method": "block",
        "draft_sample_method": "probabilistic",
        "capture_layers": [2, 15, 27],
        "layer_id_convention": "layer_output",
        "feedback": "post",
    }
    parsed = SpeculativeConfig.parse(full)
    assert {name: getattr(parsed, name) for name in full} == full


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"method": "ngram"}, UnsupportedError, "'method'.*'ngram' is not supported.*'eagle3'"),
        ({"method": "eagel3"}, InvalidArgumentError, "'method'.*must be 'eagle3', got 'eagel3'"),
        ({"policy": "always"}, InvalidArgumentError, "'policy'"),
        ({"rejection_sample_method": "traversal"}, UnsupportedError, "'traversal' is not supported"),
        ({"rejection_sample_method": "strict"}, InvalidArgumentError, "'equality' or 'standard'"),
        ({"rejection_sample_method": ["block"]}, InvalidArgumentError, "rejection_sample_method"),
        ({"draft_sample_method": "probabilistic"}, InvalidArgumentError, "needs rejection_sample_method 'standard'"),
        ({"num_speculative_tokens": None}, InvalidArgumentError, "lacks 'num_speculative_tokens'"),
        ({"num_speculative_tokens": 17}, InvalidArgumentError, "0 to 16 .with draft trees.*got 17"),
        ({"num_speculative_tokens": 65, "tree_top_k": 4}, InvalidArgumentError, "0 to 64, got 65"),
        ({"tree_top_k": 0}, InvalidArgumentError, "'tree_top_k'. must be 1 to 64"),
        ({"tree_top_k": 2, "tree_depth": True}, InvalidArgumentError, "'tree_depth'. must be 1 to 64"),
        ({"speculative_token_tree": "[(0,), ("}, InvalidArgumentError, "'speculative_token_tree'. must be a list"),
        ({"speculative_token_tree": "{[]: 1}"}, InvalidArgumentError, "'speculative_token_tree'. must be a list"),
        ({"speculative_token_tree": "[0]"}, InvalidArgumentError, "'speculative_token_tree'"),
        ({"speculative_token_tree": []}, InvalidArgumentError, "'speculative_token_tree'"),
        ({"speculative_token_tree": [[64]]}, InvalidArgumentError, "ranks from 0 to 63"),
        ({"num_speculative_tokens": True}, InvalidArgumentError, "num_speculative_tokens"),
        ({"model": None}, InvalidArgumentError, "lacks 'model'"),
        ({"capture_layers": []}, InvalidArgumentError, "capture_layers"),
        ({"capture_layers": list(range(9))}, InvalidArgumentError, "1 to 8 layer ids"),
        ({"capture_layers": [-1]}, InvalidArgumentError, "capture_layers"),
        ({"layer_id_convention": "vllm"}, InvalidArgumentError, "layer_id_convention"),
        ({"feedback": "both"}, InvalidArgumentError, "feedback"),
        ({"draft_tensor_parallel_size": 1}, UnsupportedError, "'draft_tensor_parallel_size' is not supported"),
        ({"quantization": None}, UnsupportedError, "'quantization' is not supported"),
        ({"num_spec_tokens": 3}, InvalidArgumentError, "no key 'num_spec_tokens'; known:.*num_speculative_tokens"),
        ({"synthetic_acceptance_length": 2.0}, InvalidArgumentError, "needs rejection_sample_method 'synthetic'"),
    ],
)
def test_speculative_config_refuses_by_name(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        SpeculativeConfig.parse({**BASE, **change})


def test_speculative_config_of_trees() -> None:
    parsed = SpeculativeConfig.parse({**BASE, "num_speculative_tokens": 60, "tree_top_k": 10, "tree_depth": 7})
    assert (parsed.num_speculative_tokens, parsed.tree_top_k, parsed.tree_depth) == (60, 10, 7)
    for tree in ("[(0,), (0, 0), (1,)]", [(0,), [0, 0], (1,)]):
        assert SpeculativeConfig.parse({**BASE, "speculative_token_tree": tree}).speculative_token_tree == [
            [0],
            [0, 0],
            [1],
        ]


def test_speculative_config_must_be_a_dict() -> None:
    with pytest.raises(InvalidArgumentError, match="must be a dict, got str"):
        SpeculativeConfig.parse("eagle3")  # type: ignore[arg-type]


def _rates(**values: Any) -> list[float]:
    method = {"rejection_sample_method": "synthetic"}
    return SpeculativeConfig.parse({**BASE, **method, **values}).synthetic_acceptance_rates


def test_synthetic_rates() -> None:
    """A length becomes floor(L - 1) ones, the fraction, then zeros."""
    assert _rates(synthetic_acceptance_length=3.25) == [1.0, 1.0, 0.25, 0.0]
    assert _rates(synthetic_acceptance_length=1) == [0.0] * 4
    assert _rates(synthetic_acceptance_length=5) == [1.0] * 4
    assert _rates(synthetic_acceptance_rates=[0.9, 0.9, 0.5, 0]) == [0.9, 0.9, 0.5, 0.0]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"synthetic_acceptance_rates": [1.0] * 4, "synthetic_acceptance_length": 2.0},
        {"synthetic_acceptance_length": 0.5},
        {"synthetic_acceptance_length": 5.5},
        {"synthetic_acceptance_length": math.nan},
        {"synthetic_acceptance_rates": [0.5] * 3},
        {"synthetic_acceptance_rates": [0.5, 0.6, 0.1, 0.0]},
        {"synthetic_acceptance_rates": [1.5, 0.6, 0.1, 0.0]},
        {"synthetic_acceptance_rates": 0.5},
    ],
)
def test_synthetic_refusals(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="synthetic_acceptance"):
        _rates(**values)
