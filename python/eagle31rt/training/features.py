"""Captured states of the training data: extracted by the engine when needed, cached on disk within a bound.

The engine's operators are row-exact, so states extracted again are the same bits: evicting a shard costs time and
changes no result.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from eagle31rt.errors import InvalidArgumentError
from eagle31rt.safetensors_writer import RawTensor, save_safetensors
from eagle31rt.training.conversations import Conversation, ConversationStore

if TYPE_CHECKING:
    from eagle31rt import _core

Floats = npt.NDArray[np.float32]
_LARGEST = 32768.0  # below float16's 65504, so that a power of two never overflows when it rounds


@dataclass(frozen=True)
class FeatureSettings:
    target: Path
    capture_layers: tuple[int, ...]  # of the draft
    num_layers: int
    hidden_size: int
    max_tokens: int
    threads: int
    limit_bytes: int
    exact: bool  # float32 on disk
    device: str = "cpu"  # of the engine

    @property
    def extracted_layers(self) -> tuple[int, ...]:
        """What the draft reads, and the last residual stream for the target's distribution."""
        return tuple(sorted({*self.capture_layers, self.num_layers}))


class ShardFeatures:
    """States of one group of conversations, read from disk conversation by conversation."""

    def __init__(self, path: Path, hidden_size: int, num_captured: int) -> None:
        self._file: Any = safe_open(str(path), framework="numpy").__enter__()
        self._states = self._file.get_slice("states")
        scale: Floats = self._file.get_tensor("scale")
        self._scale = np.repeat(scale, hidden_size)
        self._captured_size = num_captured * hidden_size
        self._hidden_size = hidden_size

    def rows(self, first: int, last: int) -> tuple[Floats, Floats]:
        """(captured [n, A * hidden_size], last residual stream [n, hidden_size]) of tokens first to last - 1."""
        states = self._states[first:last].astype(np.float32) * self._scale
        return states[:, : self._captured_size], states[:, -self._hidden_size :]


class FeatureCache:
    def __init__(self, folder: Path, store: ConversationStore, settings: FeatureSettings) -> None:
        self._folder, self._store, self._settings = folder, store, settings
        self._extractor: _core.FeatureExtractor | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._drop_foreign()

    def get(self, group: int) -> ShardFeatures:
        path = self._folder / f"features-{group:05d}.safetensors"
        settings = self._settings
        for fresh in (False, True):
            if not path.is_file():
                self._write(path, self._store.read(group))
            try:
                features = ShardFeatures(path, settings.hidden_size, len(settings.capture_layers))
                os.utime(path)  # eviction goes by the time of last use
                return features
            except SafetensorError:
                if fresh:
                    raise
                path.unlink()
        raise AssertionError("unreachable")

    def _write(self, path: Path, conversations: Sequence[Conversation]) -> None:
        states = self.extract(conversations)
        hidden = self._settings.hidden_size
        chunks = states.reshape(len(states), -1, hidden)
        if self._settings.exact:
            scale = np.ones(chunks.shape[1], np.float32)
            tensor = RawTensor("F32", states.shape, states.tobytes())
        else:
            scale = _power_of_two_scales(chunks)
            halves = (chunks / scale[:, None]).astype(np.float16)
            tensor = RawTensor("F16", states.shape, halves.tobytes())
        self._make_room(len(tensor.data))
        save_safetensors(path, {"states": tensor, "scale": RawTensor("F32", scale.shape, scale.tobytes())})

    def extract(self, conversations: Sequence[Conversation]) -> Floats:
        """States [tokens, layers * hidden_size] as the engine computes them."""
        if self._extractor is None:
            from eagle31rt import _core

            settings = self._settings
            self._extractor = _core.FeatureExtractor(
                str(settings.target),
                list(settings.extracted_layers),
                settings.max_tokens,
                settings.threads,
                settings.device,
            )
        token_ids = np.concatenate([conversation.token_ids for conversation in conversations]).tolist()
        return self._extractor.extract(token_ids, [len(conversation) for conversation in conversations])

    def _make_room(self, num_bytes: int) -> None:
        limit = self._settings.limit_bytes
        if num_bytes > limit:
            raise InvalidArgumentError(
                f"the states of one group take {num_bytes / 2**30:.2f} GiB, more than --cache-gib allows"
            )
        files = sorted(self._folder.glob("features-*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        used = sum(path.stat().st_size for path in files)
        for path in files:
            if used + num_bytes <= limit:
                return
            used -= path.stat().st_size
            path.unlink()

    def _drop_foreign(self) -> None:
        """Removes states of another target, other layers or another storage, and halves of a killed run."""
        for partial in self._folder.glob("*.partial"):
            partial.unlink()
        settings = self._settings
        config = settings.target / "config.json"
        identity = {
            "config": config.read_text(encoding="utf-8", errors="replace"),
            "weights": sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in weight_files(settings.target)),
            "layers": list(settings.extracted_layers),
            "exact": settings.exact,
        }
        text = json.dumps(identity, default=list)
        path = self._folder / "identity.json"
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
            return
        for old in self._folder.glob("features-*.safetensors"):
            old.unlink()
        path.write_text(text, encoding="utf-8")


def weight_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def _power_of_two_scales(chunks: Floats) -> Floats:
    """Per captured layer, the factor that brings its largest value into float16: exact to undo. [layers]"""
    largest = np.maximum(np.abs(chunks).max(axis=(0, 2)), 1e-30)
    exponents = np.maximum(np.ceil(np.log2(largest / _LARGEST)), 0)
    return np.exp2(exponents).astype(np.float32)
