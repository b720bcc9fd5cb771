"""Draft trees against chains of equal budget, in bench/results/trees.json.

    python bench/trees.py --model DIR --draft DIR --questions DIR

--questions: as in bench/acceptance.py; evenly spaced questions of every set, first turn, the model's chat template, all
of them in one batch. The ids of every setting must be those of plain decoding ("identical").

rows: {num_speculative_tokens, tree_top_k, tree_depth, temperature, acceptance_length, acceptance_per_position,
num_verify_steps}: acceptance_length is tokens a verify step; tree_top_k 1 is a chain.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acceptance import MAX_MODEL_LEN, MAX_PROMPT, load_prompts, run_plain
from common import make_engine, make_params, provenance, write_result

from eagle31rt import _core
from eagle31rt.tokenizer import Tokenizer

# (top_k, depth) by budget. A chain has at most 16 drafts, so larger trees stand beside that one.
SETTINGS: dict[int, list[tuple[int, int]]] = {
    4: [(1, 0), (2, 3)],
    8: [(1, 0), (2, 4), (4, 3)],
    16: [(1, 0), (4, 4), (4, 6)],
    32: [(8, 5)],
    60: [(10, 6)],
}


def settings() -> Iterator[dict[str, int]]:
    for budget, shapes in SETTINGS.items():
        for top_k, depth in shapes:
            yield {"num_speculative_tokens": budget, "tree_top_k": top_k, "tree_depth": depth}


def run(
    engine: _core.Engine, prompts: list[list[int]], max_tokens: int, temperature: float
) -> tuple[list[list[int]], list[_core.SpeculationMetrics]]:
    ids: list[list[int]] = [[] for _ in prompts]
    metrics: dict[int, _core.SpeculationMetrics] = {}
    for index, prompt in enumerate(prompts):
        engine.add_request(
            index, prompt, make_params(max_tokens, temperature=temperature, seed=index, ignore_eos=False)
        )
    while engine.has_unfinished_requests():
        for output in engine.step():
            ids[output.request_id] += output.new_token_ids
            metrics[output.request_id] = output.metrics
    return ids, [metrics[index] for index in range(len(prompts))]


def row_of(metrics: list[_core.SpeculationMetrics]) -> dict[str, Any]:
    steps = sum(each.num_drafts for each in metrics)
    accepted = [each.num_accepted_tokens_per_position for each in metrics]
    return {
        "acceptance_length": round(1 + sum(each.num_accepted_tokens for each in metrics) / steps, 4),
        "acceptance_per_position": [round(sum(column) / steps, 4) for column in zip(*accepted, strict=True)],
        "num_verify_steps": steps,
    }


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--per-set", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--output", default="trees.json")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    of_sets = load_prompts(options.questions, Tokenizer(Path(options.model)), options.per_set, MAX_PROMPT)
    prompts = [prompt for of_set in of_sets.values() for prompt in of_set]
    common = {"max_num_seqs": len(prompts), "max_model_len": MAX_MODEL_LEN}
    plain = make_engine(options.model, **common)
    expected = {t: run_plain(plain, prompts, options.max_tokens, t) for t in options.temperatures}
    result: dict[str, Any] = {
        "provenance": provenance(),
        "questions_per_set": options.per_set,
        "max_tokens": options.max_tokens,
        "identical": True,
        "rows": [],
    }
    for temperature in options.temperatures:
        for setting in settings():
            engine = make_engine(options.model, options.draft, **setting, **common)
            ids, metrics = run(engine, prompts, options.max_tokens, temperature)
            result["identical"] &= ids == expected[temperature]
            result["rows"].append({**setting, "temperature": temperature, **row_of(metrics)})
            path = write_result(options.output, result)  # a stopped run leaves what it has measured
            print(path, result["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
