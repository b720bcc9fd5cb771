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
KINDS = ("magnitude", "entropy", "sink", "recent", "drifted")
COLORS = {"eagle3": "tab:orange", "eagle3.1": "tab:blue"}
STYLES = {"short": "-", "bare": "--", "long": ":"}


def draw(kind: str, rows: list[dict[str, Any]]) -> None:
    figure, axes = plt.subplots(figsize=(4.2, 3.0), dpi=110)
    for row in rows:
        depths = range(1, len(row[kind]) + 1)
        measured = acceptance(row) if kind == "acceptance" else row[kind]
        values = [float("nan") if value is None else value for value in measured]
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


_FEWEST = 20  # anchors that an acceptance rate must stand on
_SHOWN = 3  # depths of the acceptance column


def acceptance(row: dict[str, Any]) -> list[float | None]:
    pairs = zip(row["acceptance"], row["reached"], strict=True)
    return [rate if reached >= _FEWEST else None for rate, reached in pairs]


def summary(rows: list[dict[str, Any]]) -> str:
    """Depth 1 -> the last depth, as the paper's Table 2 has it."""
    header = ["draft", "condition", *KINDS, f"acceptance of 1 to {_SHOWN}", "mean accepted"]
    lines = []
    for row in rows:
        ends = [f"{row[kind][0]:.2f} -> {row[kind][-1]:.2f}" for kind in KINDS]
        rates = " / ".join("-" if rate is None else f"{rate:.2f}" for rate in acceptance(row)[:_SHOWN])
        lines.append([row["draft"], row["condition"], *ends, rates, f"{row['mean_accepted']:.2f}"])
    return table(header, lines)


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
