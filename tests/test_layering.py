"""The layers of csrc: each folder includes only those before it, and Python stays in the bindings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
LAYERS = ["include", "base", "device", "ops", "model", "spec", "engine", "bindings"]
PYTHON = re.compile(r"^(Python\.h|pybind11/)")
TORCH = re.compile(r"^(torch|ATen|c10)/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)

SOURCES = sorted(p for p in CSRC.rglob("*") if p.suffix in {".h", ".hpp", ".cpp", ".cu", ".cuh", ".inc"})


def _layer(path: Path) -> str:
    return path.relative_to(CSRC).parts[0]


def _resolve(source: Path, target: str) -> Path | None:
    """The file of this project that the include names, or None for a library's."""
    for base in (source.parent, CSRC, CSRC / "include"):
        if (base / target).is_file():
            return (base / target).resolve()
    return None


def violations(source: Path, text: str) -> list[str]:
    """What is wrong with the includes of `text`, taken as the content of csrc file `source`."""
    layer = _layer(source)
    if layer not in LAYERS:
        return [f"folder csrc/{layer} has no place in the order {LAYERS}"]
    found = []
    for quote, target in INCLUDE.findall(text):
        if TORCH.match(target):
            found.append(f"{target}: torch is never included by csrc")
        if PYTHON.match(target) and layer != "bindings":
            found.append(f"{target}: only csrc/bindings may include Python")
        if target.startswith(("tests/", "../")) or "/../" in target:
            found.append(f"{target}: include by the path from csrc, and nothing from outside it")
        included = _resolve(source, target)
        if included is None:
            if quote == '"':
                found.append(f"{target}: no such file in csrc")
            continue
        if not included.is_relative_to(CSRC):
            found.append(f"{target}: outside csrc")
        elif LAYERS.index(_layer(included)) > LAYERS.index(layer):
            found.append(f"{target}: csrc/{layer} may not include csrc/{_layer(included)}")
    return found


def test_there_are_sources() -> None:
    assert {_layer(p) for p in SOURCES} >= set(LAYERS)


@pytest.mark.parametrize("source", SOURCES, ids=lambda p: str(p.relative_to(CSRC)))
def test_includes_follow_the_layers(source: Path) -> None:
    assert violations(source, source.read_text()) == []


@pytest.mark.parametrize(
    ("source", "include"),
    [
        ("ops/linear/linear.h", '#include "engine/engine_impl.h"'),
        ("base/check.h", '#include "device/execution_context.h"'),
        ("include/eagle31rt/engine.h", '#include "base/check.h"'),
        ("engine/step.cpp", "#include <pybind11/pybind11.h>"),
        ("engine/step.cpp", "#include <Python.h>"),
        ("bindings/core.cpp", "#include <torch/extension.h>"),
        ("model/decoder.cpp", '#include "../spec/drafter.h"'),
        ("model/decoder.cpp", '#include "tests/helper.h"'),
    ],
)
def test_the_check_sees_an_arrow_that_runs_back(source: str, include: str) -> None:
    assert violations(CSRC / source, f"#pragma once\n  {include}\n")
