"""Which conversations make up each optimizer step: a function of lengths and seed only, so a run can go on anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from eagle31rt.training.conversations import GIVEN, Conversation, ConversationStore
from eagle31rt.training.features import FeatureCache
from eagle31rt.training.unroll import Batch

_VALIDATION_EVERY = 50  # one conversation in so many is never trained on
_MIN_TOKENS = 8  # shorter ones hold no chain worth a row


@dataclass(frozen=True)
class BatchPlan:
    group: int
    conversations: tuple[int, ...]  # indices within the group


class Dataset:
    """The conversations of a store with their states, split into training and validation."""

    def __init__(
        self,
        store: ConversationStore,
        features: FeatureCache,
        kept: torch.Tensor,
        vocab_size: int,
        device: str,
        train_on_prompts: bool = True,
    ) -> None:
        self._store, self._features, self._device = store, features, device
        self._train_on_prompts = train_on_prompts
        self._in_vocabulary = np.zeros(vocab_size, bool)
        self._in_vocabulary[kept.numpy()] = True
        self._loaded: tuple[int, list[Conversation]] = (-1, [])
        self.training: dict[int, list[int]] = {}  # group -> indices
        self.validation: list[BatchPlan] = []
        self._lengths: dict[int, list[int]] = {}
        self._split()

    def _split(self) -> None:
        count = 0
        for group in range(len(self._store)):
            conversations = self._store.read(group)
            self._lengths[group] = [len(conversation) for conversation in conversations]
            long = [i for i, c in enumerate(conversations) if len(c) >= _MIN_TOKENS]
            answered = [i for i in long if bool((conversations[i].roles > GIVEN).any())]
            usable = long if self._train_on_prompts else answered
            held_out = [i for n, i in enumerate(answered) if (count + n) % _VALIDATION_EVERY == _VALIDATION_EVERY // 2]
            count += len(answered)
            self.training[group] = [i for i in usable if i not in held_out]
            if held_out:
                self.validation.append(BatchPlan(group, tuple(held_out)))
        largest = max(self.training, key=lambda group: len(self.training[group]), default=-1)
        if not self.validation and largest >= 0 and len(self.training[largest]) >= 2:  # little data: one all the same
            own, conversations = self.training[largest], self._store.read(largest)
            last = next((i for i in reversed(own) if conversations[i].prompt), own[-1])
            own.remove(last)
            self.validation.append(BatchPlan(largest, (last,)))

    @property
    def num_training_tokens(self) -> int:
        return sum(self._lengths[group][i] for group, indices in self.training.items() for i in indices)

    def epoch(self, index: int, batch_tokens: int, seed: int) -> list[BatchPlan]:
        """The batches of one pass over the training data, in random order by (seed, index).

        Groups follow each other, so that the states of one are in use at a time; batches within a group hold
        conversations of similar length, since attention works on their rectangle.
        """
        random = np.random.default_rng([seed, index])
        plans: list[BatchPlan] = []
        for group in random.permutation(sorted(self.training)):
            lengths = self._lengths[int(group)]
            jitter = random.permutation(self.training[int(group)])
            by_length = sorted(jitter.tolist(), key=lambda i: lengths[i] // 64)
            own: list[BatchPlan] = []
            chosen: list[int] = []
            for i in by_length:
                chosen.append(i)
                if sum(lengths[j] for j in chosen) >= batch_tokens:
                    own.append(BatchPlan(int(group), tuple(chosen)))
                    chosen = []
            if chosen:
                own.append(BatchPlan(int(group), tuple(chosen)))
            plans += [own[i] for i in random.permutation(len(own))]
        return plans

    def conversations(self, plan: BatchPlan) -> list[Conversation]:
        if self._loaded[0] != plan.group:
            self._loaded = (plan.group, self._store.read(plan.group))
        return [self._loaded[1][i] for i in plan.conversations]

    def held_out_prompts(self, count: int, batch_tokens: int, seed: int) -> list[list[int]]:
        """Prompts of conversations that are never trained on; of training only if there is a single conversation."""
        prompts = self._prompts(self.validation) or self._prompts(self.epoch(0, batch_tokens, seed))
        return prompts[:: max(1, len(prompts) // count)][:count]

    def _prompts(self, plans: list[BatchPlan]) -> list[list[int]]:
        return [c.prompt for plan in plans for c in self.conversations(plan) if c.prompt]

    def load(self, plan: BatchPlan, answers_only: bool = False) -> Batch:
        """`answers_only`: count the answers alone even if training counts more, since acceptance is judged on them."""
        conversations = self.conversations(plan)
        shard = self._features.get(plan.group)
        first = np.concatenate([[0], np.cumsum(self._lengths[plan.group])])
        states = [shard.rows(int(first[i]), int(first[i + 1])) for i in plan.conversations]
        token_ids = np.concatenate([c.token_ids for c in conversations]).astype(np.int64)
        roles = np.concatenate([c.roles for c in conversations])
        counted = self._in_vocabulary[token_ids]  # no draft can propose another
        if answers_only or not self._train_on_prompts:
            counted = counted & (roles > GIVEN)

        def move(array: npt.NDArray[Any]) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

        return Batch(
            token_ids=move(token_ids),
            counted=move(counted),
            captured=move(np.concatenate([captured for captured, _ in states])),
            last=move(np.concatenate([last for _, last in states])),
            lengths=[len(c) for c in conversations],
        )

    def stream(self, batch_tokens: int, seed: int) -> Iterator[tuple[int, BatchPlan]]:
        """(epoch, batch) without end."""
        epoch = 0
        while True:
            for plan in self.epoch(epoch, batch_tokens, seed):
                yield epoch, plan
            epoch += 1
