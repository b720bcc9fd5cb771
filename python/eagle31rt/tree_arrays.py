"""Draft trees as the arrays of SGLang and TensorRT-LLM, read and written; pure numpy.

A tree is its list of parents: entry 0 is the root (-1), the newest token, and every parent stands before its children.
That is the order of the operator build_tree and of both engines. Batches are lists of trees; SGLang's are of one size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from eagle31rt.errors import InvalidArgumentError

Parents = Sequence[int]
Integers = npt.NDArray[np.int64]
_MAX_PACKED_NODES = 32  # of SGLang's packed masks


@dataclass(frozen=True)
class SglangTrees:
    """SGLang's arrays of `bs` trees of D nodes, the root counted; links are -1 where there is none."""

    positions: Integers  # [bs * D]
    retrieve_index: Integers  # [bs, D] row of the node in the flattened batch
    retrieve_next_token: Integers  # [bs, D] first child
    retrieve_next_sibling: Integers  # [bs, D]


@dataclass(frozen=True)
class TensorrtTrees:
    """TensorRT-LLM's arrays of trees of up to D nodes, the root counted; padded with 0, paths with -1."""

    generation_lengths: npt.NDArray[np.int32]  # [bs] nodes
    position_offsets: npt.NDArray[np.int32]  # [bs, D] depth of a node
    packed_mask: npt.NDArray[np.int32]  # [bs, D, ceil(D / 32)] bit j % 32 of word j / 32: the node sees node j
    draft_paths: npt.NDArray[np.int32]  # [bs, D, most depth + 1] from the root to each leaf, in order of the leaves


def ancestor_matrix(parents: Parents) -> npt.NDArray[np.bool_]:
    """[D, D]: row i sees itself, its ancestors and so the root. Raises InvalidArgumentError if it is no tree."""
    seen = np.eye(len(parents), dtype=np.bool_)
    for node, parent in enumerate(parents):
        if parent != -1 if node == 0 else not 0 <= parent < node:
            raise InvalidArgumentError(f"parents[{node}] is {parent}; the root has -1, others an earlier node")
        if node > 0:
            seen[node] |= seen[parent]
    return seen


def depths(parents: Parents) -> list[int]:
    return [int(row.sum()) - 1 for row in ancestor_matrix(parents)]


def to_sglang(trees: Sequence[Parents], sequence_lengths: Sequence[int]) -> SglangTrees:
    """sequence_lengths: tokens that have KV, before the root."""
    if len({len(parents) for parents in trees}) > 1 or len(trees) != len(sequence_lengths):
        raise InvalidArgumentError("SGLang's trees are of one size, with one sequence length each")
    links = np.full((2, len(trees), len(trees[0]) if trees else 0), -1, np.int64)
    for i, parents in enumerate(trees):
        last_child: dict[int, int] = {}
        for node, parent in enumerate(parents[1:], 1):
            kind, from_node = (1, last_child[parent]) if parent in last_child else (0, parent)
            links[kind, i, from_node] = node
            last_child[parent] = node
    positions = [n + depth for parents, n in zip(trees, sequence_lengths, strict=True) for depth in depths(parents)]
    rows = np.arange(links[0].size, dtype=np.int64).reshape(links[0].shape)
    return SglangTrees(np.array(positions, np.int64), rows, links[0], links[1])


def from_sglang(next_token: npt.ArrayLike, next_sibling: npt.ArrayLike) -> list[list[int]]:
    """The trees of retrieve_next_token and retrieve_next_sibling, both [bs, D]."""
    first, sibling = np.asarray(next_token), np.asarray(next_sibling)
    if first.ndim != 2 or first.shape != sibling.shape:
        raise InvalidArgumentError(f"retrieve_next_token is {first.shape} and retrieve_next_sibling {sibling.shape}")
    return [_parents_of_links(one.tolist(), other.tolist()) for one, other in zip(first, sibling, strict=True)]


