"""Arrays of SGLang and TensorRT-LLM: conformance vectors, the operator build_tree, and round trips."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.trees import random_parents

from eagle31rt import _testing
from eagle31rt import tree_arrays as arrays
from eagle31rt.errors import InvalidArgumentError

# SGLang's own vectors: top 4, 4 steps, 8 nodes, sequences of 5 and 10 tokens.
TREES = [[-1, 0, 0, 1, 2, 3, 4, 5], [-1, 0, 1, 1, 1, 1, 3, 6]]
POSITIONS = [5, 6, 6, 7, 7, 8, 8, 9, 10, 11, 12, 12, 12, 12, 13, 14]
NEXT_TOKEN = [[1, 3, 4, 5, 6, 7, -1, -1], [1, 2, -1, 6, -1, -1, 7, -1]]
NEXT_SIBLING = [[-1, 2, -1, -1, -1, -1, -1, -1], [-1, -1, 3, 4, 5, -1, -1, -1]]

seeds = st.integers(0, 10_000)


def test_vectors_of_sglang() -> None:
    found = arrays.to_sglang(TREES, [5, 10])
    assert found.positions.tolist() == POSITIONS
    assert found.retrieve_next_token.tolist() == NEXT_TOKEN
    assert found.retrieve_next_sibling.tolist() == NEXT_SIBLING
    assert found.retrieve_index.tolist() == [list(range(8)), list(range(8, 16))]
    assert arrays.from_sglang(NEXT_TOKEN, NEXT_SIBLING) == TREES


def test_masks_of_sglang() -> None:
    full = arrays.sglang_full_mask(TREES, [5, 10])
    assert full.size == 8 * 13 + 8 * 18
    first = full[: 8 * 13].reshape(8, 13)
    assert first[:, :6].all() and first[7, 5:].tolist() == [True, True, False, True, False, True, False, True]
    packed = arrays.sglang_packed_mask(TREES)
    assert packed.dtype == np.uint8
    assert packed[:8].tolist() == [0b1, 0b11, 0b101, 0b1011, 0b10101, 0b101011, 0b1010101, 0b10101011]
    assert arrays.from_masks(packed[8:].tolist()) == TREES[1]


@pytest.mark.parametrize(("size", "dtype"), [(8, np.uint8), (9, np.uint16), (16, np.uint16), (17, np.uint32)])
def test_width_of_packed_masks(size: int, dtype: type) -> None:
    assert arrays.sglang_packed_mask([list(range(-1, size - 1))]).dtype == dtype


def test_a_tree_of_tensorrt() -> None:
    found = arrays.to_tensorrt([TREES[0], [-1, 0, 0]], 33)
    assert found.generation_lengths.tolist() == [8, 3]
    assert found.position_offsets[:, :8].tolist() == [[0, 1, 1, 2, 2, 3, 3, 4], [0, 1, 1, 0, 0, 0, 0, 0]]
    assert found.packed_mask.shape == (2, 33, 2)
    assert found.packed_mask[0, 7].tolist() == [0b10101011, 0] and found.packed_mask[1, 3].tolist() == [0, 0]
    assert found.draft_paths[0, :3].tolist() == [[0, 2, 4, 6, -1], [0, 1, 3, 5, 7], [-1] * 5]
    assert found.draft_paths[1, :3].tolist() == [[0, 1, -1, -1, -1], [0, 2, -1, -1, -1], [-1] * 5]


@settings(max_examples=60, deadline=None)
@given(seed=seeds, size=st.integers(1, 70))
def test_round_trips(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    trees = [random_parents(size, rng) for _ in range(3)]
    links = arrays.to_sglang(trees, [1, 2, 3])
    assert arrays.from_sglang(links.retrieve_next_token, links.retrieve_next_sibling) == trees
    packed = arrays.to_tensorrt(trees, size + 5)
    assert arrays.from_tensorrt(packed.packed_mask, packed.generation_lengths.tolist()) == trees
    if size <= 32:
        rows = arrays.sglang_packed_mask(trees).reshape(3, size)
        assert [arrays.from_masks(row.tolist()) for row in rows] == trees


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.integers(1, 40))
def test_rows_of_build_tree_are_these_arrays(seed: int, size: int) -> None:
    parents = random_parents(size, np.random.default_rng(seed))
    scores = -np.array(arrays.depths(parents)[1:], np.float32)
    candidates = np.array([parent - 1 for parent in parents[1:]], np.int32)
    _, rows = _testing.build_tree(
        "reference", scores, candidates, np.arange(size - 1), np.array([0, size - 1]), np.zeros(1), [0, size], 1, True
    )
    links = arrays.to_sglang([parents], [0])
    assert rows["first_child"].tolist() == links.retrieve_next_token[0].tolist()
    assert rows["next_sibling"].tolist() == links.retrieve_next_sibling[0].tolist()
    assert rows["depths"].tolist() == links.positions.tolist()
    assert arrays.from_masks([int(row[0]) for row in rows["ancestor_mask"]]) == parents


def test_what_is_no_tree_is_refused() -> None:
    for parents in ([0], [-1, -1], [-1, 1], [-1, 2, 0]):
        with pytest.raises(InvalidArgumentError, match="parents"):
            arrays.ancestor_matrix(parents)
    with pytest.raises(InvalidArgumentError, match="links of node 1 lead to node 2"):
        arrays.from_sglang([[1, 2, -1]], [[-1, 2, -1]])
    with pytest.raises(InvalidArgumentError, match=r"parents\[2\]"):
        arrays.from_sglang([[1, -1, -1]], [[-1, -1, -1]])
    with pytest.raises(InvalidArgumentError, match="lead to node 9"):
        arrays.from_sglang([[1, 9, -1]], [[-1, -1, -1]])
    with pytest.raises(InvalidArgumentError, match="row 3"):
        arrays.from_masks([0b1, 0b11, 0b101, 0b1110])
    with pytest.raises(InvalidArgumentError, match="up to 32 nodes"):
        arrays.sglang_packed_mask([list(range(-1, 32))])
    with pytest.raises(InvalidArgumentError, match="one size"):
        arrays.to_sglang([[-1], [-1, 0]], [1, 1])
    with pytest.raises(InvalidArgumentError, match="more than 2 nodes"):
        arrays.to_tensorrt([[-1, 0, 0]], 2)
