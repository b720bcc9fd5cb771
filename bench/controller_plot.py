"""Pictures of bench/controller_sim.py; needs matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

LOADS = ("steps 1-32-1", "shift", "ramp")


def plot(cases: Sequence[dict[str, Any]], path: Path) -> None:
    """One row a machine, one column a load: gain over plain decoding and drafts a request, window by window."""
    names = list(dict.fromkeys(case["machine"] for case in cases))
    by_place = {(case["machine"], case["load"]): case for case in cases}
    loads = [load for load in LOADS if any(key[1] == load for key in by_place)] or [cases[0]["load"]]
    figure, grid = plt.subplots(len(names), len(loads), figsize=(5 * len(loads), 2.4 * len(names)), squeeze=False)
    for row, name in zip(grid, names, strict=True):
        for axes, load in zip(row, loads, strict=True):
            if (case := by_place.get((name, load))) is not None:
                draw(axes, case)
            axes.set_title(f"{name}: {load}", fontsize=8)
    grid[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def draw(axes: Any, case: dict[str, Any]) -> None:
    windows = range(len(case["of_plain_by_window"]))
    axes.step(windows, case["of_plain_by_window"], where="mid", label="auto / plain")
    axes.step(windows, case["best_of_window_of_plain"], where="mid", linestyle=":", label="best fixed of the window")
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set_ylim(bottom=0)
    drafts = axes.twinx()
    drafts.bar(windows, case["drafts_by_window"], alpha=0.2, color="tab:green", label="drafts a request")
    drafts.set_ylim(0, 8)
