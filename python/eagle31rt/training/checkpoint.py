"""The state of a run in one file that is complete or not there, whatever kills the process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eagle31rt.errors import CheckpointError
from eagle31rt.training.files import atomic_file
from eagle31rt.training.manifest import check_same

_FORMAT = 1
_DAMAGE = (OSError, RuntimeError, ValueError, KeyError, AttributeError, TypeError, EOFError)  # what loading may raise


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a step depends on; random draws depend on (seed, step) and need no state."""

    step: int  # optimizer steps done
    identity: dict[str, Any]  # of the head, see settings.identity
    kept: torch.Tensor  # [draft_vocab_size] int64, the draft vocabulary
    head: dict[str, Any]
    optimizer: dict[str, Any]
    manifest: dict[str, Any] = field(default_factory=dict)  # of the run; empty in files of earlier versions

    def save(self, path: Path) -> None:
        """Raises ResourceError naming `path` if it cannot be written; what was there before stays."""
        with atomic_file(path) as file:
            torch.save({"format": _FORMAT, **self.__dict__}, file)

    @staticmethod
    def load(path: Path) -> Checkpoint:
        """Raises CheckpointError."""
        try:
            values = torch.load(path, map_location="cpu", weights_only=True)
            if values.pop("format") != _FORMAT:
                raise ValueError("another format")
            return Checkpoint(**values)
        except (*_DAMAGE, pickle.UnpicklingError) as error:
            problem = f"{path} is not a checkpoint of this version, or is damaged"
            advice = "put back a copy, or remove it: --resume then trains from step 0 on the data that is there"
            raise CheckpointError(f"{problem}: {advice}") from error

    def check(self, identity: Mapping[str, Any], manifest: Mapping[str, Any]) -> None:
        """Raises InvalidArgumentError naming what differs from the head and the run that are wanted."""
        check_same(self.identity, identity, "the checkpoint")
        check_same(self.manifest, manifest, "the checkpoint")
