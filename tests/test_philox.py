"""Philox4x32-10 against the published known-answer vectors, and what the runtime builds on it."""

from __future__ import annotations

import numpy as np
import pytest

from eagle31rt import _testing

# kat_vectors of the Random123 distribution: (counter, key, output)
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "output"), KNOWN_ANSWERS)
def test_known_answers(counter: str, key: str, output: str) -> None:
    assert _testing.philox4x32(words(counter), words(key)) == words(output)


def test_random_bits_use_every_part_of_the_key() -> None:
    seed, position, purpose, index = 0x0123456789ABCDEF, 0x1122334455667788, 3, 0x99AABBCC
    block = _testing.philox4x32([0x55667788, 0x11223344, purpose, index], [0x89ABCDEF, 0x01234567])
    assert _testing.random_bits64(seed, position, purpose, index) == block[0] | block[1] << 32
    keys = {(0, 0, 0, 0)} | {(1 << b, 0, 0, 0) for b in range(64)} | {(0, 1 << b, 0, 0) for b in range(63)}
    keys |= {(0, 0, purpose, 0) for purpose in range(1, 6)} | {(0, 0, 0, 1 << b) for b in range(32)}
    assert len({_testing.random_bits64(*key) for key in keys}) == len(keys)


def test_bits_are_uniform_and_neighbours_uncorrelated() -> None:
    bits = np.array([[_testing.random_bits64(s, p, 0, 0) for p in range(64)] for s in range(256)], dtype=np.uint64)
    u = bits.astype(np.float64) / 2.0**64
    counts = np.bincount((u.ravel() * 64).astype(int), minlength=64)
    expected = u.size / 64
    assert ((counts - expected) ** 2 / expected).sum() < 63 + 10 * np.sqrt(2 * 63)
    limit = 5 / np.sqrt(u.size)  # five standard deviations of a correlation
    for a, b in [(u[:, 1:], u[:, :-1]), (u[1:], u[:-1])]:
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < limit


def test_derived_seeds() -> None:
    seed = 2**63 + 12345
    assert _testing.derive_seed(seed, 0) == seed
    seeds = [_testing.derive_seed(s, i) for s in (seed, seed + 1) for i in range(200)]
    assert len(set(seeds)) == len(seeds)
    assert _testing.derive_seed(seed, 7) == _testing.random_bits64(seed, 0, 5, 7)
