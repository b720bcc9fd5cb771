"""Where the operator tests run: on the CPU, or (`pytest --device cuda`) on a GPU or on tools/ptxsim in its place.

With an NVIDIA driver the hardware is used. Without one, or with `--ptxsim PATH`, the CUDA runtime of the process is the
simulator's: PATH is its libcudart.so.13, by default that of `tools/ptxsim/build`.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
DEFAULT_SIMULATOR = ROOT / "tools" / "ptxsim" / "build" / "libcudart.so.13"


def _difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Of totals that only grow; of block_threads and dynamic_shared_bytes, which are maxima, it means nothing."""
    return {
        name: _difference(value, before.get(name, {})) if isinstance(value, dict) else value - before.get(name, 0)
        for name, value in after.items()
    }


class Simulator:
    """The functions that the simulator's libcudart exports besides CUDA's (tools/ptxsim/cudart/ptxsim_control.h)."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL)
        self._library.ptxsim_counters_json.restype = ctypes.c_char_p
        self._library.ptxsim_counters_json.argtypes = [ctypes.c_char_p]
        self._library.ptxsim_last_report.restype = ctypes.c_char_p

    @contextmanager
    def counting(self) -> Iterator[dict[str, dict[str, Any]]]:
        """Counters by kernel of the launches inside the block, filled when it ends."""
        counters: dict[str, dict[str, Any]] = {}
        before = self._counters()
        yield counters
        for kernel, after in self._counters().items():
            used = _difference(after, before.get(kernel, {}))
            if used["launches"] > 0:
                counters[kernel] = used

    def _counters(self) -> dict[str, dict[str, Any]]:
        return dict(json.loads(self._library.ptxsim_counters_json(None)))

    def last_report(self) -> str:
        return bytes(self._library.ptxsim_last_report()).decode()

    def reset_error(self) -> None:
        self._library.ptxsim_reset_error()

    def fail_launch(self, kernel: str, nth: int) -> None:
        """The nth launch from now (from 1) of a kernel whose name contains `kernel` fails."""
        self._library.ptxsim_fail_launch(kernel.encode(), ctypes.c_int(nth))


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or Path("/dev/nvidia0").exists() or Path("/dev/dxg").exists()


def load_simulator(path: str | None) -> Simulator | None:
    """Puts the simulator in the place of CUDA's runtime; None where the hardware is to be used."""
    if path is None and has_nvidia_driver():
        return None
    chosen = Path(path) if path is not None else DEFAULT_SIMULATOR
    if not chosen.is_file():
        raise FileNotFoundError(
            f"--device cuda finds no NVIDIA driver, and no simulator at {chosen}; build it with "
            "`cmake -S tools/ptxsim -B tools/ptxsim/build && cmake --build tools/ptxsim/build -j`"
        )
    return Simulator(chosen)


def simulator_modes() -> str:
    """What the simulator's environment asks for, for the head of a test run."""
    modes = {name: value for name, value in os.environ.items() if name.startswith("PTXSIM_")}
    return ", ".join(f"{name}={value}" for name, value in sorted(modes.items())) or "default order"
