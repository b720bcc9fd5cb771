"""Where a run writes: nothing of the user's may be there. Judged before any work."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from eagle31rt.errors import CheckpointError, InvalidArgumentError
from eagle31rt.training.files import safetensors_header

OWN_NAMES = frozenset({"data", "features", "checkpoint.pt", "log.jsonl", "manifest.json", "lock"})  # in a work folder
_RUN_NAMES = frozenset({"data", "checkpoint.pt"})  # one of which is there when a run was


def check_places(target: Path, output: Path, work: Path, resume: bool) -> None:
    """Raises InvalidArgumentError for folders that a run must not write to."""
    places = {"--output": _real(output), "--work": _real(work)}
    for option, place in places.items():
        _check_folder(place, option)
        if place == _real(target):
            raise InvalidArgumentError(f"{option} {place} is the target's own folder: give another")
    if places["--output"] == places["--work"]:
        raise InvalidArgumentError(f"--output and --work are the same folder {places['--work']}: give two")
    inside = _parts_below(places["--output"], places["--work"])
    if inside and inside[0] in OWN_NAMES:
        raise InvalidArgumentError(f"--output {output} lies in what the run keeps in {work}: give another")
    _check_work(places["--work"], resume, ignored={"manifest.json", "lock", output_lock(output).name})
    _check_output(places["--output"], resume)


def output_lock(output: Path) -> Path:
    """The file by which a run holds its output."""
    place = _real(output)
    return place.with_name(f".{place.name}.lock")


def holds_run(work: Path) -> bool:
    return any((work / name).exists() for name in _RUN_NAMES)


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))  # Path.resolve raises for a loop of links


def _parts_below(path: Path, folder: Path) -> tuple[str, ...]:
    return path.relative_to(folder).parts if path.is_relative_to(folder) else ()


def _check_folder(place: Path, option: str) -> None:
    """It is a folder that can be written, or can be made."""
    for existing in (place, *place.parents):
        if not os.path.lexists(existing):
            continue
        if not existing.is_dir():
            raise InvalidArgumentError(f"{option} {place}: {existing} is no folder: give another")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise InvalidArgumentError(f"{option} {place}: {existing} cannot be written: give another")
        return


def _check_output(output: Path, resume: bool) -> None:
    """What the export would replace must be a draft, and is replaced by a resumed run only."""
    config, weights = output / "config.json", output / "model.safetensors"
    if config.exists() and not _is_draft_config(config):
        raise InvalidArgumentError(f"--output {output} holds a model that is no EAGLE draft: give another folder")
    if weights.exists() and not _is_draft_file(weights):
        raise InvalidArgumentError(f"--output {output}: {weights.name} is no EAGLE draft's: give another folder")
    if (config.exists() or weights.exists()) and not resume:
        advice = "give another folder, or --resume to replace it with that of the run in the work folder"
        raise InvalidArgumentError(f"--output {output} holds a draft already: {advice}")


def _is_draft_config(path: Path) -> bool:
    try:
        config: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    if not isinstance(config, dict):
        return False
    names = config.get("architectures")
    named = isinstance(names, list) and any("eagle" in str(name).lower() for name in names)
    return named or "eagle_config" in config or config.get("speculators_model_type") == "eagle3"


def _is_draft_file(path: Path) -> bool:
    try:
        return any(name.removeprefix("model.") == "fc.weight" for name in safetensors_header(path)[0])
    except CheckpointError:
        return False


def _check_work(work: Path, resume: bool, ignored: set[str]) -> None:
    if not work.is_dir():
        return
    held = {path.name.removesuffix(".partial") for path in work.iterdir()} - ignored
    if held and not resume:
        raise InvalidArgumentError(f"{work} holds a run already: give --resume to go on with it, or another --work")
    if (held and not held & OWN_NAMES) or not _is_run(work):
        name = sorted(held)[0] if held else "manifest.json"
        raise InvalidArgumentError(f"--work {work} holds {name} and no run: give another folder")


def _is_run(work: Path) -> bool:
    """Whether what lies there under the names of a run is one's: others use such names, too."""
    manifest = work / "manifest.json"
    if not manifest.is_file():  # nothing yet, or a run of an earlier version
        others = any((work / name).exists() for name in OWN_NAMES - {"lock"})
        return not others or (work / "checkpoint.pt").is_file() or any((work / "data").glob("tokens-*.npz*"))
    try:
        content: Any = json.loads(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return True  # damaged: whoever reads it says what to do
    return isinstance(content, dict) and "format" in content
