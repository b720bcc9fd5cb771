"""Writes the figures of bench/results/*.json into README.md, between the markers <!-- NAME --> and <!-- /NAME -->.

python bench/readme_tables.py [--check]    # --check: fail if README.md is not what the JSON files give
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
LABELS = {
    "read_fraction": "plain decode, batch 1: weights and KV read, of a plain read loop",
    "rows_4": "verifying 4 rows, over one",
    "rows_8": "verifying 8 rows, over one",
    "prefill_fraction": "prefill of 512 tokens, of the multiply-add peak",
    "other_fraction": "neither weights, KV nor logits, of a step",
    "draft_step_fraction": "one draft step with re-feed, of a plain step (worst of K = 1, 3, 7)",
    "extra_megabytes": "peak memory beyond weights and KV, MB",
    "speed_up_over_transformers_float32": "plain decode over transformers, float32",
    "speed_up_over_transformers_bfloat16": "plain decode over transformers, bfloat16",
}


def load(name: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((ROOT / "bench" / "results" / name).read_text())
    return data


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def origin(result: dict[str, Any]) -> str:
    where = result["provenance"]
    return (
        f"`{where['command']}`, {where['physical_cores']} cores of {where['processor']} "
        f"({where['instruction_set']}), commit {where['commit']}."
    )


def decode_table() -> str:
    from decode import TARGETS

    result = load("decode.json")
    figures = result["figures"]
    rows = []
    for name, label in LABELS.items():
        if name not in figures:
            continue
        sense, bound = TARGETS[name]
        mark = "yes" if result["targets_met"][name] else "**no**"
        rows.append([label, f"{figures[name]:.3g}", f"{'≥' if sense == '>=' else '≤'} {bound:g}", mark])
    return table(["figure", "measured", "target", "met"], rows)


def acceptance_table() -> str:
    result = load("acceptance.json")
    counts = (1, 2, 3, 5, 8)
    rows = []
    keys = [(row["draft"], row["temperature"], row["set"]) for row in result["rows"]]
    for draft, temperature, name in dict.fromkeys(keys):
        of_key = {
            row["num_speculative_tokens"]: row
            for row in result["rows"]
            if (row["draft"], row["temperature"], row["set"]) == (draft, temperature, name)
        }
        lengths = [f"{of_key[k]['acceptance_length']:.2f}" if k in of_key else "-" for k in counts]
        speed = [
            f"{of_key[k]['speed_up']:.2f}" if k in of_key and of_key[k]["speed_up"] is not None else "" for k in counts
        ]
        rows.append([draft, f"{temperature:g}", name, " / ".join(lengths), " / ".join(speed) if any(speed) else ""])
    ks = "/".join(str(k) for k in counts)
    identical, checked = ("yes" if result[key] else "NO" for key in ("identical", "walk_checked"))
    note = (
        f"\n\nTimed runs, every K: ids equal to those of plain decoding: **{identical}**; counts of drafts and of "
        f"accepted tokens equal to those that the table is computed from (`bench/acceptance.py`): **{checked}**."
    )
    return table(["draft", "T", "set", f"acceptance length, K = {ks}", "speed-up, batch 1"], rows) + note


def render(readme: str) -> str:
    blocks = {
        "decode": (decode_table, "decode.json"),
        "acceptance": (acceptance_table, "acceptance.json"),
    }
    for name, (make, source) in blocks.items():
        text = f"<!-- {name} -->\n{make()}\n\nFrom `bench/results/{source}`: {origin(load(source))}\n<!-- /{name} -->"
        readme, count = re.subn(f"<!-- {name} -->.*?<!-- /{name} -->", lambda _, t=text: t, readme, flags=re.DOTALL)
        if count != 1:
            raise SystemExit(f"README.md has no block {name}")
    return readme


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    path = ROOT / "README.md"
    before = path.read_text()
    after = render(before)
    if options.check and before != after:
        raise SystemExit("README.md does not match bench/results; run python bench/readme_tables.py")
    path.write_text(after)


if __name__ == "__main__":
    main()
