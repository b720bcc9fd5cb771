"""The thread pool runs every task exactly once per call, call after call."""

import numpy as np
import pytest

from eagle31rt import _testing


@pytest.mark.parametrize("num_threads", range(1, 9))
@pytest.mark.parametrize("num_tasks", [1, 2, 3, 8, 100])
def test_every_task_runs_once_per_call(num_threads: int, num_tasks: int) -> None:
    counts = _testing.count_tasks(num_threads, num_tasks, 300)
    np.testing.assert_array_equal(counts, np.full(num_tasks, 300))


def test_no_tasks() -> None:
    assert _testing.count_tasks(3, 0, 10).size == 0
