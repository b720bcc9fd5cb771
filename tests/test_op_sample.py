"""The sample operator against an independent implementation of its integer law, and as a law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sampling import DRAFT, UNIT, awkward_logits, chi_square_ok, columns, draw, law_weights

from eagle31rt import _testing

WHERE = ["reference", *_testing.available_instruction_sets()]
where = pytest.mark.parametrize("where", WHERE)


def exp(x: np.ndarray) -> np.ndarray:
    return _testing.exponentials(x.astype(np.float32), "scalar")


def sample(where: str, logits: np.ndarray, vocab_size: int | None = None, threads: int = 1, **given: Any) -> np.ndarray:
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    purpose, index = given.pop("purpose", 0), given.pop("noise_index", 0)
    rows = columns(len(logits), **given)
    ids, _ = _testing.sample(where, logits, rows, vocab_size or logits.shape[1], purpose, index, False, threads)
    return ids


def weights(where: str, logits: np.ndarray, **given: Any) -> np.ndarray:
    logits = np.atleast_2d(np.asarray(logits, np.float32))
    rows = columns(len(logits), **given)
    return _testing.sample(where, logits, rows, logits.shape[1], weights=True)[1]


@where
@pytest.mark.parametrize("vocab_size", [1, 2, 17, 512, 1300])
def test_law_and_ids_equal_the_independent_implementation(where: str, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    num_rows = 120
    logits = awkward_logits(rng, num_rows, vocab_size)
    masks = [rng.integers(-1, vocab_size + 1, n) for n in rng.integers(0, 4, num_rows)]
    rows = columns(
        num_rows,
        temperature=rng.choice([0, 1e-5, 0.3, 1, 3], num_rows),
        top_k=rng.choice([0, 1, 2, 7, 50, vocab_size, 10**6], num_rows),
        top_p=rng.choice([1, 0.95, 0.5, 0.1, 1e-30], num_rows),
        min_p=rng.choice([0, 0, 0.01, 0.3, 1], num_rows),
        seed=rng.integers(0, 2**63, num_rows),
        position=rng.integers(0, 2**40, num_rows),
        masked_begin=np.cumsum([0, *map(len, masks)]),
        masked_ids=np.concatenate(masks),
    )
    ids, law = _testing.sample(where, logits, rows, vocab_size, weights=True, num_threads=2)
    for r in range(num_rows):
        filters = [rows[key][r] for key in ("temperature", "top_k", "top_p", "min_p")]
        expected = law_weights(exp, logits[r], *filters, masked=masks[r])
        assert law[r].tolist() == expected, (r, filters)
        bits = _testing.random_bits64(int(rows["seed"][r]), int(rows["position"][r]), 0, 0)
        assert ids[r] == draw(expected, bits)


@where
def test_many_seeds_draw_the_ids_of_the_law(where: str) -> None:
    logits = np.random.default_rng(3).standard_normal(700).astype(np.float32) * 2
    seeds = np.arange(2000)
    given: dict[str, Any] = {"temperature": 0.9, "top_k": 300, "top_p": 0.9}
    ids = sample(where, np.tile(logits, (2000, 1)), seed=seeds, position=5, **given)
    law = law_weights(exp, logits, 0.9, 300, 0.9)
    assert ids.tolist() == [draw(law, _testing.random_bits64(s, 5, 0, 0)) for s in range(2000)]


def test_every_threshold_draws_its_id() -> None:
    long = [0] * 1300
    long[3], long[511], long[512], long[1299] = 2, 1, 3, 1
    for weights in ([2, 0, 3], [0, 0, 1], [1, 1, 0], long):
        ids = [i for i, weight in enumerate(weights) for _ in range(weight)]
        total = len(ids)
        for threshold, expected in enumerate(ids):
            first, last = -(-(threshold << 64) // total), -(-((threshold + 1) << 64) // total) - 1
            for bits in (first, last):
                assert _testing.draw_with_bits(weights, bits) == (expected, expected)


@where
def test_argmax_ties_nan_and_infinities(where: str) -> None:
    inf, nan = np.inf, np.nan
    rows = np.array(
        [
            [1, 3, 3, 2],
            [-0.0, 0.0, -1, -0.0],
            [nan, nan, -5, nan],
            [nan, -inf, nan, -inf],
            [-inf, -inf, -inf, -inf],
            [1, inf, nan, inf],
            [-inf, 3e38, -3e38, 0],
            [nan, 7, inf, -inf],
        ],
        np.float32,
    )
    expected = [1, 0, 2, -1, -1, 1, 1, 2]
    for given in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 1}, {"temperature": 2.0, "top_p": 1e-9}):
        assert sample(where, rows, **given).tolist() == expected, given
    # An infinite logit wins at any temperature, the lowest id of several.
    assert set(sample(where, np.tile(rows[5], (200, 1)), temperature=5.0, seed=np.arange(200))) == {1}


@where
@pytest.mark.parametrize("vocab_size", [3, 16, 31, 512, 1025])
def test_argmax_is_found_at_every_place(where: str, vocab_size: int) -> None:
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((vocab_size, vocab_size)).astype(np.float32) - 10
    logits[np.arange(vocab_size), np.arange(vocab_size)] = 0
    logits[:-1, -1] = 0  # a tie further on
    assert sample(where, logits, temperature=0.0).tolist() == list(range(vocab_size))


@where
def test_lanes_past_the_vocabulary_are_never_chosen(where: str) -> None:
    for vocab_size in (1, 15, 16, 17, 500, 513):
        logits = np.full((64, vocab_size + 9), np.inf, np.float32)
        logits[:, :vocab_size] = np.random.default_rng(0).standard_normal((64, vocab_size)) - 50
        for given in ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 1.0, "top_k": 3, "top_p": 0.9}):
            ids = sample(where, logits, vocab_size, seed=np.arange(64), **given)
            assert (ids >= 0).all() and (ids < vocab_size).all()


@where
def test_masked_ids_are_never_chosen(where: str) -> None:
    logits = np.tile(np.array([0, 9, 9, 1, 0], np.float32), (300, 1))
    masked = {"masked_begin": [0, 3] + [3] * 299, "masked_ids": [1, 2, 1]}
    assert sample(where, logits[:1], temperature=0.0, masked_begin=[0, 3], masked_ids=[1, 2, 1]).tolist() == [3]
    # Only the first row is masked; its neighbours are not.
    ids = sample(where, logits, temperature=1.0, seed=np.arange(300), threads=2, **masked)
    assert ids[0] not in (1, 2) and set(ids[1:]) >= {1, 2}
    everything = {"masked_begin": [0, 5], "masked_ids": [0, 1, 2, 3, 4]}
    assert sample(where, logits[:1], **everything).tolist() == [-1]


@where
def test_filters_that_are_off_change_no_bit(where: str) -> None:
    logits = awkward_logits(np.random.default_rng(1), 60, 333)
    plain = weights(where, logits, temperature=0.7)
    for given in ({"top_k": 333}, {"top_k": 2**31 - 1}, {"top_p": 1.0, "top_k": 0}, {"min_p": 0.0}):
        assert np.array_equal(weights(where, logits, temperature=0.7, **given), plain)
    assert not np.array_equal(weights(where, logits, temperature=0.7, top_k=332, top_p=0.99), plain)


@where
def test_top_k_one_is_argmax_even_where_weights_are_equal(where: str) -> None:
    # Neighbouring floats near 0.1 differ by 7e-9: exp of that is 1, so both weights are 2^44.
    low, high = np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1))
    row = np.array([low, high, low], np.float32)
    assert weights(where, row)[0].tolist() == [UNIT] * 3
    assert sample(where, np.tile(row, (50, 1)), top_k=1, seed=np.arange(50)).tolist() == [1] * 50
    assert weights(where, row, top_k=2)[0].tolist() == [UNIT, UNIT, 0]


@where
def test_filters_at_their_exact_edge(where: str) -> None:
    row = np.array([0, 0, -30.2, -np.inf], np.float32)
    assert weights(where, row)[0].tolist() == [UNIT, UNIT, 1, 0]
    # Half of 2^45 + 1 is half a unit more than the first id has.
    assert weights(where, row, top_p=0.5)[0].tolist() == [UNIT, UNIT, 0, 0]
    assert weights(where, row[[0, 1, 3]], top_p=0.5)[0].tolist() == [UNIT, 0, 0]
    assert weights(where, row, min_p=2.0**-44)[0].tolist() == [UNIT, UNIT, 1, 0]
    assert weights(where, row, min_p=2.0**-43)[0].tolist() == [UNIT, UNIT, 0, 0]
    assert weights(where, row, min_p=1.0)[0].tolist() == [UNIT, UNIT, 0, 0]
    # -0 and +0 are one value: ties go to the lowest id.
    zeros = np.array([-1, -0.0, 0.0, -0.0], np.float32)
    assert weights(where, zeros, top_k=2)[0].tolist() == [0, UNIT, UNIT, 0]


@where
def test_tiny_temperature_is_argmax(where: str) -> None:
    logits = np.random.default_rng(2).standard_normal((200, 1000)).astype(np.float32) * 10
    logits[:, 0] = -3e38  # far below everything: the difference overflows to -inf
    for temperature in (1e-5, 1e-30, 1e-45):
        ids = sample(where, logits, temperature=temperature, seed=np.arange(200))
        top_two = np.sort(logits, axis=1)[:, -2:]
        clear = top_two[:, 1] - top_two[:, 0] > 31 * 1e-5
        assert clear.sum() > 190
        assert np.array_equal(ids[clear], logits.argmax(1)[clear])


@where
def test_frequencies(where: str) -> None:
    rng = np.random.default_rng(4)
    logits = rng.standard_normal(16).astype(np.float32) * 1.5
    num = 20_000
    for given in ({}, {"top_k": 6}, {"top_p": 0.8}, {"min_p": 0.1, "temperature": 1.5}):
        ids = sample(where, np.tile(logits, (num, 1)), seed=7, position=np.arange(num), **given)
        p = np.exp((logits.astype(np.float64) - logits.max()) / given.get("temperature", 1.0))
        order = np.argsort(-p)
        kept = np.ones(16, bool)
        if "top_k" in given:
            kept[order[6:]] = False
        if "top_p" in given:
            kept[order[np.cumsum(p[order] / p.sum()) - p[order] / p.sum() >= 0.8]] = False
        if "min_p" in given:
            kept = p >= 0.1
        p = np.where(kept, p, 0)
        assert 1 < kept.sum() < 17
        assert chi_square_ok(np.bincount(ids, minlength=16), p / p.sum()), given


@where
def test_positions_seeds_purposes_and_places_are_independent(where: str) -> None:
    num = 20_000
    logits = np.zeros((num, 4), np.float32)
    keys: list[dict[str, Any]] = [
        {"seed": 11, "position": np.arange(num)},
        {"seed": 11, "position": np.arange(1, num + 1)},
        {"seed": 12, "position": np.arange(num)},
        {"seed": 11, "position": np.arange(num), "purpose": DRAFT},
        {"seed": 11, "position": np.arange(num), "purpose": DRAFT, "noise_index": 1},
    ]
    draws = [sample(where, logits, **key) for key in keys]
    for i, first in enumerate(draws):
        for second in draws[i + 1 :]:
            assert chi_square_ok(np.bincount(4 * first + second, minlength=16), np.full(16, 1 / 16))


@pytest.mark.parametrize("where", WHERE[1:])
def test_a_row_depends_on_itself_only(where: str) -> None:
    rng = np.random.default_rng(5)
    logits = awkward_logits(rng, 65, 1000)
    rows = columns(
        65,
        temperature=rng.choice([0, 0.8], 65),
        top_k=rng.choice([0, 20], 65),
        top_p=rng.choice([1, 0.9], 65),
        seed=np.arange(65),
    )
    together = _testing.sample(where, logits, rows, 1000, num_threads=2)[0]
    for r in range(65):
        alone = {key: value[r : r + 1] for key, value in rows.items()}
        assert _testing.sample(where, logits[r : r + 1], alone, 1000)[0][0] == together[r]


@where
def test_large_vocabulary(where: str) -> None:
    """262144 ids: sums of weights come near 2^62, and the last id can be drawn."""
    vocab_size = 262_144
    logits = np.zeros((6, vocab_size), np.float32)
    logits[3, -1] = 1
    given: dict[str, Any] = {
        "temperature": [1, 1, 1, 0, 1, 1],
        "top_k": [0, 100_000, 0, 0, 0, 1],
        "top_p": [1, 1, 0.25, 1, 1, 1],
        "seed": np.arange(6),
    }
    law = weights(where, logits, **given)
    assert law[0].sum(dtype=np.uint64) == vocab_size * UNIT
    assert (law[1] > 0).sum() == 100_000 and law[1][99_999] == UNIT and law[1][100_000] == 0
    assert (law[2] > 0).sum() == vocab_size // 4 and law[2][vocab_size // 4 - 1] == UNIT
    ids = sample(where, logits, **given)
    assert ids[0] == _testing.random_bits64(0, 0, 0, 0) >> 46
    assert ids[3] == vocab_size - 1 and ids[5] == 0
