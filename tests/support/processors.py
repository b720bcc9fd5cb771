"""Parameters that change the logits of every row, each strongly enough to change the ids of the constructed pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from support.constraints import RandomSubsets
from support.successor import successors


def _chain(first: int, length: int) -> list[int]:
    """What the constructed pair likes to say, beginning with `first`."""
    ids = [first]
    while len(ids) < length:
        ids.append(int(successors(96)[ids[-1]]))
    return ids


def push_pairs(prompt: list[int], output: list[int], logits: np.ndarray) -> None:
    """Depends on the prompt, on every id of the output, and on the logits."""
    logits[(sum(output) + len(prompt)) % len(logits)] += 3.0
    logits[np.argmax(logits)] -= 1.0


CASES: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.8},
    "frequency_penalty": {"frequency_penalty": 1.5},
    "presence_penalty": {"presence_penalty": 2.0},
    "negative_penalties": {"repetition_penalty": 0.6, "frequency_penalty": -1.0, "presence_penalty": -2.0},
    "logit_bias": {"logit_bias": {7: 4.0, 8: -100.0, 90: 3.0, 33: -2.5}},
    "allowed_token_ids": {"allowed_token_ids": list(range(3, 96, 2))},
    "bad_words": {"bad_words": [[5], [11], *(_chain(token, 2 + token % 2) for token in range(3, 96, 7))]},
    "min_tokens": {"min_tokens": 9, "stop_token_ids": list(range(3, 60)), "ignore_eos": False},
    "constraint": {"constraint": lambda: RandomSubsets(5)},
    "constraint_with_end": {"constraint": lambda: RandomSubsets(6, length=11)},
    "logits_processors": {"logits_processors": [push_pairs, lambda _, output, row: np.roll(row, len(output) % 3)]},
    "all": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.3,
        "logit_bias": {7: 4.0, 8: -100.0},
        "allowed_token_ids": list(range(3, 90)),
        "bad_words": [[9], [10, 11]],
        "constraint": lambda: RandomSubsets(5, length=20),
        "logits_processors": [push_pairs],
        "min_tokens": 4,
        "stop_token_ids": [30, 31, 32, 33],
        "ignore_eos": False,
        "num_logprobs": 4,
        "num_prompt_logprobs": 2,
    },
}
