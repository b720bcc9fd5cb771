"""Seeds of requests and samples: the same arithmetic as `derive_seed` of the core (csrc/base/philox.h)."""

from __future__ import annotations

_MASK32 = 2**32 - 1
_MASK64 = 2**64 - 1
_PURPOSE_SEED = 5


def derive_seed(seed: int, sample_index: int) -> int:
    """64-bit seed of sample `sample_index` (32 bits) of a request with `seed`; sample 0 keeps it.

    Philox4x32-10 with the seed as key and the counter (position 0, purpose "seed", sample index): the first 64 bits.
    """
    if sample_index == 0:
        return seed & _MASK64
    words = _philox4x32((0, 0, _PURPOSE_SEED, sample_index & _MASK32), seed & _MASK32, (seed >> 32) & _MASK32)
    return words[0] | (words[1] << 32)


def _philox4x32(counter: tuple[int, int, int, int], key0: int, key1: int) -> tuple[int, int, int, int]:
    for _ in range(10):
        product0, product1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = (
            (product1 >> 32) ^ counter[1] ^ key0,
            product1 & _MASK32,
            (product0 >> 32) ^ counter[3] ^ key1,
            product0 & _MASK32,
        )
        key0, key1 = (key0 + 0x9E3779B9) & _MASK32, (key1 + 0xBB67AE85) & _MASK32
    return counter
