"""Opens GGUF files for the conversions: checks what the gguf library believes, and gives its errors the file's name.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (counts, then keys with typed values, then tensors).
The library walks an array for as long as its count says, also behind the end of the file: a file of 30 KB took 15 GB.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gguf

from eagle31rt.errors import CheckpointError, Eagle31rtError, UnsupportedError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# Bytes of a value by type: 8- to 32-bit integers, float32, bool, (string, array), 64-bit integers, float64.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MAX_MESSAGE = 500


@contextmanager
def gguf_errors(source: Path) -> Iterator[None]:
    """Turns what the library raises for a damaged file into CheckpointError, and NotImplementedError into
    UnsupportedError, with the name of the file."""
    try:
        yield
    except Eagle31rtError:  # some are also the standard errors below
        raise
    except NotImplementedError as error:
        raise UnsupportedError(f"{source}: {error}"[:_MAX_MESSAGE]) from error
    except KeyError as error:
        raise CheckpointError(f"{source} lacks the metadata key {error}"[:_MAX_MESSAGE]) from error
    except (ValueError, TypeError, IndexError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{source} is damaged: {error}"[:_MAX_MESSAGE]) from error


def open_gguf(source: Path) -> tuple[dict[str, Any], gguf.GGUFReader]:
    """Values by key, and the reader of the tensors. Call it within gguf_errors. Raises CheckpointError."""
    gguf_architecture(source)
    reader = gguf.GGUFReader(source)
    values = {name: field.contents() for name, field in reader.fields.items()}
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise CheckpointError(f"{source}: key {key} is {value}")
    return values, reader


def gguf_architecture(source: Path) -> str | None:
    """general.architecture, after a walk over all keys. Raises CheckpointError for a file that ends within them."""
    with open(source, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as error:  # an empty file
            raise CheckpointError(f"{source} is empty") from error
        with data:
            return _Header(source, data).architecture()


class _Header:
    def __init__(self, source: Path, data: mmap.mmap) -> None:
        self._source, self._data, self._offset = source, data, 0

    def architecture(self) -> str | None:
        if self._take(len(_MAGIC), "its magic") != _MAGIC:
            raise CheckpointError(f"{self._source} is no GGUF file")
        (version,) = struct.unpack("<I", self._take(4, "its version"))
        if version not in _VERSIONS:
            raise CheckpointError(
                f"{self._source} is GGUF version {version} or not little-endian; versions 2 and 3 are read"
            )
        self._count("its count of tensors")
        found: str | None = None
        for index in range(self._count("its count of keys")):
            key = self._string(f"key {index}").decode("utf-8", "replace")
            kind = self._kind(key)
            if key == "general.architecture" and kind == _STRING:
                found = self._string(f"key {key}").decode("utf-8", "replace")
            else:
                self._skip_value(kind, key)
        return found

    def _take(self, size: int, what: str) -> bytes:
        start = self._advance(size, what)
        return self._data[start : self._offset]

    def _advance(self, size: int, what: str) -> int:
        start, end = self._offset, self._offset + size
        if end > len(self._data):
            raise CheckpointError(f"{self._source} is damaged: it ends within {what[:100]!r}")
        self._offset = end
        return start

    def _count(self, what: str) -> int:
        return int(struct.unpack("<Q", self._take(8, what))[0])

    def _kind(self, key: str) -> int:
        return int(struct.unpack("<I", self._take(4, f"key {key}"))[0])

    def _string(self, what: str) -> bytes:
        return self._take(self._count(what), what)

    def _skip_value(self, kind: int, key: str) -> None:
        what = f"key {key}"
        count = 1
        if kind == _ARRAY:
            kind, count = self._kind(key), self._count(what)
        if kind == _STRING:
            for _ in range(count):  # each takes bytes of the file, so that a wrong count ends soon
                self._advance(self._count(what), what)
        elif kind in _SIZES:
            self._advance(count * _SIZES[kind], what)
        else:
            raise CheckpointError(
                f"{self._source}: key {key[:100]!r} has values of type {kind}, an unknown or nested one"
            )