def _parents_of_links(first_child: list[int], next_sibling: list[int]) -> list[int]:
    size = len(first_child)
    parents = [-1] * size
    for node in range(size):
        child, last = first_child[node], node
        while child != -1:
            if not last < child < size or parents[child] != -1:
                raise InvalidArgumentError(f"links of node {node} lead to node {child}, which is no later, new node")
            parents[child], last, child = node, child, next_sibling[child]
    ancestor_matrix(parents)  # every node was reached
    return parents


def sglang_full_mask(trees: Sequence[Parents], sequence_lengths: Sequence[int]) -> npt.NDArray[np.bool_]:
    """FULL_MASK: for each tree D rows of (sequence length + D), all of them in one flat array."""
    parts = [
        np.concatenate([np.ones((len(parents), n), np.bool_), ancestor_matrix(parents)], axis=1).ravel()
        for parents, n in zip(trees, sequence_lengths, strict=True)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.bool_)


def sglang_packed_mask(trees: Sequence[Parents]) -> npt.NDArray[np.unsignedinteger]:
    """QLEN_ONLY_BITPACKING: one number of 1, 2 or 4 bytes for each row, [bs * D]; bit j: the row sees node j."""
    size = max((len(parents) for parents in trees), default=0)
    if size > _MAX_PACKED_NODES:
        raise InvalidArgumentError(f"SGLang packs masks of up to {_MAX_PACKED_NODES} nodes, and a tree has {size}")
    dtype = np.uint8 if size <= 8 else np.uint16 if size <= 16 else np.uint32
    rows = [int(sum(1 << j for j in np.flatnonzero(row))) for parents in trees for row in ancestor_matrix(parents)]
    return np.array(rows, dtype)


def from_masks(rows: Sequence[int]) -> list[int]:
    """The tree of packed masks, one number a row, of any width: a row's parent is the last other node that it sees."""
    parents = [(row & ~(1 << node)).bit_length() - 1 for node, row in enumerate(rows)]
    for node, row in enumerate(ancestor_matrix(parents)):
        if int(sum(1 << int(j) for j in np.flatnonzero(row))) != rows[node]:
            raise InvalidArgumentError(f"row {node} of the masks does not see the path of one node: {rows[node]:#x}")
    return parents


def to_tensorrt(trees: Sequence[Parents], num_nodes: int) -> TensorrtTrees:
    """num_nodes: D, at least the size of every tree."""
    if any(len(parents) > num_nodes for parents in trees):
        raise InvalidArgumentError(f"a tree has more than {num_nodes} nodes")
    levels = [depths(parents) for parents in trees]
    deepest = max((max(level) for level in levels), default=0)
    result = TensorrtTrees(
        np.array([len(parents) for parents in trees], np.int32),
        np.zeros((len(trees), num_nodes), np.int32),
        np.zeros((len(trees), num_nodes, -(-num_nodes // 32)), np.int32),
        np.full((len(trees), num_nodes, deepest + 1), -1, np.int32),
    )
    for i, parents in enumerate(trees):
        result.position_offsets[i, : len(parents)] = levels[i]
        leaves = sorted(set(range(len(parents))) - set(parents))
        for place, row in enumerate(ancestor_matrix(parents)[leaves]):
            path = np.flatnonzero(row)
            result.draft_paths[i, place, : path.size] = path
        for node, row in enumerate(ancestor_matrix(parents)):
            for seen in np.flatnonzero(row).tolist():
                result.packed_mask.view(np.uint32)[i, node, seen // 32] |= np.uint32(1 << seen % 32)
    return result


def from_tensorrt(packed_mask: npt.ArrayLike, generation_lengths: Sequence[int]) -> list[list[int]]:
    """The trees of packed_mask [bs, D, words]."""
    words = np.asarray(packed_mask, np.int32).view(np.uint32)
    if words.ndim != 3 or len(words) != len(generation_lengths):
        raise InvalidArgumentError(f"packed_mask is {words.shape} for {len(generation_lengths)} generation_lengths")
    return [
        from_masks([sum(int(word) << 32 * k for k, word in enumerate(row)) for row in words[i, :length]])
        for i, length in enumerate(generation_lengths)
    ]
