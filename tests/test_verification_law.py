"""Chain verification emits the target's law: exactly, with coins integrated out, for the rules of kStandard and kBlock.

The coin-driven operator is tested in test_op_verify_chain.py.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.sampling import columns

from eagle31rt import _testing

METHODS = ["standard", "block"]
methods = pytest.mark.parametrize("method", METHODS)


@dataclass(frozen=True)
class Process:
    """Laws of the next token by prefix, as logits: logits[n] has shape [V] * n + [V], n tokens of prefix."""

    logits: list[np.ndarray]
    parameters: dict[str, Any]

    def at(self, prefix: tuple[int, ...]) -> np.ndarray:
        return self.logits[len(prefix)][prefix]

    def law(self, prefix: tuple[int, ...]) -> np.ndarray:
        logits = self.at(prefix)[None]
        weights = _testing.sample("reference", logits, columns(1, **self.parameters), logits.shape[1], weights=True)[1]
        return weights[0] / weights[0].sum(dtype=np.float64)


def random_process(seed: int, vocab_size: int, depth: int, width: int = 0, **parameters: Any) -> Process:
    """Random logits over `width` ids (default: the vocabulary) after every prefix of up to `depth` tokens."""
    rng = np.random.default_rng(seed)
    shapes = [(vocab_size,) * n + (width or vocab_size,) for n in range(depth + 1)]
    return Process([(rng.standard_normal(shape) * 1.5).astype(np.float32) for shape in shapes], parameters)


def fixed_process(p: list[float], depth: int) -> Process:
    """The same law after every prefix."""
    logits = np.log(np.array(p, np.float64)).astype(np.float32)
    return Process([np.broadcast_to(logits, (len(p),) * n + (len(p),)) for n in range(depth + 1)], {})


@dataclass(frozen=True)
class Outcome:
    emitted: np.ndarray  # [V] * (k + 1): law of the first k + 1 tokens, short emissions continued by the target
    mean_accepted: float


def number_law(method: str, h: list[float]) -> list[float]:
    """Probability of each number of accepted drafts, from the acceptance probabilities."""
    if method == "standard":
        return [float(np.prod(h[:n])) * (1 - h[n] if n < len(h) else 1) for n in range(len(h) + 1)]
    return [([1.0, *h][n]) * float(np.prod([1 - x for x in h[n:]])) for n in range(len(h) + 1)]


def enumerate_round(
    method: str, target: Process, draft: Process | None, k: int, to_target: list[int] | None = None
) -> Outcome:
    """One round over every draft sequence with its probability; `draft` None: the target's least likely ids, fixed."""
    vocab_size = target.at(()).size
    if draft is None:
        fixed: tuple[int, ...] = ()
        for _ in range(k):
            fixed += (int(np.argsort(target.law(fixed))[-2]),)
        sequences, draft_law = [fixed], {}
    else:
        ids = to_target or list(range(vocab_size))
        prefixes = [p for n in range(k) for p in itertools.product(ids, repeat=n)]
        draft_law = {p: dict(zip(ids, draft.law(p), strict=True)) for p in prefixes}
        sequences = list(itertools.product(ids, repeat=k))
    rows = [d[:n] for d in sequences for n in range(k + 1)]
    chains: dict[str, Any] = {
        "row_begin": np.arange(len(sequences) + 1) * (k + 1),
        "draft_token_ids": np.array([[0, *d] for d in sequences]).ravel(),
    }
    if draft is not None:
        chains["draft_logits"] = np.stack([draft.at(p if len(p) < k else p[:-1]) for p in rows])
        if to_target is not None:
            chains["draft_to_target"] = to_target
    parameters = columns(len(rows), **target.parameters)
    logits = np.stack([target.at(p) for p in rows])
    answers = _testing.accept_probabilities(method, logits, parameters, vocab_size, chains)
    emitted, mean = np.zeros((vocab_size,) * (k + 1)), 0.0
    tails = continuation_laws(target, k)
    for d, (h, emissions) in zip(sequences, answers, strict=True):
        q = 1.0 if draft is None else float(np.prod([draft_law[d[:n]][d[n]] for n in range(k)]))
        for n, probability in enumerate(number_law(method, h)):
            mean += q * probability * n
            weights = np.array(emissions[n], np.float64)
            for y in np.flatnonzero(weights):
                emitted[(*d[:n], int(y))] += q * probability * weights[y] / weights.sum() * tails[(*d[:n], int(y))]
    return Outcome(emitted, mean)


def continuation_laws(target: Process, k: int) -> dict[tuple[int, ...], np.ndarray]:
    """For every prefix of up to k + 1 tokens, the target's law of what completes it to k + 1 tokens."""
    vocab_size = target.at(()).size
    tails = {p: np.array(1.0) for p in itertools.product(range(vocab_size), repeat=k + 1)}
    for n in range(k, -1, -1):
        for prefix in itertools.product(range(vocab_size), repeat=n):
            law = target.law(prefix)
            tails[prefix] = np.stack([law[y] * tails[(*prefix, y)] for y in range(vocab_size)])
    return tails


FILTERS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 2},
    {"top_p": 0.75, "temperature": 1.5},
    {"top_k": 3, "top_p": 0.9, "min_p": 0.1},
]


