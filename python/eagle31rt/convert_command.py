"""`eagle31rt convert`: pytorch_model.bin or GGUF to a new folder with safetensors."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle31rt.errors import InvalidArgumentError

_WEIGHTS = "model.safetensors"


def convert(source: Path, output: Path) -> str:
    """Returns what was done. Raises InvalidArgumentError for a wrong path, and what the conversions raise."""
    if not source.exists():
        raise InvalidArgumentError(f"--input: there is no file or folder {source}")
    if source.is_file():
        return _convert_file(source, output)
    files = sorted(source.glob("*.gguf"))
    if len(files) == 1 and not any(source.glob("pytorch_model*.bin")):
        return _convert_file(files[0], output)
    from eagle31rt.torch_checkpoint import convert_torch_checkpoint

    if output.exists() and output.resolve() == source.resolve():
        count = _convert_in_place(source)
    else:
        with new_directory(output) as work:
            count = convert_torch_checkpoint(source, work)
    return f"{count} tensors written to {output}"


def _convert_file(source: Path, output: Path) -> str:
    from eagle31rt.gguf_draft import convert_gguf_file

    with open(source, "rb") as file:
        if file.read(4) != b"GGUF":
            raise InvalidArgumentError(f"--input {source} is no GGUF file; of pytorch_model.bin give the folder")
    with new_directory(output) as work:
        convert_gguf_file(source, work, lambda done, total: None)
    return f"{source} written to {output}"


def _convert_in_place(folder: Path) -> int:
    from eagle31rt.torch_checkpoint import convert_torch_checkpoint

    if any(folder.glob("*.safetensors")):
        raise InvalidArgumentError(f"--output {folder} holds safetensors files already; give another folder")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as work:
        count = convert_torch_checkpoint(folder, Path(work))
        os.replace(Path(work) / _WEIGHTS, folder / _WEIGHTS)
    return count


@contextmanager
def new_directory(output: Path) -> Iterator[Path]:
    """A folder to fill beside `output`, which takes its name if the block ends without an error.

    So `output` is whole or not there, and of two processes one wins. Raises InvalidArgumentError if it holds files
    already: the config.json of another model would be replaced.
    """
    if output.exists() and not output.is_dir():
        raise InvalidArgumentError(f"--output {output} is a file; give a folder")
    if output.exists() and any(output.iterdir()):
        raise InvalidArgumentError(f"--output {output} holds files already; give a new or empty folder")
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
    try:
        made = work / "output"  # with the usual rights; those of the temporary folder are its owner's
        made.mkdir()
        yield made
        os.replace(made, output)
    finally:
        shutil.rmtree(work, ignore_errors=True)
