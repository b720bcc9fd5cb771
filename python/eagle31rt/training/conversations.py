"""Conversations as token ids on disk: one .npz file a group, complete or not there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from eagle31rt.errors import CheckpointError

GIVEN, USER, ASSISTANT = 0, 1, 2  # roles: template or prompt; user text, or answer, that the target wrote itself

Ids = npt.NDArray[np.int32]
Roles = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Conversation:
    token_ids: Ids  # [n]
    roles: Roles  # [n]

    def __len__(self) -> int:
        return len(self.token_ids)


class ConversationStore:
    """The groups tokens-00000.npz, tokens-00001.npz, ... of a folder. Groups are written once and never change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, group: int) -> Path:
        return self.folder / f"tokens-{group:05d}.npz"

    def __len__(self) -> int:
        """Groups from 0 on without a gap."""
        count = 0
        while self.path(count).is_file():
            count += 1
        return count

    def write(self, group: int, conversations: Sequence[Conversation]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        token_ids = np.concatenate([c.token_ids for c in conversations] or [np.empty(0, np.int32)])
        roles = np.concatenate([c.roles for c in conversations] or [np.empty(0, np.uint8)])
        lengths = np.array([len(c) for c in conversations], np.int32)
        path = self.path(group)
        temporary = path.with_suffix(".partial")
        try:
            with open(temporary, "wb") as file:
                np.savez_compressed(file, token_ids=token_ids, roles=roles, lengths=lengths)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, group: int) -> list[Conversation]:
        path = self.path(group)
        try:
            with np.load(path, allow_pickle=False) as arrays:
                ids, roles = arrays["token_ids"].astype(np.int32), arrays["roles"].astype(np.uint8)
                ends = np.cumsum(arrays["lengths"])
        except (OSError, ValueError, KeyError, BadZipFile) as error:
            raise CheckpointError(f"{path} is damaged ({error}): remove it and resume; it is made again") from error
        return [Conversation(i, r) for i, r in zip(np.split(ids, ends)[:-1], np.split(roles, ends)[:-1], strict=True)]
