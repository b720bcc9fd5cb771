"""How close is close enough. One place, so that no test grows a tolerance of its own.

Operators carry an absolute and a relative bound against their reference in the operator table (cases.cpp). Beyond that:
an operator's error against float64 may be at most twice the error of a naive float32 version of the same formula, token
outputs are equal, and what design.md 3.1 calls row-exact is equal bit for bit.
"""

import numpy as np

NAIVE_FACTOR = 2.0  # design.md section 4
ROUNDING = 2.0**-23  # of float32; the floor under a naive version that happens to be exact


def assert_close_to_reference(actual: np.ndarray, reference: np.ndarray, absolute: float, relative: float) -> None:
    """|actual - reference| <= absolute + relative * |reference|, element by element; NaN only where both have one."""
    actual, reference = actual.astype(np.float64), reference.astype(np.float64)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(reference))
    error = np.abs(actual - reference) - (absolute + relative * np.abs(reference))
    worst = int(np.nanargmax(error)) if error.size else 0
    assert error.size == 0 or error.flat[worst] <= 0, (
        f"element {worst}: {actual.flat[worst]!r} against {reference.flat[worst]!r}"
    )


def root_mean_square(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(x))))


def assert_as_good_as_naive(actual: np.ndarray, naive: np.ndarray, exact: np.ndarray) -> None:
    """The error is at most twice that of the naive float32 version, both against float64, in the mean of squares and
    (with room for the luck of the largest of few) in the maximum."""
    assert exact.dtype == np.float64 and actual.shape == naive.shape == exact.shape
    for measure, factor in ((root_mean_square, NAIVE_FACTOR), (lambda x: float(np.max(np.abs(x))), 2 * NAIVE_FACTOR)):
        error = measure(actual - exact)
        bound = factor * max(measure(naive - exact), ROUNDING / 4 * measure(exact))
        assert error <= bound, f"error {error:.3g}, the naive version allows {bound:.3g}"
