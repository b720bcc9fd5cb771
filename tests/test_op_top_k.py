"""The top_k operator against numpy: order, ties, what is left out, log-probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from support.sampling import awkward_logits

from eagle31rt import _testing

where = pytest.mark.parametrize("where", ["reference", *_testing.available_instruction_sets()])


def expected_top_k(row: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, ids and (in float64) log-probabilities of one row."""
    x = np.where(np.isnan(row), -np.inf, row.astype(np.float64))
    order = np.argsort(-x, kind="stable")[:k]
    order = order[x[order] > -np.inf]
    values, ids, logs = np.full(k, -np.inf), np.full(k, -1), np.full(k, -np.inf)
    values[: order.size], ids[: order.size] = x[order], order
    if order.size and values[0] == np.inf:
        logs[0] = 0
    elif order.size:
        logs[: order.size] = x[order] - values[0] - np.log(np.exp(x - values[0]).sum())
    return values, ids, logs


@where
@pytest.mark.parametrize(("vocab_size", "k"), [(1, 1), (1, 5), (17, 17), (600, 10), (1300, 64)])
def test_values_ids_and_log_probabilities(where: str, vocab_size: int, k: int) -> None:
    logits = awkward_logits(np.random.default_rng(k), 80, vocab_size + 3)
    values, ids, logs = _testing.top_k(where, logits, vocab_size, k, num_threads=2)
    for r, row in enumerate(logits[:, :vocab_size]):
        expected = expected_top_k(row, k)
        np.testing.assert_array_equal(values[r], expected[0])
        np.testing.assert_array_equal(ids[r], expected[1])
        np.testing.assert_allclose(logs[r], expected[2], rtol=3e-7, atol=3e-6)


@where
def test_probabilities_of_all_ids_sum_to_one(where: str) -> None:
    logits = np.random.default_rng(0).standard_normal((50, 64)).astype(np.float32) * 3
    logs = _testing.top_k(where, logits, 64, 64)[2]
    np.testing.assert_allclose(np.exp(logs.astype(np.float64)).sum(1), 1, rtol=2e-6)
    assert (np.diff(logs) <= 0).all()


@where
def test_ids_are_mapped_and_log_probabilities_may_be_left_out(where: str) -> None:
    logits = np.array([[1, 3, np.nan, 3, 2, -np.inf]], np.float32)
    target_ids = np.array([10, 20, 30, 40, 50, 60], np.int32)
    values, ids, logs = _testing.top_k(where, logits, 6, 6, target_ids, log_probabilities=False)
    assert ids.tolist() == [[20, 40, 50, 10, -1, -1]] and logs is None
    assert values.tolist() == [[3, 3, 2, 1, -np.inf, -np.inf]]
    assert _testing.top_k(where, logits, 3, 2, target_ids)[1].tolist() == [[20, 10]]  # lanes behind are not looked at
