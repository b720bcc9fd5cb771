"""Sliding windows in config.json: which layers have one, and what is refused."""

from __future__ import annotations

import pytest
from support.checkpoints import TargetSpec
from test_config import parse

from eagle31rt.errors import CheckpointError, UnsupportedError


@pytest.mark.parametrize("window", [None, 16, 100_000])
def test_sliding_window_of_mistral(window: int | None) -> None:
    config = parse(TargetSpec(model_type="mistral"), sliding_window=window)
    assert config["sliding_windows"] == [window or 0] * 4


def test_sliding_window_of_upper_layers() -> None:
    on = {"use_sliding_window": True, "sliding_window": 16}
    for model_type in ("qwen2", "qwen3"):
        spec = TargetSpec(model_type=model_type)
        assert parse(spec, **on, max_window_layers=3)["sliding_windows"] == [0, 0, 0, 16]
        assert parse(spec, **on)["sliding_windows"] == [0] * 4  # the default is layer 28
        types = ["sliding_attention", "full_attention"] * 2
        assert parse(spec, **on, max_window_layers=3, layer_types=types)["sliding_windows"] == [16, 0, 16, 0]


def test_inert_sliding_window_of_qwen2() -> None:
    config = {"sliding_window": 16, "use_sliding_window": False, "max_window_layers": 2}
    assert parse(TargetSpec(model_type="qwen2"), **config)["model_type"] == "qwen2"
    assert parse(TargetSpec(model_type="qwen2"), layer_types=["full_attention"] * 4, sliding_window=16)


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "window without a size": (
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
        'lacks "sliding_window"',
    ),
    "layer types of other layers": (
        {"model_type": "qwen2", "layer_types": ["full_attention"] * 3},
        '"layer_types" has 3 entries for 4 layers',
    ),
    "windows switched off": (
        {
            "model_type": "qwen2",
            "use_sliding_window": False,
            "sliding_window": 8,
            "layer_types": ["sliding_attention"] * 4,
        },
        '"use_sliding_window" is false',
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_value(case: str) -> None:
    changes, message = WRONG[case]
    with pytest.raises(CheckpointError, match=message):
        parse(**changes)


def test_other_types_of_layers() -> None:
    with pytest.raises(UnsupportedError, match='"linear_attention"; only full_attention and sliding_attention'):
        parse(TargetSpec(model_type="qwen2"), layer_types=["linear_attention"] * 4)
