"""Finds NVIDIA's CUDA runtime for the CUDA backend, and tells what this machine has of CUDA."""

from __future__ import annotations

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eagle31rt.errors import DeviceError

LIBRARY = "libcudart.so.13"
_FOLDERS_IN_WHEELS = ("cu13/lib", "cuda_runtime/lib")  # of nvidia-cuda-runtime, below the package nvidia


def load_cuda_runtime() -> None:
    """Brings libcudart into the process, where the backend then finds it by name.

    In this order: what is loaded already (torch's), the wheel of the extra [cuda], the system's. Finding none is not an
    error here: loading the backend says so.
    """
    if sys.platform != "linux" or _load(LIBRARY, os.RTLD_NOLOAD):
        return
    for path in _paths_in_wheels():
        if _load(str(path)):
            return
    _load(LIBRARY)


def describe_cuda() -> dict[str, Any]:
    """For `eagle31rt env`: runtime, driver and devices, or under "problem" what is missing."""
    from eagle31rt import _core

    load_cuda_runtime()
    try:
        facts = _core.cuda_info()
    except DeviceError as error:
        return {"runtime": None, "driver": None, "devices": [], "problem": str(error)}
    return {
        "runtime": _version(facts["runtime_version"]),
        "driver": _version(facts["driver_version"]),
        "devices": facts["devices"],
        "problem": facts["problem"] or None,
    }


def _paths_in_wheels() -> list[Path]:
    package = find_spec("nvidia")
    places = (package.submodule_search_locations if package is not None else None) or ()
    paths = [Path(place) / folder / LIBRARY for place in places for folder in _FOLDERS_IN_WHEELS]
    return [path for path in paths if path.is_file()]


def _load(name: str, mode: int = 0) -> bool:
    try:
        ctypes.CDLL(name, mode=mode | os.RTLD_NOW)
    except OSError:
        return False
    return True


def _version(number: int) -> str | None:
    return f"{number // 1000}.{number % 1000 // 10}" if number > 0 else None