@methods
@pytest.mark.parametrize("parameters", FILTERS, ids=str)
@pytest.mark.parametrize(("vocab_size", "k"), [(2, 3), (3, 2), (4, 2), (3, 3)])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
def test_emitted_law_is_the_target_law(
    method: str, parameters: dict[str, Any], vocab_size: int, k: int, drawn: bool
) -> None:
    target = random_process(vocab_size * 10 + k, vocab_size, k, **parameters)
    draft_parameters = {"temperature": parameters.get("temperature", 1.0)}
    draft = random_process(99 + k, vocab_size, k, **draft_parameters) if drawn else None
    outcome = enumerate_round(method, target, draft, k)
    assert np.abs(outcome.emitted - continuation_laws(target, k)[()]).max() < 1e-12
    assert 0 < outcome.mean_accepted < k


@methods
@pytest.mark.parametrize("to_target", [[1, 3], [0, 2, 3]])
def test_smaller_draft_vocabulary(method: str, to_target: list[int]) -> None:
    target = random_process(5, 4, 2)
    draft = random_process(6, 4, 2, width=len(to_target))
    outcome = enumerate_round(method, target, draft, 2, to_target)
    assert np.abs(outcome.emitted - continuation_laws(target, 2)[()]).max() < 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_block_accepts_at_least_as_much(seed: int) -> None:
    target, draft = random_process(seed, 3, 3), random_process(100 + seed, 3, 3)
    standard, block = (enumerate_round(method, target, draft, 3).mean_accepted for method in METHODS)
    assert block > standard + 1e-3
    # With fixed drafts block verification brings nothing.
    standard, block = (enumerate_round(method, target, None, 3).mean_accepted for method in METHODS)
    assert block == pytest.approx(standard, abs=1e-12)


@pytest.mark.parametrize(
    ("p", "q", "k", "standard", "block"),
    [
        ([1 / 3, 2 / 3], [2 / 3, 1 / 3], 2, 10 / 9, 11 / 9),
        ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 1, 0.7, 0.7),
        ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], 3, 1.533, 1.695),
    ],
)
def test_worked_numbers(p: list[float], q: list[float], k: int, standard: float, block: float) -> None:
    target, draft = fixed_process(p, k), fixed_process(q, k)
    precision = 1e-6 if k < 3 else 5e-4
    assert enumerate_round("standard", target, draft, k).mean_accepted == pytest.approx(standard, abs=precision)
    assert enumerate_round("block", target, draft, k).mean_accepted == pytest.approx(block, abs=precision)


def one_request(method: str, logits: np.ndarray, drafts: list[int], draft_logits: Any = None, **given: Any) -> Any:
    rows = columns(len(logits), **given)
    chains: dict[str, Any] = {"row_begin": [0, len(logits)], "draft_token_ids": [0, *drafts]}
    if draft_logits is not None:
        chains["draft_logits"] = draft_logits
    return _testing.accept_probabilities(method, logits, rows, logits.shape[1], chains)[0]


@methods
def test_equal_laws_are_accepted_with_probability_one(method: str) -> None:
    rng = np.random.default_rng(0)
    for size in (2, 50, 3000):
        logits = (rng.standard_normal((9, size)) * 3).astype(np.float32)
        drafts = [int(np.argmax(row + rng.gumbel(size=size))) for row in logits[:-1]]
        h, emissions = one_request(method, logits, drafts, logits.copy(), temperature=0.8)
        assert h == [1.0] * 8
        # Nothing is left to draw after a refusal that rounding might cause: the law falls back to p.
        weights = _testing.sample("reference", logits, columns(9, temperature=0.8), size, weights=True)[1]
        assert [list(e) for e in emissions] == weights.tolist()


@methods
def test_impossible_and_unlikely_drafts(method: str) -> None:
    inf = np.float32(np.inf)
    logits = np.array([[0, 1, 2, -inf], [0, 0, 0, 0]], np.float32)
    laws = np.array([[3, 0, 0, -200], [0, 0, 0, 0]], np.float32)
    assert one_request(method, logits, [3])[0] == [0.0]  # p is 0: never
    assert one_request(method, logits, [3], laws)[0] == [0.0]
    assert one_request(method, logits[::-1], [3], laws)[0] == [1.0]  # q is 0 by underflow, p is not
    assert one_request(method, logits, [-1])[0] == []  # no draft
    assert one_request(method, logits, [4])[0] == []
    dead = np.full((2, 4), np.nan, np.float32)
    p = 1 / (1 + np.exp(-1) + np.exp(-2))
    assert one_request(method, logits, [2], dead)[0] == pytest.approx([p])  # no draft law: a point mass
    # At temperature 0 both laws are points, whatever the draft's logits say.
    assert one_request(method, logits, [2], laws, temperature=0.0)[0] == [1.0]
    h, emissions = one_request(method, logits, [0], laws, temperature=0.0)
    assert h == [0.0] and np.argmax(emissions[0]) == 2 and np.count_nonzero(emissions[0]) == 1


def test_a_coin_must_be_below_the_probability() -> None:
    assert not _testing.coin_stands(0.0, 0.0)
    assert not _testing.coin_stands(0.25, 0.25)
    assert _testing.coin_stands(0.0, 5e-324)
    assert _testing.coin_stands(1 - 2.0**-53, 1.0)
