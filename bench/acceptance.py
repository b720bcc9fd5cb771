"""Acceptance and speed-up of drafts over question sets, in bench/results/acceptance.json.

    python bench/acceptance.py --model DIR --draft NAME=DIR [NAME=DIR ...] --questions DIR

--questions: a folder of <set>.jsonl with {"turns": [...]} lines, such as the six sets that the EAGLE papers report on
(SafeAILab/EAGLE, eagle/data). Per set: evenly spaced questions, first turn, the model's chat template.

Acceptance comes from batched runs (ids and acceptance of a request do not depend on its batch). Speed-up is batch 1:
decode time of plain over speculative, the same questions, in turn; prefill is not counted.

rows: {set, draft, num_speculative_tokens, temperature, acceptance_length, acceptance_per_position, speed_up}
speed_up is over all sets of one (draft, temperature, num_speculative_tokens) and stands in the row of set "all".
identical: whether every speculative run gave the ids of its plain run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from common import make_engine, make_params, provenance, run_request, write_result

from eagle31rt import _core
from eagle31rt.tokenizer import Tokenizer

MAX_BATCH = 16


def load_prompts(folder: Path, tokenizer: Tokenizer, per_set: int, max_tokens: int) -> dict[str, list[list[int]]]:
    prompts: dict[str, list[list[int]]] = {}
    for path in sorted(folder.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        chosen = [lines[round(i * (len(lines) - 1) / max(1, per_set - 1))] for i in range(per_set)]
        turns = [json.loads(line)["turns"][0] for line in chosen]
        conversations = [[{"role": "user", "content": turn}] for turn in turns]
        prompts[path.stem] = [
            tokenizer.encode(tokenizer.render_chat(chat), add_special_tokens=False)[:max_tokens]
            for chat in conversations
        ]
    if not prompts:
        raise SystemExit(f"no .jsonl file in {folder}")
    return prompts


def run_all(
    engine: _core.Engine, prompts: list[list[int]], max_tokens: int, temperature: float, drafts: int
) -> tuple[list[list[int]], list[_core.SpeculationMetrics]]:
    """All prompts, batched. Returns ids and metrics per prompt."""
    ids: list[list[int]] = [[] for _ in prompts]
    metrics: list[Any] = [None] * len(prompts)
    for index, prompt in enumerate(prompts):
        params = make_params(
            max_tokens, temperature=temperature, seed=index, ignore_eos=False, num_speculative_tokens=drafts
        )
        engine.add_request(index, prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            ids[output.request_id] += output.new_token_ids
            metrics[output.request_id] = output.metrics
    return ids, metrics


def open_engine(model: str, draft: str, max_drafts: int) -> _core.Engine:
    return make_engine(
        model, draft, num_speculative_tokens=max_drafts, max_num_seqs=MAX_BATCH, max_model_len=2048, profile=True
    )


def acceptance(metrics: list[_core.SpeculationMetrics], drafts: int) -> dict[str, Any]:
    rounds = sum(m.num_drafts for m in metrics)
    accepted = sum(m.num_accepted_tokens for m in metrics)
    per_position = [sum(m.num_accepted_tokens_per_position[i] for m in metrics) / rounds for i in range(drafts)]
    return {
        "acceptance_length": round(1 + accepted / rounds, 4),
        "acceptance_per_position": [round(rate, 4) for rate in per_position],
    }


def decode_seconds(engine: _core.Engine, prompt: list[int], params: _core.SamplingParams) -> float:
    return sum(step["step"] for step in run_request(engine, prompt, params)[1][1:]) * 1e-9


def measure_speed_up(
    engine: _core.Engine, prompts: list[list[int]], max_tokens: int, temperature: float, counts: list[int]
) -> dict[int, float]:
    seconds = dict.fromkeys([0, *counts], 0.0)
    for prompt in prompts:
        for drafts in seconds:
            params = make_params(max_tokens, temperature=temperature, seed=1, num_speculative_tokens=drafts)
            seconds[drafts] += decode_seconds(engine, prompt, params)
    return {drafts: seconds[0] / seconds[drafts] for drafts in counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True, nargs="+", metavar="NAME=DIR")
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--per-set", type=int, default=20)
    parser.add_argument("--timed-per-set", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--counts", type=int, nargs="+", default=list(range(1, 9)))
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.7])
    parser.add_argument("--output", default="acceptance.json")
    options = parser.parse_args()

    tokenizer = Tokenizer(Path(options.model))
    sets = load_prompts(options.questions, tokenizer, options.per_set, max_tokens=1536)
    timed = [prompt for prompts in sets.values() for prompt in prompts[: options.timed_per_set]]
    drafts_by_name = dict(entry.split("=", 1) for entry in options.draft)
    # Timing first, while the machine is quiet; acceptance does not depend on it.
    speed_up: dict[tuple[str, float], dict[int, float]] = {}
    for name, directory in drafts_by_name.items():
        engine = open_engine(options.model, directory, max(options.counts))
        for temperature in options.temperatures:
            measured = measure_speed_up(engine, timed, options.max_tokens, temperature, options.counts)
            speed_up[name, temperature] = measured
            print(name, temperature, {drafts: round(value, 3) for drafts, value in measured.items()}, flush=True)

    result: dict[str, Any] = {
        "provenance": provenance(),
        "questions_per_set": options.per_set,
        "timed_questions_per_set": options.timed_per_set,
        "max_tokens": options.max_tokens,
        "identical": True,
        "rows": [],
    }
    for name, directory in drafts_by_name.items():
        engine = open_engine(options.model, directory, max(options.counts))
        for temperature in options.temperatures:
            plain = {
                key: run_all(engine, prompts, options.max_tokens, temperature, 0)[0] for key, prompts in sets.items()
            }
            for drafts in options.counts:
                everything: list[_core.SpeculationMetrics] = []
                common = {"draft": name, "num_speculative_tokens": drafts, "temperature": temperature}
                for key, prompts in sets.items():
                    ids, metrics = run_all(engine, prompts, options.max_tokens, temperature, drafts)
                    result["identical"] &= ids == plain[key]
                    everything += metrics
                    row = {"set": key, **common, **acceptance(metrics, drafts), "speed_up": None}
                    result["rows"].append(row)
                overall = {**acceptance(everything, drafts), "speed_up": round(speed_up[name, temperature][drafts], 3)}
                result["rows"].append({"set": "all", **common, **overall})
                print(json.dumps(result["rows"][-1]), "identical:", result["identical"], flush=True)
                write_result(options.output, result)


if __name__ == "__main__":
    main()
