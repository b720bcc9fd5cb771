"""The coin-driven verification operator: chi-square of what it emits, over rounds, and its walk by equality.

Target and draft are Markov chains over 16 tokens; the draft's logits are MINUS the target's, the case in which noise
shared between draft, coin and residual shows most. Each of many requests has its own seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.sampling import DRAFT, SYNTHETIC, chi_square_ok, columns, random_chains, with_padding

from eagle31rt import _testing

VOCAB = 16
INSTRUCTION_SETS = _testing.available_instruction_sets()
FASTEST = INSTRUCTION_SETS[0]
TARGET = np.random.default_rng(21).standard_normal((VOCAB, VOCAB)).astype(np.float32)  # logits after each token
ratio_methods = pytest.mark.parametrize("method", ["standard", "block"])


def law_of(logits: np.ndarray) -> np.ndarray:
    p = np.exp(logits.astype(np.float64))
    return p / p.sum(-1, keepdims=True)


P, Q = law_of(TARGET), law_of(-TARGET)
UNTOUCHED = -7  # what the test binding fills outputs with
FIRST = 3  # the committed token that every request starts from


@dataclass(frozen=True)
class Round:
    drafts: np.ndarray  # [N, k]
    num_accepted: np.ndarray  # [N]
    emitted: np.ndarray  # [N, k + 1], -1 behind


def run_round(
    method: str,
    last: np.ndarray,
    position: np.ndarray,
    seed: np.ndarray,
    k: int,
    table: np.ndarray = TARGET,
    **given: Any,
) -> Round:
    """One round of N requests: drafts drawn one after the other, then verified. `last` [N]: newest committed tokens."""
    num = len(last)
    tokens = np.empty((num, k + 1), np.int32)
    tokens[:, 0] = last
    for place in range(k):
        rows = columns(num, seed=seed, position=position + place)
        tokens[:, place + 1] = _testing.sample(
            FASTEST, -table[tokens[:, place]], rows, VOCAB, purpose=DRAFT, noise_index=place, num_threads=2
        )[0]
    logits = table[tokens].reshape(-1, VOCAB)
    rows = columns(
        num * (k + 1), seed=np.repeat(seed, k + 1), position=(position[:, None] + np.arange(k + 1)).ravel(), **given
    )
    chains = {
        "row_begin": np.arange(num + 1) * (k + 1),
        "draft_token_ids": tokens.ravel(),
        "draft_logits": -logits,
    }
    accepted, emitted = _testing.verify_chain(FASTEST, method, logits, rows, VOCAB, chains, num_threads=2)
    return Round(tokens[:, 1:], accepted, emitted.reshape(num, k + 1))


def decode(method: str, num: int, num_tokens: int, k: int) -> np.ndarray:
    """num requests decoded in rounds of k drafts until each has num_tokens tokens."""
    out = np.full((num, num_tokens + k + 2), -1, np.int32)
    out[:, 0] = FIRST
    length = np.ones(num, np.int64)
    while (active := np.flatnonzero(length <= num_tokens)).size:
        last = out[active, length[active] - 1]
        result = run_round(method, last, length[active] + 100, active.astype(np.uint64), k)
        for place in range(k + 1):
            write = result.num_accepted >= place
            out[active[write], length[active[write]] + place] = result.emitted[write, place]
        length[active] += result.num_accepted + 1
    return out[:, 1 : num_tokens + 1]


def pair_counts(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.bincount(VOCAB * first + second, minlength=VOCAB * VOCAB).reshape(VOCAB, VOCAB)


@ratio_methods
def test_one_round(method: str) -> None:
    num, k = 40_000, 2
    result = run_round(method, np.full(num, FIRST), np.full(num, 50), np.arange(num, dtype=np.uint64), k)
    emitted, accepted = result.emitted, result.num_accepted
    assert np.array_equal(np.bincount(accepted) > 1000, [True] * (k + 1))
    for n in range(k + 1):  # what is emitted: accepted drafts, one more token, nothing behind
        rows = accepted == n
        assert np.array_equal(emitted[rows, :n], result.drafts[rows, :n])
        assert (emitted[rows, n] >= 0).all() and (emitted[rows, n + 1 :] == -1).all()
    assert chi_square_ok(np.bincount(emitted[:, 0], minlength=VOCAB), P[FIRST])
    residual = np.maximum(P[FIRST] - Q[FIRST], 0)
    assert chi_square_ok(np.bincount(emitted[accepted == 0, 0], minlength=VOCAB), residual)  # recovered token
    full = accepted == k
    assert chi_square_ok(pair_counts(emitted[full, k - 1], emitted[full, k]), P)  # bonus, given the token before it
    if method == "standard":  # block verification looks ahead: there, later tokens depend on the accepted length
        some = accepted >= 1
        assert chi_square_ok(pair_counts(emitted[some, 0], emitted[some, 1]), P)
        recovered = accepted == 1
        law = np.maximum(P - Q, 0)
        assert chi_square_ok(pair_counts(emitted[recovered, 0], emitted[recovered, 1]), law)
    # The measured acceptance is that of the laws.
    rate = np.minimum(P[FIRST], Q[FIRST]).sum()
    if method == "standard":
        assert abs((accepted >= 1).mean() - rate) < 5 * np.sqrt(rate * (1 - rate) / num)
    else:
        assert accepted.mean() > rate + rate * np.minimum(P, Q).sum(1).min()


@ratio_methods
@pytest.mark.parametrize("k", [1, 3])
def test_many_rounds(method: str, k: int) -> None:
    """Every token given the one before it, and three in a row: noise of one round must not leak into the next."""
    tokens = decode(method, 40_000, 5, k)
    assert chi_square_ok(np.bincount(tokens[:, 0], minlength=VOCAB), P[FIRST])
    for n in range(1, 5):
        assert chi_square_ok(pair_counts(tokens[:, n - 1], tokens[:, n]), P), n
    for n in range(2, 5):  # the Markov property: given the middle token, the outer ones are independent
        for middle in range(0, VOCAB, 5):
            rows = tokens[:, n - 1] == middle
            counts = pair_counts(tokens[rows, n - 2], tokens[rows, n])
            assert chi_square_ok(counts, np.broadcast_to(P[middle], (VOCAB, VOCAB))), (n, middle)


@ratio_methods
def test_rounds_are_independent(method: str) -> None:
    """Where laws do not depend on the prefix, neither may a round on the one before it.

    Block verification decides by coins and drafts behind the token where a round ends; met again, they would tell.
    """
    num, k = 40_000, 3
    table = np.tile(TARGET[FIRST] * 0.5, (VOCAB, 1))
    seed, start = np.arange(num, dtype=np.uint64), np.full(num, FIRST)
    first = run_round(method, start, np.full(num, 100), seed, k, table)
    second = run_round(method, start, 101 + first.num_accepted, seed, k, table)
    counts = np.bincount((k + 1) * first.num_accepted + second.num_accepted).reshape(k + 1, k + 1)
    assert chi_square_ok(counts, np.broadcast_to(counts.sum(1) / num, (k + 1, k + 1)))
    assert chi_square_ok(pair_counts(first.num_accepted, second.emitted[:, 0])[: k + 1], law_of(table[: k + 1]))
    # A draft of the second round tells nothing about the draft of the first at the same position.
    refused = first.num_accepted == 0
    pairs = pair_counts(first.drafts[refused, 1], second.drafts[refused, 0])
    seen = pairs.sum(1) > 100
    assert seen.sum() > 8 and chi_square_ok(pairs[seen], law_of(-table[seen]))


@ratio_methods
def test_joint_law_of_two_tokens_and_independent_neighbours(method: str) -> None:
    tokens = decode(method, 40_000, 2, 2)
    assert chi_square_ok(pair_counts(tokens[:, 0], tokens[:, 1]).ravel(), (P[FIRST][:, None] * P).ravel())
    neighbours = pair_counts(tokens[0::2, 0], tokens[1::2, 0]).ravel()
    assert chi_square_ok(neighbours, np.outer(P[FIRST], P[FIRST]).ravel())


@ratio_methods
def test_filters_hold_for_recovered_and_bonus_tokens(method: str) -> None:
    num = 20_000
    seeds = np.arange(num, dtype=np.uint64)
    result = run_round(method, np.full(num, FIRST), np.full(num, 50), seeds, 1, top_k=5, temperature=1.0)
    kept = np.zeros((VOCAB, VOCAB), bool)
    np.put_along_axis(kept, np.argsort(-TARGET, axis=1)[:, :5], True, axis=1)
    law = np.where(kept, P, 0)
    law /= law.sum(1, keepdims=True)
    assert chi_square_ok(np.bincount(result.emitted[:, 0], minlength=VOCAB), law[FIRST])
    full = result.num_accepted == 1
    assert full.sum() > 1000
    assert chi_square_ok(pair_counts(result.emitted[full, 0], result.emitted[full, 1]), law)


@pytest.mark.parametrize("instruction_set", ["reference", *INSTRUCTION_SETS])
def test_equality_emits_the_plain_samples(instruction_set: str) -> None:
    logits, rows, chains = random_chains(1, 200, 90)
    plain, _ = _testing.sample("reference", logits, rows, 90)
    accepted, emitted = _testing.verify_chain(instruction_set, "equality", logits, rows, 90, chains, num_threads=2)
    assert len(set(accepted)) == 8
    for i, (begin, end) in enumerate(zip(chains["row_begin"][:-1], chains["row_begin"][1:], strict=True)):
        drafts = chains["draft_token_ids"][begin + 1 : end]
        n = 0
        while n < len(drafts) and drafts[n] >= 0 and drafts[n] == plain[begin + n]:
            n += 1
        if plain[begin + n] < 0:
            n -= 1  # what plain decoding emits before it fails
        assert accepted[i] == n
        assert emitted[begin:end].tolist() == plain[begin : begin + n + 1].tolist() + [-1] * (end - begin - n - 1)


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("method", ["standard", "block", "synthetic"])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
def test_every_instruction_set_equals_the_reference(instruction_set: str, method: str, drawn: bool) -> None:
    for seed, vocab_size in [(2, 90), (3, 1100)]:
        logits, rows, chains = random_chains(seed, 60, vocab_size)
        if not drawn:
            del chains["draft_logits"]
        expected = _testing.verify_chain("reference", method, logits, rows, vocab_size, chains)
        assert len(set(expected[0])) > 4
        found = _testing.verify_chain(instruction_set, method, logits, rows, vocab_size, chains, num_threads=2)
        assert np.array_equal(expected[0], found[0]) and np.array_equal(expected[1], found[1])


@pytest.mark.parametrize("method", ["equality", "standard", "block", "synthetic"])
def test_a_row_without_any_law_fails_its_request_only(method: str) -> None:
    logits = np.zeros((6, VOCAB), np.float32)
    logits[2:4] = [[-np.inf] * VOCAB, [np.nan] * VOCAB]
    rows = columns(6, seed=np.arange(6), temperature=1.0)
    drafts = {"row_begin": [0, 2, 4, 6], "draft_token_ids": np.full(6, -1), "acceptance_rates": np.zeros(6)}
    accepted, emitted = _testing.verify_chain(FASTEST, method, logits, rows, VOCAB, drafts)
    assert accepted.tolist() == [0, -1, 0]
    assert (emitted[[0, 4]] >= 0).all() and (emitted[[1, 2, 3, 5]] == -1).all()


@pytest.mark.parametrize("instruction_set", ["reference", *INSTRUCTION_SETS])
@pytest.mark.parametrize("method", ["equality", "standard", "block", "synthetic"])
def test_drafts_before_a_row_without_any_law_are_emitted(instruction_set: str, method: str) -> None:
    """The ids of plain decoding up to the row that fails, which is the first of the next round."""
    drafts = np.array([-1, 4, 2, 7, 7, -1, 4], np.int32)
    logits = np.full((7, VOCAB), -np.inf, np.float32)
    logits[[0, 1, 5], [4, 2, 4]] = 0.0  # rows 2 and 6 have no law
    chains = {"row_begin": [0, 5, 7], "draft_token_ids": drafts, "acceptance_rates": [1, 1, 0, 0, 0, 1, 0]}
    rows = columns(7, seed=np.arange(7), temperature=1.0)
    accepted, emitted = _testing.verify_chain(instruction_set, method, logits, rows, VOCAB, chains)
    assert accepted.tolist() == [1, 0]
    assert emitted.tolist() == [4, 2, -1, -1, -1, 4, -1]


@pytest.mark.parametrize("instruction_set", ["reference", *INSTRUCTION_SETS])
@pytest.mark.parametrize("method", ["equality", "standard", "block", "synthetic"])
def test_requests_without_rows_are_padding(instruction_set: str, method: str) -> None:
    logits, rows, chains = random_chains(4, 30, 90)
    plain = _testing.verify_chain(instruction_set, method, logits, rows, 90, chains)
    padded, is_request = with_padding(chains)
    accepted, emitted = _testing.verify_chain(instruction_set, method, logits, rows, 90, padded)
    assert np.array_equal(accepted[is_request], plain[0]) and (accepted[~is_request] == -1).all()
    assert np.array_equal(emitted, plain[1])
    # The rows of the last three requests belong to nobody: nothing is written there.
    fewer = chains | {"row_begin": chains["row_begin"][:-3]}
    accepted, emitted = _testing.verify_chain(instruction_set, method, logits, rows, 90, fewer)
    end = fewer["row_begin"][-1]
    assert np.array_equal(accepted, plain[0][:-3]) and np.array_equal(emitted[:end], plain[1][:end])
    assert (emitted[end:] == UNTOUCHED).all() and end < len(emitted)


def test_synthetic_meets_the_rates_and_emits_plain_samples() -> None:
    num, k = 30_000, 3
    rates = np.array([0.9, 0.5, 0.25, 0.0], np.float32)
    logits = np.tile(TARGET[: k + 1], (num, 1))
    positions = np.tile(np.arange(k + 1) + 9, num)
    rows = columns(num * (k + 1), seed=np.repeat(np.arange(num), k + 1), position=positions)
    drafts = np.tile(np.arange(k + 1), num)
    chains = {
        "row_begin": np.arange(num + 1) * (k + 1),
        "draft_token_ids": drafts,
        "acceptance_rates": np.tile(rates, num),
    }
    accepted, emitted = _testing.verify_chain(FASTEST, "synthetic", logits, rows, VOCAB, chains)
    reach = np.cumprod(rates[:k].astype(np.float64))
    law = -np.diff([1.0, *reach, 0.0])
    assert chi_square_ok(np.bincount(accepted, minlength=k + 1), law)
    assert abs(accepted.mean() - reach.sum()) < 5 * accepted.std() / np.sqrt(num)
    plain = _testing.sample(FASTEST, logits, rows, VOCAB)[0].reshape(num, k + 1)
    emitted = emitted.reshape(num, k + 1)
    assert np.array_equal(emitted[np.arange(num), accepted], plain[np.arange(num), accepted])
    for n in range(k + 1):
        kept = emitted[accepted == n]
        assert (kept[:, :n] == np.arange(1, n + 1)).all() and (kept[:, n + 1 :] == -1).all()
    coins = [_testing.random_bits64(s, 9, SYNTHETIC, 0) / 2.0**64 for s in range(200)]
    assert np.array_equal(np.array(coins) < 0.9, accepted[:200] >= 1)
