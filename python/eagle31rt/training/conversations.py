"""Conversations as token ids on disk: one .npz file a group, complete or not there."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from eagle31rt.errors import CheckpointError
from eagle31rt.training.files import atomic_file, writing

GIVEN, USER, ASSISTANT = 0, 1, 2  # roles: template or prompt; user text, or answer, that the target wrote itself

_DAMAGE = (OSError, ValueError, KeyError, EOFError, NotImplementedError, MemoryError)  # what np.load may raise

Ids = npt.NDArray[np.int32]
Roles = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Conversation:
    token_ids: Ids  # [n]
    roles: Roles  # [n]

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def prompt(self) -> list[int]:
        """What stands before the target's first answer; empty if there is none."""
        first: int = (self.roles == ASSISTANT).argmax()
        ids: list[int] = self.token_ids[:first].tolist()
        return ids


class ConversationStore:
    """The groups tokens-00000.npz, tokens-00001.npz, ... of a folder. A group that is not full may grow at its end."""

    def __init__(self, folder: Path, vocab_size: int = 2**31 - 1) -> None:
        self.folder = folder
        self._vocab_size = vocab_size

    def path(self, group: int) -> Path:
        return self.folder / f"tokens-{group:05d}.npz"

    def __len__(self) -> int:
        """Groups from 0 on without a gap."""
        count = 0
        while self.path(count).is_file():
            count += 1
        return count

    def __contains__(self, group: int) -> bool:
        return self.path(group).is_file()

    def check_complete(self) -> None:
        """Raises CheckpointError for groups after a gap: they would not be trained on."""
        count = len(self)
        if any(path > self.path(count) for path in self.folder.glob("tokens-*.npz")):
            advice = "give --self-generate or --prompts as before, and --resume makes it again"
            raise CheckpointError(f"{self.path(count)} is missing: {advice}")

    def write(self, group: int, conversations: Sequence[Conversation]) -> None:
        """Raises ResourceError naming the file that cannot be written."""
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        token_ids = np.concatenate([c.token_ids for c in conversations] or [np.empty(0, np.int32)])
        roles = np.concatenate([c.roles for c in conversations] or [np.empty(0, np.uint8)])
        lengths = np.array([len(c) for c in conversations], np.int32)
        with atomic_file(self.path(group)) as file:
            np.savez_compressed(file, token_ids=token_ids, roles=roles, lengths=lengths)

    def read(self, group: int) -> list[Conversation]:
        """Raises CheckpointError for a file that is damaged or of another target."""
        path = self.path(group)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                ids, roles, lengths = arrays["token_ids"], arrays["roles"], arrays["lengths"]
            self._check(ids, roles, lengths)
        except (*_DAMAGE, BadZipFile, zlib.error) as error:
            advice = "remove it; --resume with the same --self-generate or --prompts makes it again"
            raise CheckpointError(f"{path} is damaged ({error}): {advice}") from error
        ids, roles, ends = ids.astype(np.int32), roles.astype(np.uint8), np.cumsum(lengths)
        return [Conversation(i, r) for i, r in zip(np.split(ids, ends)[:-1], np.split(roles, ends)[:-1], strict=True)]

    def _check(self, ids: npt.NDArray[Any], roles: npt.NDArray[Any], lengths: npt.NDArray[Any]) -> None:
        if not all(array.ndim == 1 and array.dtype.kind in "iu" for array in (ids, roles, lengths)):
            raise ValueError("not rows of integers")
        if len(lengths) and (lengths.min() < 1 or lengths.max() > len(ids)):  # also keeps the sum from wrapping around
            raise ValueError(f"a length is outside 1 to {len(ids)}")
        if not len(ids) == len(roles) == lengths.sum():
            raise ValueError(f"lengths add up to {lengths.sum()} for {len(ids)} ids and {len(roles)} roles")
        if len(ids) and not (ids.min() >= 0 and ids.max() < self._vocab_size):
            raise ValueError(f"an id is outside the vocabulary of {self._vocab_size}")
        if len(roles) and not (roles.min() >= GIVEN and roles.max() <= ASSISTANT):
            raise ValueError("a role is unknown")
