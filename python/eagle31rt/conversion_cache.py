"""Directories that are made once and kept in the cache folder: complete or not there, and made by one process."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from eagle31rt.errors import ResourceError

_MANIFEST = "conversion.json"


def cached_directory(target: Path, facts: Mapping[str, str], build: Callable[[Path, Path], None]) -> None:
    """Makes `target` unless it is complete.

    `build(work, output)` fills the empty folder `output`; `work`, beside it on the same disk, is for its own files.
    `facts` go into the manifest. Processes that want the same folder wait for the first; a killed one leaves nothing
    that counts. Raises what `build` does, and ResourceError if the cache folder cannot be written.
    """
    if is_complete(target):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _exclusive(target.parent):
            if not is_complete(target):
                _build(target, facts, build)
    except OSError as error:
        raise ResourceError(
            f"cannot prepare {target.name} in {target.parent}: {error}; "
            "free some space, or set EAGLE31RT_CACHE to another folder"
        ) from error


def is_complete(directory: Path) -> bool:
    """Whether `directory` holds every file of its manifest with its size."""
    try:
        sizes: dict[str, int] = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))["file_bytes"]
        return all((directory / name).stat().st_size == size for name, size in sizes.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def conversion_source(directory: Path) -> str | None:
    """What `directory` was made from; None for a folder that is not of the cache."""
    try:
        source = json.loads((directory / _MANIFEST).read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return source if isinstance(source, str) else None


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Holds a lock on the folder itself, so that no lock file stays behind; released also if the process dies."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _build(target: Path, facts: Mapping[str, str], build: Callable[[Path, Path], None]) -> None:
    prefix = f".{target.name}.partial-"
    for stale in target.parent.glob(prefix + "*"):  # of a killed process: we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=target.parent))
    try:
        output = work / "output"
        output.mkdir()
        build(work, output)
        sizes = {path.name: path.stat().st_size for path in sorted(output.iterdir())}
        manifest = json.dumps({**facts, "file_bytes": sizes}, indent=2)
        (output / _MANIFEST).write_text(manifest + "\n", encoding="utf-8")
        if target.exists():  # incomplete: somebody removed or cut a file
            shutil.rmtree(target)
        os.replace(output, target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
