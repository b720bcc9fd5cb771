"""Files that are complete or not there, and errors that name the disk."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from eagle31rt.errors import CheckpointError, ResourceError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns an OSError of writing `path` into a ResourceError that names it."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            problem, advice = f"no space left for {path}", "make room (or lower --cache-gib)"
        else:
            problem, advice = f"{path} cannot be written: {error.strerror or error}", "mend that"
        raise ResourceError(f"{problem}: {advice}, then give the same command with --resume") from error


class _OutputFile:
    """A binary file that remembers its OSError: torch.save reports another one in its place."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.error = error
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@contextmanager
def atomic_file(path: Path) -> Iterator[Any]:
    """A binary file that becomes `path` when all of it is on disk, and nothing if anything fails.

    Raises ResourceError naming `path` if it cannot be written.
    """
    temporary = path.with_name(path.name + ".partial")
    with writing(path):
        try:
            with open(temporary, "wb") as file:
                output = _OutputFile(file)
                try:
                    yield output
                except RuntimeError:
                    if output.error is None:
                        raise
                    raise output.error from None
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as file:
        file.write(text.encode())


def safetensors_header(path: Path) -> tuple[dict[str, Any], int]:
    """The header's tensors by name, and where in the file their data begins. Raises CheckpointError."""
    try:
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if size > 100_000_000:  # what the format allows
                raise ValueError("no safetensors header")
            header = json.loads(file.read(size))
            if not isinstance(header, dict):
                raise ValueError("no safetensors header")
            header.pop("__metadata__", None)
            return header, 8 + size
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
