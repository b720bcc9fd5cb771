"""The tolerance of logits: at most NAIVE_FACTOR times the error of naive float32 arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tolerances import NAIVE_FACTOR

from support.oracle import Arithmetic

_NAIVE_ORDERS = 8  # the error of one summation order is a matter of luck
# With a rounded cache, a value near the middle between two neighbours may go either way: a handful of such flips make
# the error, so that more orders are needed to see its size.
_NAIVE_ORDERS_ROUNDED_CACHE = 16


def naive_error(run: Callable[[Arithmetic], np.ndarray], arithmetic: Arithmetic) -> tuple[np.ndarray, float]:
    """(the float64 truth, the largest error of a naive float32 run) of what `run` computes under `arithmetic`."""
    truth = run(arithmetic)
    num_orders = _NAIVE_ORDERS if arithmetic.kv_dtype == "float32" else _NAIVE_ORDERS_ROUNDED_CACHE
    naive = (run(replace(arithmetic, dtype=np.float32, order_seed=seed)) for seed in range(num_orders))
    return truth, max(float(np.abs(values.astype(np.float64) - truth).max()) for values in naive)


def assert_as_good_as_float32(
    actual: np.ndarray, run: Callable[[Arithmetic], np.ndarray], arithmetic: Arithmetic, what: str
) -> float:
    """Returns the tolerance, for tests that show what exceeds it."""
    truth, naive = naive_error(run, arithmetic)
    assert actual.shape == truth.shape, f"{what}: shape {actual.shape} instead of {truth.shape}"
    error = float(np.abs(actual.astype(np.float64) - truth).max())
    assert error <= NAIVE_FACTOR * naive, f"{what}: error {error:.3e}, naive float32 has {naive:.3e}"
    return NAIVE_FACTOR * naive
