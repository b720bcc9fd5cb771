"""process_logits and token_logprobs against numpy: what each rule does to a row, and that it does nothing else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from support.sampling import awkward_logits

from eagle31rt import _testing

VOCAB = 75  # two words of a mask and eleven bits
OUTSIDE = [-1, VOCAB, VOCAB + 2, 2**31 - 1]


@dataclass
class Request:
    """One row as a user would put it: lists of ids instead of counts, a set of ids instead of a bitmask."""

    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    path: Sequence[int] = ()
    biases: dict[int, float] = field(default_factory=dict)
    allowed: set[int] | None = None

    def packed(self, index: int, vocab_size: int = VOCAB) -> dict[str, Any]:
        """The row as the operator takes it; bits of the mask past the vocabulary are set."""
        num_output = Counter(self.output)
        words = [0] * ((vocab_size + 31) // 32)
        for token in (self.allowed or set()) | set(range(vocab_size, 32 * len(words))):
            words[token // 32] |= 1 << token % 32
        return {
            "index": index,
            "repetition_penalty": self.repetition,
            "frequency_penalty": self.frequency,
            "presence_penalty": self.presence,
            "history": [(t, num_output[t], int(t in self.prompt)) for t in {*self.output, *self.prompt}],
            "path": list(self.path),
            "biases": list(self.biases.items()),
            "mask": None if self.allowed is None else words,
        }

    def applied(self, logits: np.ndarray) -> np.ndarray:
        """The row that must come out: float32 throughout, one rounding for each operation."""
        row = logits.astype(np.float32)
        if self.allowed is not None:
            row[[token for token in range(row.size) if token not in self.allowed]] = -np.inf
        counts = Counter([*self.output, *self.path])
        f32 = np.float32
        for token in range(row.size):
            x = row[token]
            if np.isnan(x) or x == -np.inf:
                continue
            x = f32(x + f32(self.biases.get(token, 0.0)))
            if counts[token] > 0 or token in self.prompt:
                x = f32(x / f32(self.repetition)) if x > 0 else f32(x * f32(self.repetition))
                x = f32(x - f32(f32(self.frequency) * f32(counts[token])))
            row[token] = f32(x - f32(self.presence)) if counts[token] > 0 else x
        return row


def places(device: str) -> list[str]:
    return ["cuda"] if device == "cuda" else ["reference", *_testing.available_instruction_sets()]


def assert_applied(device: str, logits: np.ndarray, requests: Sequence[Request], vocab_size: int = VOCAB) -> None:
    """Request i belongs to the i-th row from the end but one: the last row has none."""
    indices = list(range(len(requests) - 1, -1, -1))
    expected = logits.copy()
    for index, request in zip(indices, requests, strict=True):
        expected[index, :vocab_size] = request.applied(logits[index, :vocab_size])
    rows = [request.packed(index, vocab_size) for index, request in zip(indices, requests, strict=True)]
    for place in places(device):
        found = _testing.process_logits(place, logits, vocab_size, rows, num_threads=2)
        if place == "reference":  # rounds once
            np.testing.assert_allclose(found, expected, rtol=3e-7, atol=3e-6)
        else:
            np.testing.assert_array_equal(found, expected)


def random_logits(num_rows: int, vocab_size: int = VOCAB, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((num_rows + 1, vocab_size + 3)) * 6).astype(np.float32)


def test_each_penalty_counts_what_it_says(device: str) -> None:
    ids = {"prompt": [3, 3, 4, 5], "output": [5, 6, 6, 7, 5, 5], "path": [7, 8, 8, 3, 8]}
    requests = [
        Request(repetition=1.7, **ids),
        Request(repetition=0.6, **ids),
        Request(frequency=0.7, **ids),
        Request(frequency=-2.0, **ids),
        Request(presence=1.3, **ids),
        Request(1.2, 0.3, -0.4, **ids),
        Request(1.2, 0.3, 0.4, prompt=ids["prompt"]),
        Request(1.2, 0.3, 0.4, path=ids["path"]),
    ]
    logits = random_logits(len(requests))
    assert_applied(device, logits, requests)
    assert_applied(device, -logits, requests)


def test_a_path_is_worth_the_same_tokens_committed(device: str) -> None:
    rng = np.random.default_rng(1)
    for place in places(device):
        for length in (1, 5, 33, 64):
            tokens = rng.integers(0, 20, 40 + length).tolist()
            kwargs: dict[str, Any] = {"repetition": 1.3, "frequency": 0.11, "presence": 0.7, "prompt": [1, 2, 30, 31]}
            drafted = Request(output=tokens[:40], path=tokens[40:], **kwargs)
            committed = Request(output=tokens, **kwargs)
            logits = random_logits(1)
            rows = [_testing.process_logits(place, logits, VOCAB, [r.packed(0)]) for r in (drafted, committed)]
            assert rows[0].tobytes() == rows[1].tobytes() != logits.tobytes()


def test_masks_end_with_the_vocabulary(device: str) -> None:
    for vocab_size in (1, 31, 32, 33, 64, 75, 1030):
        last = vocab_size - 1
        masks = [set(), {last}, {0}, set(range(vocab_size)), set(range(0, vocab_size, 3)), set(range(last))]
        requests = [Request(allowed=mask) for mask in masks]
        assert_applied(device, random_logits(len(requests), vocab_size), requests, vocab_size)


def test_a_bias_lifts_no_mask(device: str) -> None:
    requests = [
        Request(biases={0: 100.0, 1: -3.5, VOCAB - 1: 0.1}, allowed={1, 2}),
        Request(biases={0: 100.0, 1: -3.5, VOCAB - 1: 0.1}),
        Request(2.0, 0.5, 0.5, prompt=[0, 1], output=[2], biases={0: 100.0, 2: -50.0}, allowed={0, 2}),
    ]
    logits = random_logits(len(requests))
    assert_applied(device, logits, requests)
    assert _testing.process_logits(places(device)[-1], logits, VOCAB, [requests[0].packed(0)])[0, 0] == -np.inf


def test_what_is_not_finite_stays(device: str) -> None:
    logits = random_logits(4)
    logits[:, 0:4] = [np.nan, -np.inf, np.inf, -0.0]
    ids = list(range(6))
    requests = [
        Request(1.5, 0.5, 0.5, prompt=ids, output=ids, path=ids),
        Request(biases=dict.fromkeys(ids, 5.0)),
        Request(0.5, -1.0, -1.0, output=ids, biases=dict.fromkeys(ids, -5.0)),
        Request(allowed={0, 1, 2}),
    ]
    assert_applied(device, logits, requests)


def test_rules_that_are_off_change_no_bit(device: str) -> None:
    logits = awkward_logits(np.random.default_rng(2), 6, VOCAB)
    ids = list(range(VOCAB))
    request = Request(prompt=ids[::2], output=ids[::3], path=ids[:64], allowed={*ids})
    for place in places(device):
        found = _testing.process_logits(place, logits, VOCAB, [request.packed(i) for i in range(6)])
        assert found.tobytes() == logits.tobytes()


def test_ids_outside_the_vocabulary_are_ignored(device: str) -> None:
    request = Request(1.5, 0.5, 0.5, prompt=OUTSIDE, output=OUTSIDE, path=OUTSIDE, biases=dict.fromkeys(OUTSIDE, 9.0))
    logits = random_logits(3)
    for place in places(device):
        found = _testing.process_logits(place, logits, VOCAB, [request.packed(i) for i in range(3)])
        assert found.tobytes() == logits.tobytes()


def random_request(rng: np.random.Generator, vocab_size: int) -> Request:
    def ids(most: int) -> list[int]:
        return rng.integers(-1, vocab_size + 2, rng.integers(0, most + 1)).tolist()

    return Request(
        *(float(x) for x in (rng.choice([1, 0.5, 1.25]), rng.choice([0, 0.3, -2]), rng.choice([0, 2, -0.1]))),
        prompt=ids(200),
        output=ids(100),
        path=ids(64),
        biases={token: float(rng.uniform(-9, 9)) for token in ids(20)},
        allowed=set(ids(vocab_size)) - {-1, vocab_size, vocab_size + 1} if rng.random() < 0.5 else None,
    )


@pytest.mark.parametrize("vocab_size", [5, 75, 2500])
def test_everything_at_once(device: str, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    requests = [random_request(rng, vocab_size) for _ in range(12)]
    logits = np.concatenate([random_logits(9, vocab_size), awkward_logits(rng, 3, vocab_size + 3)])
    assert_applied(device, logits, requests, vocab_size)


def test_vocabularies_of_real_models(device: str) -> None:
    vocab_size = 32_003
    rng = np.random.default_rng(9)
    logits = random_logits(2, vocab_size)
    ids = rng.integers(0, vocab_size, 500).tolist()
    masked = Request(
        1.3, 0.2, 0.1, prompt=ids[:400], output=ids[300:], path=ids[-5:], allowed={*ids[::7], vocab_size - 1}
    )
    assert_applied(device, logits, [masked, Request(allowed=set(range(vocab_size)) - {7, vocab_size - 1})], vocab_size)
    tokens = np.array([ids[0], vocab_size - 1, 0], np.int32)
    expected = [expected_logprob(row[:vocab_size], int(token)) for row, token in zip(logits, tokens, strict=True)]
    for place in places(device):
        logprobs, ranks = _testing.token_logprobs(place, logits, vocab_size, tokens)
        assert ranks.tolist() == [rank for _, rank in expected]
        np.testing.assert_allclose(logprobs, [value for value, _ in expected], rtol=3e-7)


def expected_logprob(row: np.ndarray, token: int) -> tuple[float, int]:
    x = np.where(np.isnan(row), -np.inf, row.astype(np.float64))
    if not 0 <= token < x.size:
        return -np.inf, 0
    rank = 1 + int((x > x[token]).sum())
    best = int(np.argmax(x))
    if x[best] == np.inf:
        return (0.0 if token == best else -np.inf), rank
    if x[token] == -np.inf:
        return -np.inf, rank
    return float(x[token] - x[best] - np.log(np.exp(x - x[best]).sum())), rank


@pytest.mark.parametrize("vocab_size", [1, 17, 33, 600, 1300])
def test_log_probability_and_rank(device: str, vocab_size: int) -> None:
    rng = np.random.default_rng(vocab_size)
    logits = awkward_logits(rng, 80, vocab_size + 3)
    tokens = rng.integers(-1, vocab_size + 1, 80).astype(np.int32)
    expected = [expected_logprob(row[:vocab_size], int(token)) for row, token in zip(logits, tokens, strict=True)]
    for place in places(device):
        logprobs, ranks = _testing.token_logprobs(place, logits, vocab_size, tokens, num_threads=2)
        np.testing.assert_array_equal(ranks, [rank for _, rank in expected])
        np.testing.assert_allclose(logprobs, [value for value, _ in expected], rtol=3e-7, atol=3e-6)


def test_log_probabilities_have_the_bits_of_top_k(device: str) -> None:
    logits = awkward_logits(np.random.default_rng(5), 80, 700)
    reported: dict[str, bytes] = {}
    for place in set(places(device)) - {"reference"} | set(_testing.available_instruction_sets()):
        _, ids, logs = _testing.top_k(place, logits, 700, 3)
        for rank in range(3):
            logprobs, ranks = _testing.token_logprobs(place, logits, 700, ids[:, rank])
            assert logprobs.tobytes() == logs[:, rank].tobytes()
            assert (ranks <= rank + 1).all()
        reported[place] = logs.tobytes()
    assert len(set(reported.values())) == 1, "integer masses differ between backends"
