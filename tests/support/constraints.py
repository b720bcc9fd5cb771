"""Structured output by small automata, which check how the engine uses them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from support.successor import EOS


def allow(mask: np.ndarray, ids: Sequence[int] | np.ndarray) -> None:
    """Sets the bits of `ids` in a mask of the engine."""
    for token_id in ids:
        mask[token_id // 32] |= np.uint32(1 << (token_id % 32))


class ToyConstraint:
    """What may follow depends on the accepted ids; subclasses say how."""

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def allowed(self) -> list[int]:
        raise NotImplementedError

    def is_finished(self) -> bool:
        return False

    def fill_mask(self, mask: np.ndarray) -> None:
        assert not mask.any()
        allow(mask, self.allowed())

    def accept(self, token_id: int) -> bool:
        if token_id not in self.allowed():
            return False
        self.accepted.append(token_id)
        return True

    def roll_back(self, num_tokens: int) -> None:
        assert 0 < num_tokens <= len(self.accepted)
        del self.accepted[len(self.accepted) - num_tokens :]


class Choice(ToyConstraint):
    """One of some sequences; end-of-sequence where one is complete and others go on."""

    def __init__(self, choices: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self.choices = [list(choice) for choice in choices]

    def _rest(self) -> list[list[int]]:
        place = len(self.accepted)
        return [choice[place:] for choice in self.choices if choice[:place] == self.accepted]

    def allowed(self) -> list[int]:
        return [rest[0] if rest else EOS for rest in self._rest()]

    def is_finished(self) -> bool:
        return not any(self._rest())


class RandomSubsets(ToyConstraint):
    """About three quarters of the vocabulary, others after each pair of ids; finished after `length` ids, if given."""

    def __init__(self, seed: int, length: int = 0, vocab_size: int = 96) -> None:
        super().__init__()
        self.seed, self.length, self.vocab_size = seed, length, vocab_size

    def allowed(self) -> list[int]:
        key = [self.seed, len(self.accepted), *self.accepted[-2:]]
        ids: list[int] = np.flatnonzero(np.random.default_rng(key).random(self.vocab_size) < 0.75).tolist()
        return ids

    def is_finished(self) -> bool:
        return 0 < self.length <= len(self.accepted)
