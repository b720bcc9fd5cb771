"""Whose run a work folder holds: manifest.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle31rt.errors import CheckpointError, InvalidArgumentError
from eagle31rt.training.files import safetensors_header, write_text
from eagle31rt.training.places import holds_run

FORMAT = 1
# Of every tensor, spread over it: a fine-tune of the same shapes changes some of each that it touches.
_SAMPLES, _SAMPLE_BYTES = 16, 256
_TARGET = "target "  # prefix of keys

Manifest = dict[str, Any]  # key -> value that may not change between a run and its continuation


def target_identity(directory: Path) -> Manifest:
    """What a target is, wherever its folder lies: hashes of config, tokenizer, template and samples of every tensor."""
    identity: Manifest = {}
    for name in ("config.json", "tokenizer.json"):
        path = directory / name
        if path.is_file():
            identity[_TARGET + name] = hashlib.sha256(path.read_bytes()).hexdigest()
    if (template := _chat_template(directory)) is not None:
        identity[_TARGET + "chat template"] = hashlib.sha256(template.encode()).hexdigest()
    for path in weight_files(directory):
        identity[_TARGET + path.name] = _weights_hash(path)
    return identity


def _chat_template(directory: Path) -> str | None:
    """As files hold it: chat_template.jinja wins, as in transformers. What is damaged is the tokenizer's to refuse."""
    try:
        if (directory / "chat_template.jinja").is_file():
            return (directory / "chat_template.jinja").read_text(encoding="utf-8")
        config = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    template = config.get("chat_template") if isinstance(config, dict) else None
    return None if template is None else json.dumps(template)


def weight_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


def _weights_hash(path: Path) -> str:
    header, start = safetensors_header(path)
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    try:
        with open(path, "rb") as file:
            for tensor in header.values():
                first, last = tensor["data_offsets"]
                span = max(0, last - first - _SAMPLE_BYTES)
                for sample in range(_SAMPLES):
                    file.seek(start + first + span * sample // (_SAMPLES - 1))
                    digest.update(file.read(min(_SAMPLE_BYTES, last - first)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}") from error
    return digest.hexdigest()


def check_same(recorded: Mapping[str, Any], wanted: Mapping[str, Any], place: str) -> None:
    """Raises InvalidArgumentError naming the first key of both whose values differ; `place` is whose record it is."""
    for key, value in recorded.items():
        if key not in wanted or wanted[key] == value:
            continue
        if key.startswith(_TARGET):
            what = f"for another target ({key.removeprefix(_TARGET)} differs)"
        else:
            what = f"with {key} = {value!r}, not {wanted[key]!r}"
        raise InvalidArgumentError(f"{place} was made {what}: give the same, or another --work")
    missing = [key for key in recorded if key.startswith(_TARGET) and key not in wanted]
    if missing and any(key.startswith(_TARGET) for key in wanted):
        name = missing[0].removeprefix(_TARGET)
        raise InvalidArgumentError(
            f"{place} was made for another target (with {name}): give the same, or another --work"
        )


def read_manifest(work: Path) -> Manifest:
    """Empty for a folder that has none: a new one, or one of an earlier version."""
    path = work / "manifest.json"
    if not path.is_file():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged ({error}): remove it, and the next run records its own") from error
    if not isinstance(manifest, dict):
        raise CheckpointError(f"{path} is damaged: remove it, and the next run records its own")
    return manifest


def settle_manifest(work: Path, wanted: Manifest) -> None:
    """Checks that the run in `work` is this one, and records what it does not say yet."""
    recorded = read_manifest(work) if holds_run(work) else {}
    check_same(recorded, wanted, str(work))
    _record(work, {**recorded, **wanted})


def settle_prompts(work: Path, prompts: Sequence[Any]) -> None:
    """Checks that the prompts of earlier runs in `work` are still the first of `prompts`, and records all."""
    manifest = read_manifest(work)
    count = manifest.get("num_prompts", 0)
    if count and manifest.get("prompts") != _digest(prompts[:count]):
        advice = "append new ones after them, or give another --work"
        raise InvalidArgumentError(f"--prompts: the first {count} are no longer those that {work} has: {advice}")
    _record(work, {**manifest, "num_prompts": len(prompts), "prompts": _digest(prompts)})


def _record(work: Path, manifest: Manifest) -> None:
    write_text(work / "manifest.json", json.dumps(manifest, indent=1) + "\n")


def _digest(prompts: Sequence[Any]) -> str:
    digest = hashlib.sha256()
    for prompt in prompts:
        digest.update(json.dumps(prompt).encode() + b"\n")
    return digest.hexdigest()
