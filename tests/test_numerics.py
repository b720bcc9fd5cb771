"""exp and log: accuracy over the whole range; exp: the same bits from the scalar and every vector form."""

from __future__ import annotations

import numpy as np
import pytest

from eagle31rt import _testing

UNDERFLOW, OVERFLOW = np.float32(-87.3365), np.float32(88.7228)
FORMS = ["scalar", *_testing.available_instruction_sets()]


def inputs() -> np.ndarray:
    """A dense sweep of the range, random floats of every exponent, and the edges with their neighbours."""
    rng = np.random.default_rng(0)
    sweep = np.linspace(-90, 90, 400_001, dtype=np.float32)
    scales = (rng.standard_normal(200_000) * 2.0 ** rng.integers(-40, 8, 200_000)).astype(np.float32)
    halves = (np.arange(-126, 128) + 0.5) * np.log(2.0)  # where the reduction switches to the next power of two
    edges = np.concatenate([[0, -0.0, UNDERFLOW, OVERFLOW], halves, np.arange(-126, 128) * np.log(2.0)])
    edges = edges.astype(np.float32)
    near = [edges]
    for direction in (np.float32(-np.inf), np.float32(np.inf)):
        step = edges
        for _ in range(4):
            step = np.nextafter(step, direction)
            near.append(step)
    return np.concatenate([sweep, scales, *near])


@pytest.mark.parametrize("form", FORMS)
def test_relative_error(form: str) -> None:
    x = inputs()
    x = x[(x >= UNDERFLOW) & (x <= OVERFLOW)]
    exact = np.exp(x.astype(np.float64))
    y = _testing.exponentials(x, form).astype(np.float64)
    normal = exact >= np.finfo(np.float32).tiny
    error = np.abs(y - exact)[normal] / exact[normal]
    assert error.max() < 2.0**-22, x[normal][error.argmax()]
    assert np.all(y[~normal] <= np.finfo(np.float32).tiny)


@pytest.mark.parametrize("form", FORMS[1:])
def test_vector_bits_equal_scalar_bits(form: str) -> None:
    x = np.concatenate([inputs(), np.array([np.inf, -np.inf, np.nan, 1e38, -1e38, 1e-45, -1e-45], np.float32)])
    for length in (x.size, 1, 15, 17):  # whole vectors and tails
        scalar = _testing.exponentials(x[-length:], "scalar").view(np.uint32)
        vector = _testing.exponentials(x[-length:], form).view(np.uint32)
        assert np.array_equal(scalar, vector), x[-length:][scalar != vector][:5]


@pytest.mark.parametrize("form", FORMS)
def test_special_values(form: str) -> None:
    def exp(*values: float) -> np.ndarray:
        return _testing.exponentials(np.array(values, np.float32), form)

    below, above = np.nextafter(UNDERFLOW, np.float32(-100)), np.nextafter(OVERFLOW, np.float32(100))
    assert np.array_equal(exp(0.0, -0.0, 1e-45, -1e-45), np.ones(4, np.float32))
    assert np.array_equal(exp(below, -100, -1e38, -np.inf), np.zeros(4, np.float32))
    assert np.array_equal(exp(above, 100, 1e38, np.inf), np.full(4, np.inf, np.float32))
    assert np.isfinite(exp(OVERFLOW)).all() and exp(OVERFLOW)[0] > 3.4e38
    assert np.isnan(exp(np.nan)).all()
    # Sampling takes exp of values up to 0: no weight may exceed that of the maximum.
    tiny = -np.geomspace(1e-45, 1, 10_000, dtype=np.float32)
    assert np.all(_testing.exponentials(tiny, form) <= 1)


def test_log_relative_error() -> None:
    rng = np.random.default_rng(1)
    all_exponents = rng.integers(1, 0x7F800000, 500_000, dtype=np.uint32).view(np.float32)  # subnormals too
    near_one = np.float32(1) + rng.standard_normal(200_000).astype(np.float32) * np.float32(1e-3)
    around_switch = (np.sqrt(0.5) * (1 + np.linspace(-1e-5, 1e-5, 2001))).astype(np.float32)
    x = np.concatenate([all_exponents, near_one, around_switch, 2 * around_switch, np.array([1, 2, 0.5], np.float32)])
    exact = np.log(x.astype(np.float64))
    error = np.abs(_testing.logarithms(x) - exact)
    assert np.all(error <= 2.0**-23 * np.abs(exact)), x[np.argmax(error / np.maximum(np.abs(exact), 1e-30))]


def test_log_special_values() -> None:
    x = np.array([1, 0, -0.0, np.inf, -1, -np.inf, np.nan], np.float32)
    np.testing.assert_array_equal(_testing.logarithms(x), [0, -np.inf, -np.inf, np.inf, np.nan, np.nan, np.nan])
