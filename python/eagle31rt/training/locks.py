"""One process at a time uses a work folder, and one an output. Locks end with their process, however that ends."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from eagle31rt.errors import ResourceError
from eagle31rt.training.files import writing
from eagle31rt.training.places import output_lock


@contextmanager
def locked(work: Path) -> Iterator[None]:
    """Makes the work folder and holds it for this process. Raises ResourceError if another one has it."""
    with writing(work):
        work.mkdir(parents=True, exist_ok=True)
        file = open(work / "lock", "a+", encoding="utf-8")  # noqa: SIM115 (kept open below)
    with file:
        _hold(file, work / "lock", f"is using {work}: wait for it, or give another --work")
        yield


@contextmanager
def locked_output(output: Path) -> Iterator[None]:
    """Holds the output for this process, by a file beside it: the folder itself appears with the draft.

    Raises ResourceError if another one has it. Where no file can be made beside it, the run goes on without.
    """
    path = output_lock(output)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(path, "a+", encoding="utf-8")  # noqa: SIM115 (kept open below)
    except OSError:
        yield
        return
    with file:
        _hold(file, path, f"writes {output}: wait for it, or give another --output")
        if not _is_there(path, file):  # removed between open and flock
            raise ResourceError(f"another run that wrote {output} has just ended: give the command again")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _hold(file: TextIO, path: Path, use: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            file.seek(0)
            holder = file.read(20).strip() or "unknown"
            raise ResourceError(f"another run (process {holder}) {use}") from error
        # A file system without locks: the run goes on without.
    with writing(path):
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()


def _is_there(path: Path, file: TextIO) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False
