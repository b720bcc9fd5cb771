"""The integer sampling law in plain numpy and Python integers, and helpers to call the sampling operators."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from eagle31rt import _testing

UNIT = 1 << 44
SAMPLE, DRAFT, ACCEPT, RESIDUAL, SYNTHETIC = range(5)


def columns(num_rows: int, **given: Any) -> dict[str, np.ndarray]:
    """The per-row sampling parameters, each a scalar or an array of num_rows; what is not given is off."""
    values: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0, "position": 0}
    types = [np.float32, np.int32, np.float32, np.float32, np.uint64, np.int64]
    masked = {key: np.asarray(given.pop(key), np.int32) for key in ("masked_begin", "masked_ids") if key in given}
    values.update(given)
    return {
        k: np.broadcast_to(np.asarray(v, t), (num_rows,)) for (k, v), t in zip(values.items(), types, strict=True)
    } | masked


def law_weights(
    exp: Any,
    logits: np.ndarray,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    masked: Sequence[int] = (),
) -> list[int]:
    """The law of csrc/ops/sample/sample.h. `exp` is the runtime's own exponential (float32 in and out)."""
    x = np.where(np.isnan(logits), np.float32(-np.inf), logits.astype(np.float32))
    for token in masked:
        if 0 <= token < x.size:
            x[token] = -np.inf
    best = int(np.argmax(x))  # the first of equals
    if x[best] == -np.inf:
        return [0] * x.size
    if temperature == 0 or x[best] == np.inf:
        return [UNIT * (i == best) for i in range(x.size)]
    with np.errstate(over="ignore"):
        e = exp((x - x[best]) / np.float32(temperature))
    weights = [math.floor(Fraction(float(value)) * UNIT) for value in e]
    order = [i for i in range(x.size) if weights[i] > 0 and weights[i] >= Fraction(float(np.float32(min_p))) * UNIT]
    order.sort(key=lambda i: (-float(x[i]), i))
    if top_k > 0:
        order = order[:top_k]
    wanted = Fraction(float(np.float32(top_p))) * sum(weights[i] for i in order)
    sums = itertools.accumulate(weights[i] for i in order)
    size = next(n for n, mass in enumerate(sums, start=1) if mass >= wanted)
    kept = set(order[:size])
    return [weights[i] if i in kept else 0 for i in range(x.size)]


def draw(weights: Sequence[int], bits: int) -> int:
    """The first id whose cumulative weight exceeds floor(bits * total / 2^64); -1 if there is none."""
    threshold = bits * sum(weights) >> 64
    cumulative = itertools.accumulate(weights)
    return next((i for i, mass in enumerate(cumulative) if mass > threshold), -1)


def chi_square_ok(counts: np.ndarray, law: np.ndarray) -> bool:
    """Chi-square of counts [..., n] against laws [..., n] over the last axis: below df + 10 sqrt(2 df).

    Each row is taken given its own number of trials; bins with fewer than 5 expected are merged within their row. Seeds
    are fixed, so a result never changes from run to run; a true law fails for a new seed with probability 1e-4 (df 1)
    to 1e-8 (df 15 and more).
    """
    statistic, degrees = 0.0, 0
    for observed, p in zip(np.atleast_2d(counts), np.atleast_2d(law), strict=True):
        expected = p / p.sum() * observed.sum()
        if observed[p == 0].any():
            return False
        small = expected < 5
        o = [*observed[~small], observed[small].sum()]
        e = [*expected[~small], expected[small].sum()]
        if e[-1] == 0:
            o, e = o[:-1], e[:-1]
        if len(e) > 1:
            statistic += sum((a - b) ** 2 / b for a, b in zip(o, e, strict=True))
            degrees += len(e) - 1
    assert degrees > 0, "too few trials to test anything"
    return bool(statistic < degrees + 10 * math.sqrt(2 * degrees))


def awkward_logits(rng: np.random.Generator, num_rows: int, width: int) -> np.ndarray:
    """Rows of many scales with ties, NaN, infinities, and rows with nothing to choose from."""
    x = (rng.standard_normal((num_rows, width)) * rng.choice([1e-3, 1, 5, 40], (num_rows, 1))).astype(np.float32)
    x[::3] = np.round(x[::3])  # ties
    x[1::5][rng.random(x[1::5].shape) < 0.2] = np.nan
    x[2::5][rng.random(x[2::5].shape) < 0.3] = -np.inf
    x[3::7, rng.integers(0, width, 2)] = np.inf
    x[4::11] = -np.inf
    x[5::11] = np.nan
    return x


def random_chains(seed: int, num: int, vocab_size: int) -> tuple[np.ndarray, dict[str, Any], dict[str, Any]]:
    """Requests of 0 to 6 drafts with all kinds of parameters; most drafts are what the plain sampler draws."""
    rng = np.random.default_rng(seed)
    row_begin = np.cumsum([0, *rng.integers(1, 8, num)]).astype(np.int32)
    num_rows = int(row_begin[-1])
    logits = (rng.standard_normal((num_rows, vocab_size + 3)) * 2).astype(np.float32)
    logits[rng.random(num_rows) < 0.03] = np.nan
    rows = columns(
        num_rows,
        temperature=rng.choice([0, 0.8, 1.2], num_rows),
        top_k=rng.choice([0, 20], num_rows),
        top_p=rng.choice([1, 0.9], num_rows),
        min_p=rng.choice([0, 0.02], num_rows),
        seed=rng.integers(0, 2**63, num_rows),
        position=rng.integers(0, 5000, num_rows),
        masked_begin=np.arange(num_rows + 1),
        masked_ids=rng.integers(0, vocab_size, num_rows),
    )
    plain, _ = _testing.sample("reference", logits, rows, vocab_size)
    drafts = np.concatenate([[0], plain[:-1]])
    wrong = rng.random(num_rows) < 0.25
    drafts[wrong] = rng.integers(-1, vocab_size + 1, wrong.sum())
    draft_logits = logits[:, :vocab_size] + rng.standard_normal((num_rows, vocab_size))
    chains = {
        "row_begin": row_begin,
        "draft_token_ids": drafts,
        "draft_logits": draft_logits.astype(np.float32),
        "acceptance_rates": rng.random(num_rows),
    }
    return logits, rows, chains


def with_padding(chains: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """The chains with requests without rows at both ends and between, and which of the requests are real."""
    begin = chains["row_begin"]
    padded = np.concatenate([[0, 0], np.repeat(begin[:-1], 1 + np.arange(len(begin) - 1) % 3), [begin[-1]] * 3])
    return chains | {"row_begin": padded.astype(np.int32)}, np.diff(padded) > 0
