"""The table of kernel resources: its arithmetic, and what it refuses. The library itself is read by tests/cuda.sh."""

import json
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parent.parent / "bench"
sys.path.insert(0, str(BENCH))

from cubin import CompiledKernel  # noqa: E402
from kernel_resources import RESULTS, occupancy, problems  # noqa: E402


def kernel(registers: int = 32, stack: int = 0, shared: int = 0, architecture: int = 80) -> CompiledKernel:
    return CompiledKernel("k", architecture, registers, stack, shared, 256)


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "architecture", "expected"),
    [
        (32, 256, 0, 80, 1.0),
        (64, 256, 0, 80, 0.5),  # 4 blocks of 8 warps: 65536 / (64 * 32 * 8)
        (65, 256, 0, 80, 0.375),  # 65 registers are given as 72
        (32, 128, 49152, 80, 0.1875),  # 3 blocks of 48 + 1 KiB in 164
        (32, 128, 49152, 90, 0.25),  # 4 in 228
        (16, 32, 0, 80, 0.5),  # 32 blocks of one warp
        (255, 1024, 0, 80, 0.0),  # does not fit
    ],
)
def test_occupancy(registers: int, threads: int, shared: int, architecture: int, expected: float) -> None:
    assert occupancy(kernel(registers, architecture=architecture), threads, shared) == expected


def test_a_spill_is_refused() -> None:
    row = {"name": "k", "architecture": 80, "stack_bytes": 8, "max_threads": 256, "occupancy": 0.5}
    assert problems([row]) == ["k on sm_80 keeps 8 bytes a thread in local memory"]
    assert problems([row | {"stack_bytes": 0}]) == []
    assert "does not fit" in problems([row | {"stack_bytes": 0, "occupancy": 0.0}])[0]
    assert "launch_bounds" in problems([row | {"stack_bytes": 0, "max_threads": 0}])[0]


def test_stored_table_is_complete_and_without_spills() -> None:
    rows = json.loads(RESULTS.read_text())["kernels"]
    assert {row["architecture"] for row in rows} == {80, 90, 100}
    names = [{row["name"] for row in rows if row["architecture"] == a} for a in (80, 90, 100)]
    assert names[0] == names[1] == names[2] and len(names[0]) > 20
    assert problems(rows) == []
