"""Where a model comes from: a directory, a GGUF file or an id on the Hugging Face hub. Each ends in a directory.

A path that exists is always meant as a path. GGUF files are converted once into the cache folder; hub models are kept
by huggingface_hub in its own cache (HF_HOME), whose other variables (HF_TOKEN, HF_HUB_OFFLINE, HF_ENDPOINT) hold too.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from eagle31rt.conversion_cache import cached_directory
from eagle31rt.environment import cache_folder
from eagle31rt.errors import CheckpointError, InvalidArgumentError, ResourceError
from eagle31rt.sampling_checks import shown

_MAX_MESSAGE = 500
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"[\w][\w./-]{0,254}", re.ASCII)
_GGUF_MAGIC = b"GGUF"
_GGUF_VERSION = 2  # raise it when the conversion changes: older results are then not used
# Everything that a model is read from lies at the top; folders below hold other formats of it ("original/", "metal/").
_FILES = ("*.json", "*.jinja", "*.model", "*.safetensors")
PICKLED_WEIGHTS = "pytorch_model*.bin"


def model_directory(
    model: str | os.PathLike[str],
    argument: str,
    revision: str | None = None,
    other_weights: Sequence[str] = (PICKLED_WEIGHTS,),
) -> Path:
    """The directory with the files of `model`. `argument` names it in errors; `revision` is of a hub id only.

    other_weights: patterns of what to fetch from the hub, in turn, if a model has no safetensors.

    Raises InvalidArgumentError for what is no reference, CheckpointError for what is not there or no model, and
    ResourceError if the hub cannot be reached or the disk is full.
    """
    if not isinstance(model, (str, os.PathLike)) or not str(model):
        raise InvalidArgumentError(f"{argument} must be a model directory, a .gguf file or a hub id, got {model!r}")
    try:
        str(model).encode()  # the core takes UTF-8
        path = Path(model).expanduser()
        is_directory, exists = path.is_dir(), path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long a name, no such home, no right to look
        raise CheckpointError(f"{argument} {shown(str(model))} cannot be read: {error}"[:_MAX_MESSAGE]) from error
    if exists and revision is not None:
        raise InvalidArgumentError(f"{argument}: a revision is for hub ids, and {path} is on disk; leave it out")
    if exists:
        return path if is_directory else converted_gguf(path, argument)
    if isinstance(model, str) and _HUB_ID.fullmatch(model):
        return _from_hub(model, argument, revision, other_weights)
    raise CheckpointError(
        f"{argument}: there is no directory {str(model)!r:.400}; give a model directory, a .gguf file or a hub id "
        "(OWNER/NAME)"
    )


def cache_name(kind: str, version: int, files: list[Path]) -> str:
    """Name of the folder in the cache that holds what `files` are converted to: another one once a file changes."""
    lines = [str(version)]
    for path in files:
        status = path.stat()
        lines.append(f"{path.resolve()}\n{status.st_size}\n{status.st_mtime_ns}")
    digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{kind}-{digest[:16]}"


def converted_gguf(path: Path, argument: str) -> Path:
    """The folder in the cache that holds the model or the draft of a GGUF file."""
    if not path.is_file():
        raise CheckpointError(f"{argument}: {path} is neither a directory nor a file")
    try:
        with open(path, "rb") as file:
            magic = file.read(len(_GGUF_MAGIC))
        target = cache_folder() / cache_name("gguf", _GGUF_VERSION, [path])
    except OSError as error:
        raise CheckpointError(f"{argument} cannot be read: {error}") from error
    if magic != _GGUF_MAGIC:
        raise CheckpointError(
            f"{argument}: {path} is a file but no GGUF file; give the directory that holds config.json and the weights"
        )

    def build(_work: Path, output: Path) -> None:
        from eagle31rt.gguf_draft import convert_gguf_file  # loads numpy and gguf: only for a conversion

        console = Console(stderr=True)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"Converting {path.name}", total=None)
            convert_gguf_file(path, output, lambda done, total: progress.update(task, completed=done, total=total))

    cached_directory(target, {"source": str(path.resolve())}, build)
    return target


def _from_hub(model_id: str, argument: str, revision: str | None, other_weights: Sequence[str]) -> Path:
    if revision is not None and not (isinstance(revision, str) and _REVISION.fullmatch(revision)):
        raise InvalidArgumentError(f"{argument}: revision must be a branch, a tag or a commit, got {shown(revision)}")
    from huggingface_hub import errors, snapshot_download

    place = model_id if revision is None else f"{model_id}@{revision}"

    def fetch(*patterns: str) -> Path:
        return Path(
            snapshot_download(model_id, revision=revision, allow_patterns=list(patterns), ignore_patterns="*/*")
        )

    try:
        directory = fetch(*_FILES)
        for pattern in other_weights:
            if any(directory.glob("*.safetensors")):
                break
            directory = fetch(*_FILES, pattern)
            if any(directory.glob(pattern)):
                break
        return directory
    except errors.HFValidationError as error:
        raise CheckpointError(f"{argument}: {model_id!r} is neither on disk nor a hub id: {error}") from error
    except errors.GatedRepoError as error:
        raise CheckpointError(f"{argument}: {place} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{argument}: {model_id} has no revision {revision!r}") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{argument}: there is no directory and no hub model {model_id!r} (a private one needs HF_TOKEN)"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise ResourceError(
            f"{argument}: {place} is not in the local cache and the hub cannot be reached (or HF_HUB_OFFLINE is set): "
            f"fetch it on a machine with network (`hf download {model_id}`) and copy HF_HOME, or give a directory"
        ) from error
    except OSError as error:  # what else the network and the disk do
        raise ResourceError(f"{argument}: {place} cannot be fetched: {error}"[:_MAX_MESSAGE]) from error
