"""Cost curves of the speculation controller: what they say between, beyond and against noisy samples."""

from __future__ import annotations

from itertools import pairwise

import pytest

from eagle31rt import _testing


def table(samples: dict[int, float], context: int = 100, least_slope: float = 0.35) -> _testing.CostTable:
    """Three equal samples for each number of rows."""
    made = _testing.CostTable(least_slope)
    for rows, seconds in samples.items():
        for _ in range(3):
            made.add(rows, context, seconds, 1, made.curve(context, 1))
    return made


def test_knots_are_dense_up_to_sixteen_rows_and_eight_to_an_octave() -> None:
    rows = [_testing.CostTable.rows_of_knot(knot) for knot in range(_testing.CostTable.NUM_KNOTS)]
    assert rows[:26] == [*range(1, 17), 18, 20, 22, 24, 26, 28, 30, 32, 36, 40]
    assert all(low < high for low, high in pairwise(rows)) and rows[-1] > 8192
    assert [_testing.CostTable.nearest_knot(r) for r in rows] == list(range(len(rows)))
    assert [rows[_testing.CostTable.nearest_knot(r)] for r in (17, 33, 35, 1 << 40)] == [16, 32, 36, rows[-1]]


def test_contexts_are_octaves_from_512_entries() -> None:
    buckets = [_testing.CostTable.context_bucket(c) for c in (0, 511, 512, 1023, 1024, 1 << 20, 1 << 60)]
    assert buckets == [0, 0, 1, 1, 2, 12, 15]


def test_curves_are_linear_between_samples_and_rise_beyond_them() -> None:
    curve = table({2: 1.0, 4: 3.0}).curve(100, 1)
    assert [curve.seconds(rows) for rows in (1, 2, 3, 4)] == pytest.approx([1.0, 1.0, 2.0, 3.0])
    assert curve.seconds(10) == pytest.approx(9.0)  # the last slope, 1 a row
    flat = table({8: 1.0, 16: 1.0}).curve(100, 1)
    assert flat.seconds(32) == pytest.approx(1 + 0.35 * 16 / 16)  # the least slope
    assert flat.deviation(16) < 0.1 < flat.deviation(12) < flat.deviation(32)


def test_an_unmeasured_table_is_empty_or_takes_the_other_ones_word() -> None:
    empty = _testing.CostTable(0.35)
    assert empty.curve(100, 1).empty() and empty.curve(100, 1).seconds(3) == 0
    other = table({1: 2.0})
    assert empty.curve(100, 1, other).seconds(1) == pytest.approx(2.0)
    assert empty.curve(100, 1, other).deviation(1) > other.curve(100, 1).deviation(1)


def test_curves_never_fall() -> None:
    curve = table({4: 3.0, 8: 2.0, 12: 4.0}).curve(100, 1)
    assert curve.seconds(4) == pytest.approx(2.5) and curve.seconds(8) == pytest.approx(2.5)
    assert curve.seconds(12) == pytest.approx(4.0)


def test_the_nearest_context_stands_in() -> None:
    made = table({1: 1.0}, context=100)
    for _ in range(3):
        made.add(1, 600_000, 5.0, 1, made.curve(600_000, 1))
    assert [made.curve(context, 1).seconds(1) for context in (100, 1000, 500_000)] == pytest.approx([1.0, 1.0, 5.0])
    assert made.curve(1000, 1).deviation(1) > made.curve(100, 1).deviation(1)


@pytest.mark.parametrize("outlier_at", range(5))
def test_an_outlier_among_the_first_samples_is_outvoted(outlier_at: int) -> None:
    made = _testing.CostTable(0.35)
    for i in range(5):
        made.add(1, 0, 2.0 if i == outlier_at else 1.0, i, made.curve(0, i))
    assert made.curve(0, 5).seconds(1) == pytest.approx(1.0)
    assert made.num_samples(1, 0) == 5 and made.num_samples(2, 0) == 0


def test_a_later_outlier_moves_little_and_a_lasting_change_wins() -> None:
    made = table({1: 1.0})
    for now in range(2, 40):
        made.add(1, 0, 1.0, now, made.curve(0, now))
    made.add(1, 0, 50.0, 41, made.curve(0, 41))
    assert 1.0 < made.curve(0, 41).seconds(1) < 1.02
    for now in range(42, 142):
        made.add(1, 0, 2.0, now, made.curve(0, now))
    assert made.curve(0, 142).seconds(1) == pytest.approx(2.0, rel=0.03)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_left_out(seconds: float) -> None:
    made = _testing.CostTable(0.35)
    made.add(1, 0, seconds, 1, made.curve(0, 1))
    assert made.curve(0, 1).empty()
