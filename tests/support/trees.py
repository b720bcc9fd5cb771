"""Draft trees as arrays: links from parents, random trees, paths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def links(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """first_child and next_sibling of one request, siblings in ascending order; parents[0] is -1, the root."""
    first_child, next_sibling = [-1] * len(parents), [-1] * len(parents)
    last_child: dict[int, int] = {}
    for row, parent in enumerate(parents):
        if parent < 0:
            continue
        (next_sibling if parent in last_child else first_child)[last_child.get(parent, parent)] = row
        last_child[parent] = row
    return first_child, next_sibling


def depths(parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    for parent in parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return found


def random_parents(num_rows: int, rng: np.random.Generator) -> list[int]:
    """A chain, a star, or something between."""
    span = int(rng.integers(1, num_rows + 1))
    return [-1] + [int(rng.integers(max(0, row - span), row)) for row in range(1, num_rows)]


def forest(parents: Sequence[Sequence[int]], token_ids: Any) -> dict[str, Any]:
    """The arrays that _testing.verify_tree takes, of requests with these parents."""
    pairs = [links(p) for p in parents]
    return {
        "row_begin": np.cumsum([0, *map(len, parents)]),
        "token_ids": np.asarray(token_ids),
        "first_child": np.concatenate([first for first, _ in pairs]),
        "next_sibling": np.concatenate([sibling for _, sibling in pairs]),
    }
