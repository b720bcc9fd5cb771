"""The state of a run in one file that is complete or not there, whatever kills the process."""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle31rt.errors import CheckpointError

_FORMAT = 1


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a step depends on; random draws depend on (seed, step) and need no state."""

    step: int  # optimizer steps done
    identity: dict[str, Any]  # of the head, see settings.identity
    kept: torch.Tensor  # [draft_vocab_size] int64, the draft vocabulary
    head: dict[str, Any]
    optimizer: dict[str, Any]

    def save(self, path: Path) -> None:
        temporary = path.with_suffix(".partial")
        values = {"format": _FORMAT, **self.__dict__}
        try:
            with open(temporary, "wb") as file:
                torch.save(values, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    @staticmethod
    def load(path: Path) -> Checkpoint:
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
            if values.pop("format") != _FORMAT:
                raise ValueError("another format")
            return Checkpoint(**values)
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(f"{path} is not a checkpoint of this version: {error}") from error
