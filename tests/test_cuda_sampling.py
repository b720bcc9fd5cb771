"""CUDA against the CPU, byte for byte: sampling, chain verification, top_k, and elementwise operators that promise it.

Vocabularies below, at and past the widths of warps and blocks, rows at every alignment, and logits that send the
selection down its rare paths: more than 1024 ids in one bucket by ties, tiny differences or high temperatures.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.sampling import DRAFT, awkward_logits, columns, random_chains, with_padding
from tolerances import assert_as_good_as_naive

from eagle31rt import _testing

pytestmark = pytest.mark.cuda
CPU = _testing.available_instruction_sets()[0]
fused_cpu = pytest.mark.skipif(CPU == "generic", reason="the generic CPU operators round products before adding")
METHODS = ["equality", "standard", "block", "synthetic"]


def random_rows(rng: np.random.Generator, num_rows: int, vocab_size: int) -> dict[str, np.ndarray]:
    masks = [rng.integers(-1, vocab_size + 1, n) for n in rng.choice([0, 0, 1, 5, vocab_size], num_rows)]
    return columns(
        num_rows,
        temperature=rng.choice([0, 1e-5, 0.3, 1, 3, 1e4], num_rows),
        top_k=rng.choice([0, 0, 1, 2, 7, 50, 1500, vocab_size], num_rows),
        top_p=rng.choice([1, 1, 0.95, 0.5, 0.1, 1e-30], num_rows),
        min_p=rng.choice([0, 0, 0.01, 0.3, 1], num_rows),
        seed=rng.integers(0, 2**63, num_rows),
        position=rng.integers(0, 2**40, num_rows),
        masked_begin=np.cumsum([0, *map(len, masks)]),
        masked_ids=np.concatenate(masks),
    )


def assert_same_samples(logits: np.ndarray, rows: dict[str, np.ndarray], vocab_size: int, **given: Any) -> None:
    expected = _testing.sample(CPU, logits, rows, vocab_size, num_threads=2, **given)
    found = _testing.sample("cuda", logits, rows, vocab_size, **given)
    assert np.flatnonzero(expected[0] != found[0]).tolist() == []
    if given.get("weights"):
        assert np.flatnonzero((expected[1] != found[1]).any(1)).tolist() == []


@pytest.mark.parametrize("vocab_size", [1, 2, 17, 31, 32, 33, 100, 129, 515])
def test_ids_of_small_vocabularies(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    for width in range(vocab_size, vocab_size + 4):  # every alignment of a row
        logits = awkward_logits(rng, 250, width)
        assert_same_samples(logits, random_rows(rng, 250, vocab_size), vocab_size)


@pytest.mark.parametrize("vocab_size", [1, 33, 1300, 5001])
def test_whole_laws(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = awkward_logits(rng, 100, vocab_size + 1)
    assert_same_samples(logits, random_rows(rng, 100, vocab_size), vocab_size, weights=True)


def test_noise_is_keyed_by_purpose_and_place() -> None:
    logits = np.tile(np.random.default_rng(0).standard_normal(300).astype(np.float32), (200, 1))
    rows = columns(200, seed=np.arange(200) << 33, position=np.arange(200) << 31)
    assert_same_samples(logits, rows, 300, purpose=DRAFT, noise_index=3)


@pytest.mark.parametrize("vocab_size", [32_000, 128_256])
def test_large_vocabularies(vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = (rng.standard_normal((6, vocab_size)) * 3).astype(np.float32)
    logits[5] = np.round(logits[5] * 4) / 4
    rows = columns(
        6,
        temperature=[0, 1, 0.7, 1, 50, 0.8],
        top_k=[0, 0, 50, 0, 20_000, 3000],
        top_p=[1, 1, 1, 0.9, 0.5, 0.99],
        min_p=[0, 0, 0, 0.01, 0, 0],
        seed=rng.integers(0, 2**63, 6),
        position=77,
        masked_begin=[0, 0, 3, 3, 3, 3, 3],
        masked_ids=[5, vocab_size - 1, 31],
    )
    assert_same_samples(logits, rows, vocab_size)


def test_selection_among_crowded_buckets() -> None:
    """3000 ids in few buckets: bisection until 1024 are left, at both ends and in the middle of the ties."""
    rng = np.random.default_rng(9)
    vocab_size = 3000
    kinds = [
        np.zeros(vocab_size),
        rng.integers(0, 2, vocab_size) * 1e-3,
        rng.standard_normal(vocab_size) * 1e-6,
        np.linspace(0, 1e-4, vocab_size),
        rng.standard_normal(vocab_size),
    ]
    filters = [{"top_k": k} for k in (2, 1023, 1024, 1025, 1500, 2999)]
    filters += [{"top_p": p} for p in (1e-4, 0.2, 0.5, 0.999)] + [{"top_k": 2000, "top_p": 0.6}]
    for given in filters:
        logits = np.stack(kinds).astype(np.float32)
        rows = columns(5, seed=np.arange(5), temperature=[1, 1, 1, 1, 200], **given)
        assert_same_samples(logits, rows, vocab_size, weights=True)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
def test_verification(method: str, drawn: bool) -> None:
    for seed, num, vocab_size in [(2, 300, 90), (3, 60, 1100), (4, 3, 20_000)]:
        logits, rows, chains = random_chains(seed, num, vocab_size)
        if not drawn:
            del chains["draft_logits"]
        expected = _testing.verify_chain(CPU, method, logits, rows, vocab_size, chains, num_threads=2)
        found = _testing.verify_chain("cuda", method, logits, rows, vocab_size, chains)
        assert np.array_equal(expected[0], found[0]) and np.array_equal(expected[1], found[1])
        assert num < 60 or len(set(expected[0])) > 4


@pytest.mark.parametrize("method", ["standard", "block"])
def test_verification_with_a_draft_vocabulary(method: str) -> None:
    logits, rows, chains = random_chains(5, 200, 700)
    rng = np.random.default_rng(6)
    target_ids = np.sort(rng.choice(700, 250, replace=False)).astype(np.int32)
    draft_ids = np.searchsorted(target_ids, np.clip(chains["draft_token_ids"], 0, 699)) % 250
    known = rng.random(draft_ids.size) < 0.9  # others are drafts that the draft could not have drawn
    drafts = np.where(known, target_ids[draft_ids], chains["draft_token_ids"])
    draft_logits = rng.standard_normal((len(logits), 250)).astype(np.float32)
    draft_logits[np.arange(len(logits) - 1), draft_ids[1:]] += 5
    logits[np.arange(len(logits) - 1), np.clip(drafts[1:], 0, 699)] += 4  # so that some are accepted
    draft_logits[::17, 3] = np.inf  # no finite law: a point on the draft
    chains |= {"draft_token_ids": drafts, "draft_logits": draft_logits, "draft_to_target": target_ids}
    expected = _testing.verify_chain(CPU, method, logits, rows, 700, chains)
    found = _testing.verify_chain("cuda", method, logits, rows, 700, chains)
    assert len(set(expected[0])) > 4
    assert np.array_equal(expected[0], found[0]) and np.array_equal(expected[1], found[1])


@pytest.mark.parametrize("method", METHODS)
def test_padding_is_inert(method: str) -> None:
    logits, rows, chains = random_chains(7, 40, 90)
    expected = _testing.verify_chain(CPU, method, logits, rows, 90, chains)
    padded, is_request = with_padding(chains)
    accepted, emitted = _testing.verify_chain("cuda", method, logits, rows, 90, padded)
    assert np.array_equal(accepted[is_request], expected[0]) and (accepted[~is_request] == -1).all()
    assert np.array_equal(emitted, expected[1])
    end = chains["row_begin"][-4]
    fewer = chains | {"row_begin": chains["row_begin"][:-3]}
    accepted, emitted = _testing.verify_chain("cuda", method, logits, rows, 90, fewer)
    assert np.array_equal(accepted, expected[0][:-3]) and np.array_equal(emitted[:end], expected[1][:end])
    assert (emitted[end:] == -7).all()  # the binding's filling


@pytest.mark.parametrize(
    ("vocab_size", "k", "num_rows"),
    [(1, 4, 50), (100, 1, 300), (333, 10, 300), (2100, 64, 60), (5000, 8, 40), (32_000, 10, 3), (128_256, 64, 2)],
)
def test_top_k(vocab_size: int, k: int, num_rows: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = awkward_logits(rng, num_rows, vocab_size + 1)
    logits[-1] = 0  # ties all over
    target_ids = None if k % 10 else np.sort(rng.integers(0, 2**20, vocab_size)).astype(np.int32)
    expected = _testing.top_k(CPU, logits, vocab_size, k, target_ids, num_threads=2)
    found = _testing.top_k("cuda", logits, vocab_size, k, target_ids)
    for wanted, got in zip(expected, found, strict=True):
        assert np.flatnonzero((wanted.view(np.uint32) != got.view(np.uint32)).any(1)).tolist() == []


def with_specials(x: np.ndarray) -> np.ndarray:
    specials = np.array([0, -0.0, np.inf, -np.inf, np.nan, 88.8, -88.8, 1e-45, -1e-45, 3e38, -3e38], np.float32)
    x.reshape(-1)[: specials.size * 7 : 7] = specials
    return x


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


@fused_cpu
@pytest.mark.parametrize("intermediate_size", [1, 3, 1024, 1026, 2500])
def test_silu_mul_has_the_bits_of_the_cpu(intermediate_size: int) -> None:
    x = with_specials(normal(1, 60, 2 * intermediate_size, scale=10.0))
    expected, found = (_testing.silu_mul(x, _testing.Runner(mode)) for mode in ("cpu", "cuda"))
    np.testing.assert_array_equal(np.isnan(expected), np.isnan(found))
    assert np.array_equal(np.nan_to_num(expected).view(np.uint32), np.nan_to_num(found).view(np.uint32))


@fused_cpu
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim", "rest"), [(64, 64, 64), (80, 80, 7), (128, 66, 128), (6, 4, 1)])
def test_rope_has_the_bits_of_the_cpu(head_dim: int, rotary_dim: int, rest: int, interleaved: bool) -> None:
    qkv = with_specials(normal(2, 21, 12 * head_dim + rest))
    angles = np.arange(21)[:, None] * 10000.0 ** (-np.arange(rotary_dim // 2) / (rotary_dim // 2))
    cosine, sine = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    expected, found = (
        _testing.rope(qkv, cosine, sine, 9, 3, head_dim, interleaved, _testing.Runner(mode)) for mode in ("cpu", "cuda")
    )
    np.testing.assert_array_equal(np.isnan(expected), np.isnan(found))
    assert np.array_equal(np.nan_to_num(expected).view(np.uint32), np.nan_to_num(found).view(np.uint32))


@pytest.mark.parametrize("hidden_size", [1, 6, 576, 4096, 5001, 13_000])  # the last does not fit in shared memory
def test_rms_norm(hidden_size: int) -> None:
    x, delta, weight = normal(3, 5, hidden_size, scale=20.0), normal(4, 5, hidden_size), normal(5, hidden_size) + 1
    output, residual = _testing.rms_norm(x, weight, 1e-5, delta, _testing.Runner("cuda"))
    np.testing.assert_array_equal(residual, x + delta)

    def formula(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
        mean = np.cumsum(x * x, axis=1)[:, -1:] / x.dtype.type(hidden_size)
        return x / np.sqrt(mean + x.dtype.type(1e-5)) * weight

    exact = formula(residual.astype(np.float64), weight.astype(np.float64))
    assert_as_good_as_naive(output, formula(residual, weight), exact)
