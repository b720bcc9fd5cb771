"""Tree verification emits the target's law: exactly, with coins integrated out, and by chi-square with real noise."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from support.sampling import chi_square_ok, columns
from support.trees import depths, forest
from test_verification_law import FILTERS, Process, continuation_laws, fixed_process, random_process

from eagle31rt import _testing

CHAIN, STAR = [-1, 0, 1], [-1, 0, 0, 0]
TREES = [CHAIN, STAR, [-1, 0, 0, 1, 1, 2], [-1, 0, 1, 0, 3, 1, 3]]


@dataclass(frozen=True)
class Outcome:
    emitted: np.ndarray  # [V] * (depth + 1): law of the first tokens, short emissions continued by the target
    mean_accepted: float


def children_of(parents: list[int], row: int) -> list[int]:
    return [r for r, parent in enumerate(parents) if parent == row]


def fixed_tokens(target: Process, parents: list[int]) -> list[int]:
    """Children are the target's second best ids of their path, third, .. and the best last."""
    paths: list[tuple[int, ...]] = [()]
    for row in range(1, len(parents)):
        parent = parents[row]
        order = np.argsort(-target.law(paths[parent]), kind="stable")
        rank = children_of(parents, parent).index(row)
        paths.append((*paths[parent], int(np.roll(order, -1)[rank])))
    return [0] + [path[-1] for path in paths[1:]]


def drawn_tokens(draft: Process, parents: list[int], ids: list[int]) -> Iterator[tuple[list[int], float]]:
    """Every way to draw the children of each row without replacement, with its probability."""

    def draw(row: int, tokens: list[int], paths: list[tuple[int, ...]], q: float) -> Iterator[tuple[list[int], float]]:
        if row == len(parents):
            yield tokens, q
            return
        parent = parents[row]
        law = dict(zip(ids, draft.law(paths[parent]), strict=True))
        for sibling in children_of(parents[:row], parent):
            law.pop(tokens[sibling])
        total = sum(law.values())
        for token, p in law.items():
            yield from draw(row + 1, [*tokens, token], [*paths, (*paths[parent], token)], q * p / total)

    return draw(1, [0], [()], 1.0)


def enumerate_tree(target: Process, draft: Process | None, parents: list[int], ids: list[int] | None = None) -> Outcome:
    """One round over every tree of this shape; `draft` None: fixed tokens."""
    vocab_size, depth = target.at(()).size, max(depths(parents))
    drawn = [] if draft is None else list(drawn_tokens(draft, parents, ids or list(range(vocab_size))))
    trees = drawn or [(fixed_tokens(target, parents), 1.0)]
    paths: list[tuple[int, ...]] = []
    for tokens, _ in trees:
        start = len(paths)
        for row, parent in enumerate(parents):
            paths.append(() if parent < 0 else (*paths[start + parent], tokens[row]))
    arrays = forest([parents] * len(trees), [token for tokens, _ in trees for token in tokens])
    if draft is not None:
        arrays["draft_logits"] = np.stack([draft.at(path if len(path) < depth else path[:-1]) for path in paths])
        if ids is not None:
            arrays["draft_to_target"] = ids
    logits = np.stack([target.at(path) for path in paths])
    rules = _testing.sibling_rules(logits, columns(len(paths), **target.parameters), vocab_size, arrays)
    emitted, mean = np.zeros((vocab_size,) * (depth + 1)), 0.0
    tails = continuation_laws(target, depth)
    for i, (_, q) in enumerate(trees):
        reach = [q] + [0.0] * (len(parents) - 1)
        for row in range(len(parents)):
            children, acceptance, weights = rules[i][row]
            path, left = paths[i * len(parents) + row], reach[row]
            for child, probability in zip(children, acceptance, strict=True):
                reach[child] = left * probability
                left *= 1 - probability
            mean += left * len(path)
            law = np.array(weights, np.float64) / sum(weights)
            for y in np.flatnonzero(law):
                emitted[(*path, int(y))] += left * law[y] * tails[(*path, int(y))]
    return Outcome(emitted, mean)


@pytest.mark.parametrize("parameters", FILTERS, ids=str)
@pytest.mark.parametrize("vocab_size", [3, 4])
@pytest.mark.parametrize("parents", TREES, ids=str)
def test_fixed_children_emit_the_target_law(parents: list[int], vocab_size: int, parameters: dict[str, Any]) -> None:
    target = random_process(5 * vocab_size, vocab_size, max(depths(parents)), **parameters)
    outcome = enumerate_tree(target, None, parents)
    assert np.abs(outcome.emitted - continuation_laws(target, max(depths(parents)))[()]).max() < 1e-12
    assert 0 < outcome.mean_accepted <= max(depths(parents)) + 1e-12


