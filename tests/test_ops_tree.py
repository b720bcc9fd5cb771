"""build_tree against brute force, the walk of verify_tree against plain sampling and verify_chain, compact_kv against a
copy. That kStandard is exact in distribution is the matter of test_tree_law.py."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.sampling import columns
from support.trees import depths, forest, links, random_parents
from test_op_verify_chain import random_chains

from eagle31rt import _testing

BACKENDS = ["reference", *_testing.available_instruction_sets()]
backends = pytest.mark.usefixtures("device")  # tests that `pytest --device cuda` runs, too


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        on_cuda = metafunc.config.getoption("--device") == "cuda"
        metafunc.parametrize("backend", ["cuda"] if on_cuda else BACKENDS)


Candidates = list[tuple[float, int]]  # score, parent
SCORES = [0.0, -0.0, -0.25, -0.5, -1.5, 1.0, -1e30, math.inf, -math.inf, math.nan]


def brute_force(candidates: Candidates, num_rows: int, by_candidate: bool) -> tuple[list[int], list[int]]:
    """Candidate and parent row of every row that is filled, the root left out."""
    scores: list[float] = []
    for i, (score, parent) in enumerate(candidates):
        before = scores[parent] if 0 <= parent < i else math.inf if parent == -1 else -math.inf
        scores.append(-math.inf if math.isnan(score) else min(float(np.float32(score)), before))
    able = [i for i, score in enumerate(scores) if score > -math.inf]
    chosen = sorted(able, key=lambda i: (-scores[i], i))[: num_rows - 1]
    if by_candidate:
        chosen.sort()
    rows = {candidate: row for row, candidate in enumerate(chosen, 1)} | {-1: 0}
    return chosen, [rows[candidates[candidate][1]] for candidate in chosen]


def build(backend: str, requests: list[tuple[Candidates, int]], by_candidate: bool, words: int = 2) -> Any:
    flat = [candidate for candidates, _ in requests for candidate in candidates]
    return _testing.build_tree(
        backend,
        np.array([score for score, _ in flat], np.float32),
        np.array([parent for _, parent in flat], np.int32),
        np.arange(len(flat)) * 3,
        np.cumsum([0, *(len(candidates) for candidates, _ in requests)]),
        -np.arange(len(requests)) - 100,
        np.cumsum([0, *(num_rows for _, num_rows in requests)]),
        words,
        by_candidate,
    )


def assert_is_tree(rows: dict[str, np.ndarray], request: int, expected: Any, num_rows: int, first: int) -> None:
    """The rows of one request, from `rows` cut to them; `first` is its first candidate."""
    chosen, chosen_parents = expected
    left_over = num_rows - 1 - len(chosen)
    parents = [-1, *chosen_parents, *[-1] * left_over]
    root = -request - 100
    assert rows["candidates"].tolist() == [-1, *chosen, *[-1] * left_over]
    assert rows["token_ids"].tolist() == [root, *((first + c) * 3 for c in chosen), *[root] * left_over]
    assert rows["parents"].tolist() == parents
    first_child, next_sibling = links(parents)
    assert rows["first_child"].tolist() == first_child and rows["next_sibling"].tolist() == next_sibling
    assert rows["depths"].tolist() == depths(parents)
    seen: list[int] = []
    for row, parent in enumerate(parents):
        seen.append((seen[parent] if parent >= 0 else 0) | 1 << row)
        words = rows["ancestor_mask"][row].tolist()
        assert sum(word << 64 * i for i, word in enumerate(words)) == seen[row]


@st.composite
def tree_requests(draw: st.DrawFn) -> list[tuple[Candidates, int]]:
    requests = []
    for _ in range(draw(st.integers(1, 3))):
        size = draw(st.integers(0, 24))
        broken = draw(st.booleans())
        scores = st.sampled_from(SCORES) if draw(st.booleans()) else st.floats(-20, 0, width=32)
        candidates = [
            (draw(scores), draw(st.integers(-2 if broken else -1, i if broken else i - 1))) for i in range(size)
        ]
        requests.append((candidates, draw(st.integers(0, 30))))
    return requests


@settings(max_examples=150, deadline=None)
@given(requests=tree_requests(), by_candidate=st.booleans())
@example(requests=[([], 0), ([], 1), ([(math.nan, -1)], 4)], by_candidate=False)
def test_build_tree_against_brute_force(requests: list[tuple[Candidates, int]], by_candidate: bool) -> None:
    for backend in BACKENDS:
        num_nodes, rows = build(backend, requests, by_candidate)
        begin = first = 0
        for i, (candidates, num_rows) in enumerate(requests):
            expected = brute_force(candidates, num_rows, by_candidate)
            assert num_nodes[i] == (len(expected[0]) if num_rows else 0)
            if num_rows:
                cut = {name: column[begin : begin + num_rows] for name, column in rows.items()}
                assert_is_tree(cut, i, expected, num_rows, first)
            begin, first = begin + num_rows, first + len(candidates)


def expansion(top: int, depth: int, seed: int) -> Candidates:
    """Candidates as EAGLE draws them: `top` of the root, then `top` of each of the best `top` of the level before."""
    rng = np.random.default_rng(seed)
    level = [(float(score), -1) for score in np.log(rng.dirichlet(np.ones(top)))]
    candidates, begin = list(level), 0
    for _ in range(depth - 1):
        best = sorted(range(len(level)), key=lambda i: -level[i][0])[:top]
        level = [
            (level[i][0] + float(loss), begin + i)
            for i in best
            for loss in np.sort(np.log(rng.dirichlet(np.ones(top))))[::-1]
        ]
        begin = len(candidates)
        candidates += level
    return candidates


@backends
def test_largest_trees_and_what_lies_past_the_limits(backend: str) -> None:
    candidates = expansion(10, 10, 1)
    assert len(candidates) == 910
    for num_rows, by_candidate in [(64, False), (256, True)]:
        num_nodes, rows = build(backend, [(candidates, num_rows)], by_candidate, 4)
        assert num_nodes.tolist() == [num_rows - 1]
        assert_is_tree(rows, 0, brute_force(candidates, num_rows, by_candidate), num_rows, 0)
    # Candidates from 1024 on are not looked at, rows from 256 on not touched.
    candidates = [(-1.0 - i, -1) for i in range(1024)] + [(0.0, -1)]
    num_nodes, rows = build(backend, [(candidates, 300)], False, 4)
    assert num_nodes.tolist() == [255] and rows["candidates"].tolist() == [-1, *range(255), *[-7] * 44]


@backends
def test_fewer_rows_are_the_first_rows(backend: str) -> None:
    candidates = expansion(6, 5, 2)
    _, large = build(backend, [(candidates, 40)], False, 1)
    for num_rows in (1, 2, 7, 39):
        _, small = build(backend, [(candidates, num_rows)], False, 1)
        for name in ("candidates", "token_ids", "parents", "depths", "ancestor_mask"):
            assert np.array_equal(small[name], large[name][:num_rows])


@backends
def test_conventions_of_sglang(backend: str) -> None:
    """Its conformance vectors (top 4, 4 steps, 8 rows), from candidates in which they are the best."""
    vectors = [
        ([0, 0, 1, 2, 3, 4, 5], [1, 3, 4, 5, 6, 7, -1, -1], [-1, 2, -1, -1, -1, -1, -1, -1], [0, 1, 1, 2, 2, 3, 3, 4]),
        ([0, 1, 1, 1, 1, 3, 6], [1, 2, -1, 6, -1, -1, 7, -1], [-1, -1, 3, 4, 5, -1, -1, -1], [0, 1, 2, 2, 2, 2, 3, 4]),
    ]
    requests = []
    for parents, *_ in vectors:
        good = [(-0.1 * depth, parent - 1) for depth, parent in zip(depths([-1, *parents])[1:], parents, strict=True)]
        requests.append((good + [(-5.0, -1)] * 9, 8))
    _, rows = build(backend, requests, True, 1)
    for i, (_, next_token, next_sibling, positions) in enumerate(vectors):
        cut = slice(8 * i, 8 * i + 8)
        assert rows["first_child"][cut].tolist() == next_token
        assert rows["next_sibling"][cut].tolist() == next_sibling
        assert rows["depths"][cut].tolist() == positions


def chain_as_tree(chains: dict[str, Any]) -> dict[str, Any]:
    sizes = np.diff(chains["row_begin"])
    trees = forest([list(range(-1, size - 1)) for size in sizes], chains["draft_token_ids"])
    return trees | ({"draft_logits": chains["draft_logits"]} if "draft_logits" in chains else {})


@backends
@pytest.mark.parametrize("method", ["equality", "standard"])
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
def test_a_chain_as_a_tree_is_the_chain(backend: str, method: str, drawn: bool) -> None:
    for seed, vocab_size in [(11, 90), (12, 1100)]:
        logits, rows, chains = random_chains(seed, 80, vocab_size)
        if not drawn:
            del chains["draft_logits"]
        accepted, emitted = _testing.verify_chain(backend, method, logits, rows, vocab_size, chains)
        found = _testing.verify_tree(backend, method, logits, rows, vocab_size, chain_as_tree(chains))
        assert len(set(accepted)) > 3
        assert np.array_equal(found[0], accepted) and np.array_equal(found[2], emitted)
        for begin, n in zip(chains["row_begin"], accepted, strict=False):
            assert found[1][begin : begin + n + 1].tolist() == list(range(n + 1))


def random_trees(seed: int, num: int, vocab_size: int) -> tuple[np.ndarray, dict[str, Any], dict[str, Any]]:
    """Requests of 0 to 40 rows; most rows have a child that was fed what the plain sampler draws."""
    rng = np.random.default_rng(seed)
    parents = [random_parents(int(rng.integers(1, 41)), rng) for _ in range(num)]
    num_rows = sum(map(len, parents))
    logits, rows, _ = random_chains(seed, num_rows, vocab_size)
    logits, rows = logits[:num_rows], {k: v[: num_rows + (k == "masked_begin")] for k, v in rows.items()}
    plain, _ = _testing.sample("reference", logits, rows, vocab_size)
    tokens = rng.integers(-1, vocab_size + 1, num_rows)
    begin = 0
    for request in parents:
        for row in range(1, len(request)):
            if rng.random() < 0.7:
                tokens[begin + row] = plain[begin + request[row]]
        begin += len(request)
    trees = forest(parents, tokens)
    trees["row_begin"] = np.insert(trees["row_begin"], num // 2, trees["row_begin"][num // 2])  # padding
    trees["draft_logits"] = (logits[:, : vocab_size - 7] + rng.standard_normal((num_rows, vocab_size - 7))).astype("f4")
    trees["draft_rows"] = np.where(rng.random(num_rows) < 0.2, -1, rng.permutation(num_rows))
    trees["draft_to_target"] = np.sort(rng.permutation(vocab_size)[: vocab_size - 7])
    return logits, rows, trees


@backends
def test_equality_takes_the_path_of_plain_samples(backend: str) -> None:
    logits, rows, trees = random_trees(3, 150, 60)
    plain, _ = _testing.sample("reference", logits, rows, 60)
    accepted, path_rows, emitted = _testing.verify_tree(backend, "equality", logits, rows, 60, trees)
    assert len(set(accepted)) > 5
    for i, (begin, end) in enumerate(zip(trees["row_begin"][:-1], trees["row_begin"][1:], strict=True)):
        path, size = [0], end - begin
        while begin < end:
            sampled = plain[begin + path[-1]]
            child = trees["first_child"][begin + path[-1]] if sampled >= 0 else -1
            while child >= 0 and trees["token_ids"][begin + child] != sampled:
                child = trees["next_sibling"][begin + child]
            if child < 0:
                break
            path.append(int(child))
        if begin == end or plain[begin + path[-1]] < 0:
            path.pop()  # what plain decoding emits before it fails
        assert accepted[i] == len(path) - 1
        assert path_rows[begin:end].tolist() == path + [-1] * (size - len(path))
        assert emitted[begin:end].tolist() == [*plain[begin:][path], *[-1] * (size - len(path))]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_equality_gives_the_ids_of_plain_decoding(temperature: float) -> None:
    """Random trees round after round, and one token after the other: the same ids for the same seeds."""
    rng, vocab_size, num, num_tokens = np.random.default_rng(6), 8, 60, 12
    table = rng.standard_normal((vocab_size, vocab_size)).astype(np.float32)

    def rows_at(seed: Any, position: Any) -> dict[str, np.ndarray]:
        return columns(len(position), seed=seed, position=position, temperature=temperature)

    plain = np.zeros((num, num_tokens + 1), np.int64)
    for n in range(num_tokens):
        drawn = _testing.sample(
            BACKENDS[1], table[plain[:, n]], rows_at(np.arange(num), np.full(num, n + 5)), vocab_size
        )
        plain[:, n + 1] = drawn[0]
    accepted_in_all = 0
    for request in range(num):
        out = [0]
        while len(out) <= num_tokens:
            parents = random_parents(int(rng.integers(1, 30)), rng)
            tokens = [out[-1], *rng.integers(0, vocab_size, len(parents) - 1)]
            position = len(out) + 4 + np.array(depths(parents))
            accepted, _, emitted = _testing.verify_tree(
                BACKENDS[1],
                "equality",
                table[tokens],
                rows_at(request, position),
                vocab_size,
                forest([parents], tokens),
            )
            out += emitted[: accepted[0] + 1].tolist()
            accepted_in_all += accepted[0]
        assert out[: num_tokens + 1] == plain[request].tolist()
    assert accepted_in_all > num * num_tokens / 5


@backends
@pytest.mark.parametrize("drawn", [True, False], ids=["drawn", "fixed"])
def test_standard_equals_the_reference(backend: str, drawn: bool) -> None:
    for seed, vocab_size in [(4, 60), (5, 1100)]:
        logits, rows, trees = random_trees(seed, 50, vocab_size)
        if not drawn:
            del trees["draft_logits"]
        expected = _testing.verify_tree("reference", "standard", logits, rows, vocab_size, trees)
        found = _testing.verify_tree(backend, "standard", logits, rows, vocab_size, trees)
        assert len(set(expected[0])) > 3
        for a, b in zip(expected, found, strict=True):
            assert np.array_equal(a, b)


@backends
@pytest.mark.parametrize("method", ["equality", "standard"])
def test_links_that_do_not_ascend_end_the_walk(backend: str, method: str) -> None:
    logits = np.zeros((4, 5), np.float32)
    logits[:, 2] = 50
    trees = forest([[-1, 0, 0, 2]], [0, 4, 2, 2])
    trees["next_sibling"][1] = 1  # its own sibling
    assert _testing.verify_tree(backend, method, logits, columns(4), 5, trees)[0].tolist() == [0]
    trees["next_sibling"][1] = 2
    trees["first_child"][3] = 0
    accepted, path, emitted = _testing.verify_tree(backend, method, logits, columns(4), 5, trees)
    assert accepted.tolist() == [2] and path.tolist() == [0, 2, 3, -1] and emitted.tolist() == [2, 2, 2, -1]


def test_all_rows_are_sampled_where_they_run_side_by_side() -> None:
    assert [_testing.samples_all_rows(64 * n, n) for n in (1, 8, 13, 14, 32, 512)] == [True] * 3 + [False] * 3
    assert _testing.samples_all_rows(4 * 512, 512)  # chains: as many rounds of rows as of walks


@pytest.mark.parametrize("method", ["block", "synthetic"])
def test_methods_of_chains_are_refused_by_name(method: str) -> None:
    with pytest.raises(NotImplementedError, match=f'"{method}" verifies chains only'):
        _testing.verify_tree(BACKENDS[1], method, np.zeros((1, 4), "f4"), columns(1), 4, forest([[-1]], [0]))


@backends
@pytest.mark.parametrize("dims_fastest", [True, False])
@pytest.mark.parametrize("num_layers", [1, 3])
@pytest.mark.parametrize(("page_size", "dtype"), [(1, np.float32), (4, np.uint16), (16, np.uint16), (5, np.float32)])
def test_compact_kv(backend: str, dims_fastest: bool, num_layers: int, page_size: int, dtype: Any) -> None:
    rng = np.random.default_rng(page_size)
    parents = [random_parents(int(rng.integers(1, 20)), rng) for _ in range(9)]
    pages_each = 20 // page_size + 2
    pages = rng.permutation(9 * pages_each).reshape(9, pages_each)
    row_begin, slots, num_accepted, path_rows = [0], [], [], []
    for i, request in enumerate(parents):
        entries = rng.integers(page_size) + np.arange(len(request))
        slots += (pages[i][entries // page_size] * page_size + entries % page_size).tolist()
        path = sorted({0, *rng.integers(0, len(request), len(request) // 2).tolist()})
        num_accepted.append(len(path) - 1 if i != 4 else -1)
        path_rows += path + [-1] * (len(request) - len(path))
        row_begin.append(len(slots))
    slots[row_begin[2] + 1] = -1
    shape = (9 * pages_each, 3, page_size, 8)
    raw = [rng.integers(0, 2**16, shape).astype(dtype) for _ in range(2 * num_layers)]
    keys, values = raw[:num_layers], raw[num_layers:]
    expected = [cache.copy() for cache in raw]
    for i, n in enumerate(num_accepted):
        for place in range(1, n + 1):
            source, target = slots[row_begin[i] + path_rows[row_begin[i] + place]], slots[row_begin[i] + place]
            for old, new in zip(raw, expected, strict=True):
                if source >= 0 and target >= 0:
                    new[target // page_size, :, target % page_size] = old[source // page_size, :, source % page_size]
    keys = [(key if dims_fastest else key.swapaxes(2, 3)).copy() for key in keys]
    values = [value.copy() for value in values]
    _testing.compact_kv(backend, keys, values, page_size, dims_fastest, row_begin, slots, num_accepted, path_rows)
    if not dims_fastest:
        keys = [key.swapaxes(2, 3) for key in keys]
    for found, wanted in zip([*keys, *values], expected, strict=True):
        assert np.array_equal(found, wanted)
    assert not np.array_equal(expected[0], raw[0])
