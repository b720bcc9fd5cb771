"""Free memory as the KV cache may take it: the machine's, within the limits of the control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle31rt import _testing

MEMINFO = "MemTotal:       8000 kB\nMemFree:        3000 kB\nMemAvailable:   5000 kB\nHugePages_Total:       0\n"
GROUP_2 = "sys/fs/cgroup"
GROUP_1 = "sys/fs/cgroup/memory"


def _write(root: Path, groups: str, files: dict[str, str]) -> str:
    for name, text in {"proc/meminfo": MEMINFO, "proc/self/cgroup": groups, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def _limits(group: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    if group.startswith(GROUP_1):
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    else:
        names = ("memory.max", "memory.current", "inactive_file")
    return {
        f"{group}/{names[0]}": limit + "\n",
        f"{group}/{names[1]}": f"{used}\n",
        f"{group}/memory.stat": f"anon 5\nfile 7\n{names[2]} {inactive}\nunevictable 1\n",
    }


@pytest.mark.parametrize(
    ("groups", "files", "expected"),
    [
        ("0::/\n", {}, 5000 * 1024),
        ("0::/\n", _limits(GROUP_2, "max", 10), 5000 * 1024),
        ("0::/\n", _limits(GROUP_2, "1000000", 300000, 100000), 800000),
        ("0::/a/b\n", _limits(f"{GROUP_2}/a", "900000", 300000), 600000),  # a parent's limit
        ("0::/a/b\n", {**_limits(GROUP_2, "700000", 0), **_limits(f"{GROUP_2}/a/b", "900000", 0)}, 700000),
        ("0::/not/shown\n", _limits(GROUP_2, "1000000", 1), 999999),  # a container whose tree begins at its own group
        ("0::/\n", _limits(GROUP_2, "1000", 5000), 1),  # above it, but a limit is known
        ("5:cpu,memory:/x\n", _limits(f"{GROUP_1}/x", "1000000", 200000, 50000), 850000),
        ("5:cpuset:/x\n4:pids:/x\n", _limits(f"{GROUP_1}/x", "1000", 0), 5000 * 1024),
        ("5:memory:/\n", _limits(GROUP_1, "9223372036854771712", 200), 5000 * 1024),  # version 1 without a limit
    ],
)
def test_limits_of_control_groups(tmp_path: Path, groups: str, files: dict[str, str], expected: int) -> None:
    assert _testing.available_memory_bytes(_write(tmp_path, groups, files)) == expected


def test_nothing_is_known_without_meminfo(tmp_path: Path) -> None:
    assert _testing.available_memory_bytes(str(tmp_path)) == 0


def test_this_machine_has_memory() -> None:
    assert _testing.available_memory_bytes() > 1 << 20
