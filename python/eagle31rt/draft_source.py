"""Where a draft comes from: what a model may be, and besides a folder that holds only pytorch_model.bin or a GGUF file.

Both are converted once into the cache folder; nothing in a pickle is run (torch_checkpoint.py).
"""

from __future__ import annotations

import os
from pathlib import Path

from eagle31rt.conversion_cache import cached_directory
from eagle31rt.environment import cache_folder
from eagle31rt.errors import CheckpointError
from eagle31rt.model_source import PICKLED_WEIGHTS, cache_name, converted_gguf, model_directory

_GGUF_FILES = "*.gguf"
_TORCH_VERSION = 1  # raise it when the conversion changes: older results are then not used


def draft_directory(draft: str | os.PathLike[str], argument: str, revision: str | None = None) -> Path:
    """The folder with config.json and safetensors of `draft`; `argument` names it in errors.

    Raises what model_directory does, and CheckpointError or UnsupportedError for a file that cannot be converted.
    """
    directory = model_directory(draft, argument, revision, (PICKLED_WEIGHTS, _GGUF_FILES))
    if any(directory.glob("*.safetensors")):
        return directory
    gguf_files = sorted(directory.glob(_GGUF_FILES))
    if len(gguf_files) == 1:
        return converted_gguf(gguf_files[0], argument)
    pickles = sorted(directory.glob(PICKLED_WEIGHTS))
    if pickles:
        return _converted_torch(directory, pickles)
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files)
        raise CheckpointError(f"{argument}: {directory} holds several GGUF files; give one of them: {names}"[:500])
    return directory


def _converted_torch(directory: Path, pickles: list[Path]) -> Path:
    """The folder as a whole is converted: config.json is copied beside the weights."""
    target = cache_folder() / cache_name("torch", _TORCH_VERSION, [*pickles, *sorted(directory.glob("*.json"))])

    def build(_work: Path, output: Path) -> None:
        from eagle31rt.torch_checkpoint import convert_torch_checkpoint

        convert_torch_checkpoint(directory, output)

    cached_directory(target, {"source": str(directory.resolve())}, build)
    return target
