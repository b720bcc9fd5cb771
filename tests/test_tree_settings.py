"""Settings of draft trees that are wrong are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from support.engine import make_config
from support.traffic import Models

from eagle31rt import _core
from eagle31rt.errors import InvalidArgumentError, UnsupportedError

Params = dict[str, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("trees"), "float32")


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
