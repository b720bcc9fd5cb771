"""Draws bench/results/drift.json into docs/images/drift-*.png and writes its tables into docs/drift.md.

python bench/drift_plots.py    # needs matplotlib
"""

from __future__ import annotations

import re
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from readme_tables import ROOT, load, origin, table

IMAGES = ROOT / "docs" / "images"
TITLES = {
    "magnitude": "RMS of the fed-back state",
    "entropy": "attention entropy, nats",
    "sink": "attention on the first position",
    "drifted": "attention on drafted entries",
    "acceptance": "acceptance given the ones before",
}
COLORS = {"eagle3": "tab:orange", "eagle3.1": "tab:blue"}
STYLES = {"short": "-", "bare": "--", "long": ":"}


def draw(kind: str, rows: list[dict[str, Any]]) -> None:
    figure, axes = plt.subplots(figsize=(4.2, 3.0), dpi=110)
    for row in rows:
        depths = range(1, len(row[kind]) + 1)
        values = [float("nan") if value is None else value for value in row[kind]]
        label = f"{row['draft']}, {row['condition']}"
        color, style = COLORS.get(row["draft"]), STYLES[row["condition"]]
        axes.plot(depths, values, color=color, linestyle=style, marker=".", label=label)
    axes.set_xlabel("draft depth")
    axes.set_title(TITLES[kind], fontsize=10)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(IMAGES / f"drift-{kind}.png", metadata={"Software": None})
    plt.close(figure)


def summary(rows: list[dict[str, Any]]) -> str:
    """Depth 1 -> the last depth, as the paper's Table 2 has it."""
    header = ["draft", "condition", "magnitude", "entropy", "sink", "recent", "drifted", "acceptance", "mean accepted"]
    lines = []
    for row in rows:
        kinds = ("magnitude", "entropy", "sink", "recent", "drifted", "acceptance")
        ends = [f"{row[kind][0]:.2f} -> {_last(row[kind]):.2f}" for kind in kinds]
        lines.append([row["draft"], row["condition"], *ends, f"{row['mean_accepted']:.2f}"])
    return table(header, lines)


def _last(values: list[float | None]) -> float:
    return next(value for value in reversed(values) if value is not None)


def main() -> None:
    result = load("drift.json")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for kind in TITLES:
        draw(kind, result["rows"])
    path = ROOT / "docs" / "drift.md"
    block = f"<!-- drift -->\n{summary(result['rows'])}\n\n{origin(result)}\n<!-- /drift -->"
    text, count = re.subn("<!-- drift -->.*?<!-- /drift -->", lambda _: block, path.read_text(), flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{path} has no block <!-- drift -->")
    path.write_text(text)


if __name__ == "__main__":
    main()
