"""A tiny target to train heads for, and runs of the trainer on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.checkpoints import TargetSpec
from support.successor import TARGET, write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

_TEMPLATE = (
    "{{ bos_token }}be kind.{% for message in messages %}{{ message['role'] + ':' + message['content'] + eos_token }}"
    "\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
CAPTURE_LAYERS = (1, 2, 4)
STEPS = 10  # of the fixture finished_run
_OPTIONS: dict[str, Any] = {
    "capture-layers": CAPTURE_LAYERS,
    "self-generate": 64,
    "max-tokens": 96,
    "max-new-tokens": 48,
    "draft-vocab-size": 80,
    "batch-tokens": 256,
    "ttt-steps": 5,
    "warmup-steps": 5,
    "evaluate-every": 0,
    "evaluate-prompts": 4,
    "threads": 1,
}


def write_training_target(directory: Path, spec: TargetSpec = TARGET) -> Path:
    """The successor target with a tokenizer, and a chat template that writes a turn in one way only."""
    write_successor_target(directory, spec)
    write_tiny_tokenizer(directory)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": _TEMPLATE}))
    return directory


def train_arguments(target: Path, output: Path, *flags: str, **options: Any) -> list[str]:
    """Arguments of `eagle31rt`; option names with _ for -; None leaves an option out."""
    merged = {**_OPTIONS, **{name.replace("_", "-"): value for name, value in options.items()}}
    words = ["train", "--target", str(target), "--output", str(output), *flags]
    for name, value in merged.items():
        if value is not None:
            values = value if isinstance(value, tuple) else (value,)
            words += [f"--{name}", *map(str, values)]
    return words