@pytest.mark.parametrize("parameters", FILTERS, ids=str)
@pytest.mark.parametrize(
    ("parents", "vocab_size"), [(CHAIN, 3), ([-1, 0, 0], 4), (STAR, 4), ([-1, 0, 0, 1, 1], 4), (TREES[2], 3)], ids=str
)
def test_drawn_children_emit_the_target_law(parents: list[int], vocab_size: int, parameters: dict[str, Any]) -> None:
    depth = max(depths(parents))
    target = random_process(vocab_size, vocab_size, depth, **parameters)
    draft = random_process(77, vocab_size, depth, temperature=parameters.get("temperature", 1.0))
    outcome = enumerate_tree(target, draft, parents)
    assert np.abs(outcome.emitted - continuation_laws(target, depth)[()]).max() < 1e-12
    assert 0 < outcome.mean_accepted < depth


@pytest.mark.parametrize("ids", [[1, 3], [0, 2, 3]])
def test_smaller_draft_vocabulary(ids: list[int]) -> None:
    target, draft = random_process(5, 4, 2), random_process(6, 4, 2, width=len(ids))
    outcome = enumerate_tree(target, draft, [-1, 0, 0, 1], ids)
    assert np.abs(outcome.emitted - continuation_laws(target, 2)[()]).max() < 1e-12
    # As many children as the draft has ids: the last one is drawn from a point, and nothing is left behind it.
    outcome = enumerate_tree(target, draft, [-1, *[0] * len(ids)], ids)
    assert np.abs(outcome.emitted - continuation_laws(target, 1)[()]).max() < 1e-12


def test_worked_numbers() -> None:
    """batch_correctness 3.2: one draft .70, two without replacement .82, the two top draft tokens as fixed ones .50."""
    target, draft = fixed_process([0.5, 0.3, 0.2], 1), fixed_process([0.2, 0.3, 0.5], 1)
    assert enumerate_tree(target, draft, [-1, 0]).mean_accepted == pytest.approx(0.70, abs=1e-6)
    assert enumerate_tree(target, draft, [-1, 0, 0]).mean_accepted == pytest.approx(0.82, abs=1e-6)
    logits = np.log(np.array([[0.5, 0.3, 0.2]], np.float32)).repeat(3, axis=0)
    children, acceptance, weights = _testing.sibling_rules(logits, columns(3), 3, forest([[-1, 0, 0]], [0, 2, 1]))[0][0]
    assert children == [1, 2] and acceptance == pytest.approx([0.2, 0.3 / 0.8], abs=1e-6)
    assert 1 - np.prod(1 - np.array(acceptance)) == pytest.approx(0.5, abs=1e-6)
    assert np.flatnonzero(weights).tolist() == [0]


