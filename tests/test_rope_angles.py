"""Rotary angles: against values worked out by hand and, where transformers is there, against its own tables."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from support.checkpoints import TargetSpec, target_config

from eagle31rt import _testing

POSITIONS = [0, 1, 2, 77, 4095, 131071]
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 8192}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096}

# name -> (head_dim, theta, rope_scaling)
CASES: dict[str, tuple[int, float, dict[str, Any] | None]] = {
    "default": (64, 1e4, None),
    "default, head_dim 24": (24, 1e6, None),
    "linear": (64, 1e4, {"rope_type": "linear", "factor": 4.0}),
    "llama3": (128, 5e5, LLAMA3),
    "yarn": (64, 1.5e5, YARN),
    "yarn, not truncated": (64, 1.5e5, {**YARN, "truncate": False}),
    "yarn, betas": (128, 5e4, {**YARN, "factor": 64.0, "beta_fast": 16.0, "beta_slow": 2.0}),
    "yarn, equal betas": (64, 5e4, {**YARN, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}),
    "yarn, mscale": (64, 1e4, {**YARN, "mscale": 0.707, "mscale_all_dim": 1.0}),
    "yarn, mscale without all_dim": (64, 1e4, {**YARN, "mscale": 0.707}),
    "yarn, attention factor": (64, 1e4, {**YARN, "attention_factor": 1.5}),
    "yarn, factor below 1": (64, 1e4, {**YARN, "factor": 0.5}),
    "yarn, short original length": (64, 1e4, {**YARN, "original_max_position_embeddings": 6}),
}


def angles(case: str, positions: list[int]) -> dict[str, Any]:
    head_dim, theta, scaling = CASES[case]
    spec = TargetSpec(head_dim=head_dim, rope_theta=theta, rope_scaling=scaling, max_position_embeddings=131072)
    return _testing.rope_angles(json.dumps(target_config(spec)), positions)


@pytest.mark.parametrize("case", CASES)
def test_cosine_and_sine_are_rounded_once(case: str) -> None:
    result = angles(case, POSITIONS)
    frequencies, factor = np.array(result["inverse_frequency"]), result["attention_factor"]
    angle = np.array(POSITIONS, dtype=np.float64)[:, None] * frequencies[None, :]
    assert result["cosine"].shape == (len(POSITIONS), CASES[case][0] // 2)
    # libm and numpy may differ in the last bit of the double, so in one float32 rounding
    np.testing.assert_array_max_ulp(result["cosine"], (np.cos(angle) * factor).astype(np.float32), maxulp=1)
    np.testing.assert_array_max_ulp(result["sine"], (np.sin(angle) * factor).astype(np.float32), maxulp=1)


def test_a_row_depends_on_its_position_only() -> None:
    together = angles("llama3", POSITIONS)
    for row, position in enumerate(POSITIONS):
        alone = angles("llama3", [position])
        assert alone["cosine"].tobytes() == together["cosine"][row].tobytes()
        assert alone["sine"].tobytes() == together["sine"][row].tobytes()


def test_default_frequencies() -> None:
    result = angles("default", [1])
    expected = [10000.0 ** (-2 * i / 64) for i in range(32)]
    np.testing.assert_allclose(result["inverse_frequency"], expected, rtol=1e-15)
    assert result["attention_factor"] == 1.0


def test_linear_divides_by_the_factor() -> None:
    plain, linear = (angles(case, [1])["inverse_frequency"] for case in ("default", "linear"))
    np.testing.assert_allclose(linear, np.array(plain) / 4.0, rtol=1e-15)


def test_llama3_by_hand() -> None:
    """Wavelength below 2048: kept; above 8192: divided by 8; between: blended by 8192 / wavelength."""
    found = np.array(angles("llama3", [1])["inverse_frequency"])
    plain = 500000.0 ** (-np.arange(64) / 64)
    wavelength = 2 * math.pi / plain
    short, long = wavelength < 2048, wavelength > 8192
    assert short.sum() == 29 and long.sum() == 29
    np.testing.assert_allclose(found[short], plain[short], rtol=1e-14)
    np.testing.assert_allclose(found[long], plain[long] / 8, rtol=1e-14)
    blend = (8192 / wavelength[~short & ~long] - 1) / 3
    middle = plain[~short & ~long]
    np.testing.assert_allclose(found[~short & ~long], (1 - blend) * middle / 8 + blend * middle, rtol=1e-14)


def test_yarn_by_hand() -> None:
    """nebius' gpt-oss head: dim 64, theta 150000, factor 32: indices up to 8 kept, from 18 on divided by 32."""
    result = angles("yarn", [1])
    found, plain = np.array(result["inverse_frequency"]), 150000.0 ** (-np.arange(32) / 32)
    low = math.floor(64 * math.log(4096 / (32 * 2 * math.pi)) / (2 * math.log(150000)))
    high = math.ceil(64 * math.log(4096 / (2 * math.pi)) / (2 * math.log(150000)))
    assert (low, high) == (8, 18)
    np.testing.assert_allclose(found[:9], plain[:9], rtol=1e-14)
    np.testing.assert_allclose(found[18:], plain[18:] / 32, rtol=1e-14)
    np.testing.assert_allclose(found[13], plain[13] * (0.5 / 32 + 0.5), rtol=1e-14)
    assert result["attention_factor"] == pytest.approx(0.1 * math.log(32) + 1, rel=1e-15)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("yarn, attention factor", 1.5),
        ("yarn, equal betas", 1.0),
        ("yarn, mscale", (0.1 * 0.707 * math.log(32) + 1) / (0.1 * math.log(32) + 1)),
        ("yarn, mscale without all_dim", 0.1 * math.log(32) + 1),
        ("yarn, factor below 1", 1.0),
    ],
)
def test_yarn_attention_factor(case: str, expected: float) -> None:
    assert angles(case, [0])["attention_factor"] == pytest.approx(expected, rel=1e-14)
    # position 0: the cosine is the factor itself
    assert angles(case, [0])["cosine"][0, 0] == np.float32(expected)


@pytest.mark.dev
@pytest.mark.parametrize("case", CASES)
def test_equal_to_transformers(case: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the [dev] extra (torch)")
    transformers = pytest.importorskip("transformers", reason="needs the [dev] extra (transformers)")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    head_dim, theta, scaling = CASES[case]
    parameters = {"rope_type": "default", **(scaling or {}), "rope_theta": theta}
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim, num_attention_heads=4, head_dim=head_dim, max_position_embeddings=131072,
        rope_parameters=parameters,
    )  # fmt: skip
    rotary = LlamaRotaryEmbedding(config)
    result = angles(case, [0, 1, 2, 77])
    # transformers computes frequencies in float32
    np.testing.assert_allclose(rotary.inv_freq.numpy(), result["inverse_frequency"], rtol=2e-6)
    assert rotary.attention_scaling == pytest.approx(result["attention_factor"], rel=1e-6)
    cosine, sine = rotary(torch.zeros(1), torch.tensor([[0, 1, 2, 77]]))
    np.testing.assert_allclose(cosine[0, :, : head_dim // 2].numpy(), result["cosine"], atol=1e-4)
    np.testing.assert_allclose(sine[0, :, : head_dim // 2].numpy(), result["sine"], atol=1e-4)
