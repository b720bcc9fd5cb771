"""EAGLE-2's dynamic draft tree in plain numpy, from eagle31_spec 5.1, one node at a time; greedy verification.

A node is the tuple of its tokens. Nothing is shared between nodes: the draft runs the whole path of each anew, so there
are no masks here that could be wrong.
"""

from __future__ import annotations

import numpy as np

from support.oracle import Target
from support.oracle_draft import Draft, DraftCache

Node = tuple[int, ...]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


def _children(draft: Draft, state: np.ndarray, logits: np.ndarray, node: Node, cache: DraftCache, top_k: int) -> list:
    """(token, log-probability) of the most probable tokens behind `node`; state and logits are those of the root."""
    length = len(cache)
    for token in node:
        rows, state = draft.forward(state, [token], cache)
        logits = rows[-1]
    cache.truncate(length)
    law = _log_softmax(logits)
    return [(int(draft.target_ids[i]), float(law[i])) for i in np.argsort(-law, kind="stable")[:top_k]]


def grow_tree(
    draft: Draft, features: np.ndarray, token_ids: list[int], cache: DraftCache, budget: int, top_k: int, depth: int
) -> list[Node]:
    """Feeds the true features [m, H] with their tokens, which stay in the cache, and drafts `budget` nodes."""
    rows, states = draft.forward(features, token_ids, cache)
    state, logits = states[-1:], rows[-1]
    scores: dict[Node, float] = {}
    frontier: list[tuple[Node, float]] = [((), 0.0)]
    for _ in range(depth):
        level = {}
        for node, score in frontier:
            for token, logprob in _children(draft, state, logits, node, cache, top_k):
                level[(*node, token)] = score + logprob
        scores |= level
        frontier = sorted(level.items(), key=lambda item: -item[1])[:top_k]
    return sorted(scores, key=lambda node: -scores[node])[:budget]


def speculate_with_trees(
    target: Target, draft: Draft, prompt: list[int], max_tokens: int, budget: int, top_k: int, depth: int
) -> tuple[list[int], list[int]]:
    """Greedy: the ids, and the tokens emitted by each round; the first is the prompt's."""
    caches, draft_cache = target.new_caches(), draft.new_cache()
    logits, residuals = target.forward(prompt, caches)
    pending = draft.captured(residuals)  # true features that the draft has not seen
    emitted = [int(logits[-1].argmax())]
    runs = [1]
    while len(emitted) < max_tokens:
        tokens = prompt + emitted
        levels = min(depth, max_tokens - len(emitted) - 1)
        nodes: list[Node] = []
        if levels > 0:
            shifted = tokens[len(draft_cache) + 1 :]
            nodes = grow_tree(draft, draft.fuse(pending), shifted, draft_cache, budget, top_k, levels)
            pending = pending[:0]
        path: Node = ()
        while True:  # the target sees nothing but the accepted path
            fed = path[-1] if path else tokens[-1]
            logits, residuals = target.forward([fed], caches)
            pending = np.concatenate([pending, draft.captured(residuals)])
            wanted = int(logits[-1].argmax())
            if (*path, wanted) not in nodes:
                break
            path = (*path, wanted)
        emitted += [*path, wanted]
        runs.append(len(path) + 1)
    return emitted, runs