@pytest.mark.parametrize("drawn", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_tree_accepts_more_than_the_chain_in_it(seed: int, drawn: bool) -> None:
    target = random_process(seed, 4, 2)
    draft = random_process(50 + seed, 4, 2) if drawn else None
    chain, tree, wide = (
        enumerate_tree(target, draft, parents).mean_accepted for parents in (CHAIN, [-1, 0, 1, 0], [-1, 0, 1, 0, 1, 3])
    )
    assert chain + 1e-3 < tree and tree + 1e-3 < wide


def one_row(logits: list[float], tokens: list[int], **given: Any) -> Any:
    """Rules of a root with these children."""
    size = len(tokens) + 1
    arrays = forest([[-1, *[0] * len(tokens)]], [0, *tokens])
    for key in ("draft_logits", "draft_rows"):
        if key in given:
            arrays[key] = given.pop(key)
    rows = np.tile(np.array(logits, np.float32), (size, 1))
    return _testing.sibling_rules(rows, columns(size, **given), len(logits), arrays)[0][0]


def test_equal_laws_stand_at_once() -> None:
    logits = [0.5, 0.25, -1.0, 2.0]
    assert one_row(logits, [2, 1], draft_logits=np.tile(np.array(logits, np.float32), (3, 1)))[1] == [1.0]


def test_children_that_are_not_there() -> None:
    children, acceptance, _ = one_row([0, 0, 0, 0], [-1, 2, 4, 2, 1])
    assert children == [2, 5]  # -1 and 4 are outside the vocabulary, the second 2 is a repeat
    assert acceptance == pytest.approx([1 / 4, 1 / 3])
    children, _, weights = one_row([0.0] * 50, list(range(40)))
    assert children == list(range(1, _testing.MAX_TRIED_SIBLINGS + 1))
    assert np.flatnonzero(weights).tolist() == list(range(_testing.MAX_TRIED_SIBLINGS, 50))


def test_point_laws() -> None:
    laws = np.tile(np.array([9, 0, 0, 0], np.float32), (3, 1))
    for given in ({"temperature": 0.0, "draft_logits": laws}, {"temperature": 0.0}):
        children, acceptance, weights = one_row([0, 1, 5, 1], [1, 2], **given)
        assert children == [1, 2] and acceptance == [0.0, 1.0]
        assert np.argmax(weights) == 2 and np.count_nonzero(weights) == 1  # nothing left of r: p
    dead = np.full((3, 4), np.nan, np.float32)
    for given in ({"draft_logits": dead}, {"draft_logits": laws, "draft_rows": [-1, -1, -1]}):
        assert one_row([0, 0, 0, 0], [3, 1], **given)[1] == pytest.approx([1 / 4, 1 / 3])
    assert one_row([0, 0, 0, 0], [0, 1], draft_logits=dead, draft_rows=[-1, 0, 0])[1] == pytest.approx([1 / 4, 1 / 3])


VOCAB, FIRST = 12, 3
TABLE = np.random.default_rng(4).standard_normal((VOCAB, VOCAB)).astype(np.float32)  # logits after each token
P = np.exp(TABLE.astype(np.float64))
P /= P.sum(1, keepdims=True)


def draw_children(last: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """[N, count] ids drawn without replacement from the draft's law, in the order of drawing."""
    gumbel = rng.gumbel(size=(len(last), VOCAB))
    return np.argsort(TABLE[last] - gumbel, axis=1)[:, :count]  # draft logits: MINUS the target's


def run_round(last: np.ndarray, position: np.ndarray, drawn: bool, rng: np.random.Generator) -> tuple[Any, Any]:
    """A root with 2 children and 2 grandchildren from each, of N requests; returns num_accepted and emitted [N, 7]."""
    num, parents = len(last), [-1, 0, 0, 1, 1, 2, 2]
    tokens = np.zeros((num, 7), np.int64)
    tokens[:, 0] = last
    for row in (0, 1, 2):
        children = slice(2 * row + 1, 2 * row + 3)
        fixed = np.argsort(TABLE[tokens[:, row]], axis=1)[:, -3:-1]
        tokens[:, children] = draw_children(tokens[:, row], 2, rng) if drawn else fixed
    arrays = forest([parents] * num, tokens.ravel())
    logits = TABLE[tokens].reshape(-1, VOCAB)
    if drawn:
        arrays["draft_logits"] = -logits
    place = (position[:, None] + np.array(depths(parents))).ravel()
    rows = columns(7 * num, seed=np.repeat(np.arange(num), 7), position=place)
    best = _testing.available_instruction_sets()[0]
    accepted, _, emitted = _testing.verify_tree(best, "standard", logits, rows, VOCAB, arrays)
    return accepted, emitted.reshape(num, 7)


@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
def test_chi_square_over_rounds(drawn: bool) -> None:
    """Each token given the one before it: noise of coins, children and residuals must not mix, nor leak into rounds."""
    num, num_tokens, rng = 20_000, 4, np.random.default_rng(8)
    out = np.full((num, num_tokens + 4), -1)
    out[:, 0] = FIRST
    length = np.ones(num, np.int64)
    seen = np.zeros(3, np.int64)
    while (active := np.flatnonzero(length <= num_tokens)).size:
        # Seeds are request numbers, so all requests run; only the active ones are kept.
        accepted, emitted = run_round(out[np.arange(num), length - 1], length + 40, drawn, rng)
        seen += np.bincount(accepted[active], minlength=3)
        for place in range(3):
            write = active[accepted[active] >= place]
            out[write, length[write] + place] = emitted[write, place]
        length[active] += accepted[active] + 1
    assert (seen > 2000).all()
    assert chi_square_ok(np.bincount(out[:, 1], minlength=VOCAB), P[FIRST])
    for n in range(2, num_tokens + 1):
        pairs = np.bincount(VOCAB * out[:, n - 1] + out[:, n], minlength=VOCAB**2).reshape(VOCAB, VOCAB)
        assert chi_square_ok(pairs, P), n
    for middle in range(VOCAB):  # given the middle token the outer ones are independent
        rows = out[:, 2] == middle
        pairs = np.bincount(VOCAB * out[rows, 1] + out[rows, 3], minlength=VOCAB**2).reshape(VOCAB, VOCAB)
        assert chi_square_ok(pairs, np.broadcast_to(P[middle], (VOCAB, VOCAB))), middle


def test_all_orders_of_siblings_are_exact() -> None:
    target = random_process(9, 3, 1)
    for order in itertools.permutations(range(3)):
        logits = np.stack([target.at(()), *[target.at((t,)) for t in order]])
        rules = _testing.sibling_rules(logits, columns(4), 3, forest([STAR], [0, *order]))[0][0]
        left, law = 1.0, np.zeros(3)
        for child, probability in zip(rules[0], rules[1], strict=True):
            law[order[child - 1]] += left * probability
            left *= 1 - probability
        assert np.abs(law - target.law(())).max() < 1e-12 and left < 1e-12
