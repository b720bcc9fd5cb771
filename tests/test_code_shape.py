"""Sizes of files, and words that must not appear in them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {".h": 400, ".cpp": 400, ".cu": 600, ".cuh": 600, ".py": 350}
KERNEL_LIMIT = 600  # csrc/ops/*/cpu.cpp and cuda.cu: a kernel and its tails belong together
# path -> why it may be longer than its limit
LONGER: dict[str, str] = {}

# Where the project happens to be worked on is nobody's business, and breaks elsewhere.
MACHINE_PATH = re.compile(r"(?<![\w./])/(tmp|work|root|opt|home)/")
# path -> why it may name such a place
MACHINE_PATH_ALLOWED: dict[str, str] = {}

# A library reports by exceptions: it never ends the process and never writes to its streams.
FORBIDDEN_CALL = re.compile(r"(?<![\w.])(?:std::)?(exit|abort|assert|printf|_Exit|quick_exit)\s*\(")


def _tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:  # an unpacked sdist is no git checkout
        pytest.skip("needs a git checkout")
    return [name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def _text(name: str) -> str | None:
    try:
        return (ROOT / name).read_text()
    except UnicodeDecodeError:  # weights and images
        return None


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _limit(name: str) -> int | None:
    path = Path(name)
    if path.match("csrc/ops/*/cpu.cpp"):
        return KERNEL_LIMIT
    return LIMITS.get(path.suffix)


def test_files_fit_the_limits() -> None:
    too_long = {}
    for name in _tracked():
        limit, text = _limit(name), _text(name)
        if limit is not None and text is not None and name not in LONGER and text.count("\n") > limit:
            too_long[name] = f"{text.count(chr(10))} lines, limit {limit}"
    assert too_long == {}


def test_allowances_are_used() -> None:
    for name in LONGER:
        text, limit = _text(name), _limit(name)
        assert text is not None and limit is not None and text.count("\n") > limit, f"{name} needs no allowance"


def test_no_machine_paths() -> None:
    found = {}
    for name in _tracked():
        text = _text(name)
        if text is None or name in MACHINE_PATH_ALLOWED:
            continue
        lines = [i for i, line in enumerate(text.splitlines(), 1) if MACHINE_PATH.search(line)]
        if lines:
            found[name] = lines
    assert found == {}


def test_the_library_neither_exits_nor_prints() -> None:
    found = {}
    for name in _tracked():
        text = _text(name)
        if not name.startswith("csrc/") or text is None:
            continue
        calls = [match.group(0) for match in FORBIDDEN_CALL.finditer(_without_comments(text))]
        if calls:
            found[name] = calls
    assert found == {}


@pytest.mark.parametrize("line", ["exit(1);", "std::abort();", "  assert (x);", 'std::printf("");', "return exit(2);"])
def test_the_check_sees_forbidden_calls(line: str) -> None:
    assert FORBIDDEN_CALL.search(_without_comments(line))


@pytest.mark.parametrize("line", ["static_assert(x);", "snprintf(b, n);", "on_exit(f);", "// exit(1)", "x.exit(1)"])
def test_the_check_lets_others_pass(line: str) -> None:
    assert not FORBIDDEN_CALL.search(_without_comments(line))


@pytest.mark.parametrize(
    ("line", "bad"), [("open('/{}/x')".format("tmp"), True), ("a/tmp/x", False), ("https://x.y/home/", False)]
)
def test_the_check_sees_machine_paths(line: str, bad: bool) -> None:
    assert bool(MACHINE_PATH.search(line)) == bad
