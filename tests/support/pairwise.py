"""Few combinations that hold every pair of values of every two parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

Pair = tuple[tuple[str, int], tuple[str, int]]  # (name, index of its value), names in the order of the table


def pairwise(choices: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Each row begins with a pair that is still missing; then each name takes the value that covers the most others."""
    names = list(choices)
    place = {name: index for index, name in enumerate(names)}
    missing: dict[Pair, None] = {  # a dict keeps the order, so that the rows are the same everywhere
        ((first, i), (second, j)): None
        for first, second in combinations(names, 2)
        for i in range(len(choices[first]))
        for j in range(len(choices[second]))
    }

    def pair(one: tuple[str, int], other: tuple[str, int]) -> Pair:
        return (one, other) if place[one[0]] < place[other[0]] else (other, one)

    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for name in names:
            if name not in row:
                gains = [
                    sum(pair((name, value), chosen) in missing for chosen in row.items())
                    for value in range(len(choices[name]))
                ]
                row[name] = gains.index(max(gains))
        for one, other in combinations(row.items(), 2):
            missing.pop(pair(one, other), None)
        rows.append({name: choices[name][row[name]] for name in names})
    return rows
