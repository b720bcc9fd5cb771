"""Captured states of the training data: extracted by the engine when needed, cached on disk within a bound.

The engine's operators are row-exact, so states extracted again are the same bits: evicting a shard costs time and
changes no result.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
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
from eagle31rt.training.files import safetensors_header, write_text, writing
from eagle31rt.training.manifest import target_identity, weight_files

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

    def check_room(self, num_tokens: int, group: Path) -> None:
        """Raises InvalidArgumentError if the states of the conversations in `group` exceed the bound by themselves."""
        num_bytes = num_tokens * len(self.extracted_layers) * self.hidden_size * (4 if self.exact else 2)
        if num_bytes > self.limit_bytes:
            raise InvalidArgumentError(
                f"the states of one group, {group}, take {num_bytes / 2**30:.2g} GiB, more than --cache-gib allows: "
                "give more, and --resume"
            )


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
        self._checked: set[int] = set()  # groups whose file was found whole by this process, or written by it
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._drop_foreign()

    def get(self, group: int) -> ShardFeatures:
        path = self._folder / f"features-{group:05d}.safetensors"
        settings = self._settings
        if group not in self._checked or not path.is_file():
            conversations = self._store.read(group)
            if not _is_whole(path, conversations):
                settings.check_room(sum(map(len, conversations)), self._store.path(group))
                self._write(path, conversations)
            self._checked.add(group)
        os.utime(path)  # eviction goes by the time of last use
        return ShardFeatures(path, settings.hidden_size, len(settings.capture_layers))

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
        tensors = {"states": tensor, "scale": RawTensor("F32", scale.shape, scale.tobytes())}
        checksum = 0
        for stored in tensors.values():
            checksum = zlib.crc32(stored.data, checksum)
        with writing(path):
            save_safetensors(path, tensors, {"conversations": _digest(conversations), "crc32": str(checksum)})

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
        kind = {"layers": list(settings.extracted_layers), "exact": settings.exact}
        text = json.dumps({**target_identity(settings.target), **kind})
        path = self._folder / "identity.json"
        recorded = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if recorded == text:
            return
        if recorded != _earlier_identity(settings.target, kind):
            for old in self._folder.glob("features-*.safetensors"):
                old.unlink()
        write_text(path, text)


def _earlier_identity(target: Path, kind: dict[str, Any]) -> str:
    """What version 1 of this file said, so that its states, hours of work, are taken over."""
    config = (target / "config.json").read_text(encoding="utf-8", errors="replace")
    weights = sorted((p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in weight_files(target))
    return json.dumps({"config": config, "weights": weights, **kind})


def _digest(conversations: Sequence[Conversation]) -> str:
    digest = hashlib.sha256()
    for conversation in conversations:
        digest.update(len(conversation).to_bytes(8, "little") + conversation.token_ids.tobytes())
    return digest.hexdigest()


def _is_whole(path: Path, conversations: Sequence[Conversation]) -> bool:
    """Whether the file holds the states of just these conversations, every byte as it was written."""
    if not path.is_file():
        return False
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata: dict[str, str] = file.metadata() or {}
            num_rows: int = file.get_slice("states").get_shape()[0]
    except (SafetensorError, OSError):
        return False
    if num_rows != sum(len(conversation) for conversation in conversations):
        return False
    if "crc32" not in metadata:  # written before there were checksums
        return True
    return metadata.get("conversations") == _digest(conversations) and metadata["crc32"] == str(_checksum(path))


def _checksum(path: Path) -> int:
    """Of what follows the header."""
    with open(path, "rb") as file:
        file.seek(safetensors_header(path)[1])
        checksum = 0
        while block := file.read(1 << 20):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _power_of_two_scales(chunks: Floats) -> Floats:
    """Per captured layer, the factor that brings its largest value into float16: exact to undo. [layers]"""
    largest = np.maximum(np.abs(chunks).max(axis=(0, 2)), 1e-30)
    exponents = np.maximum(np.ceil(np.log2(largest / _LARGEST)), 0)
    return np.exp2(exponents).astype(np.float32)
