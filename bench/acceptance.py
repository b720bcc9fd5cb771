"""Acceptance and speed-up of drafts over question sets, in bench/results/acceptance.json.

    python bench/acceptance.py --model DIR --draft NAME=DIR [NAME=DIR ...] --questions DIR

--questions: a folder of <set>.jsonl with {"turns": [...]} lines, such as the six sets that the EAGLE papers report on
(SafeAILab/EAGLE, eagle/data). Per set: evenly spaced questions, first turn, the model's chat template.

Speed-up is batch 1 on a few questions of each set: decode time of plain over speculative, in turn; prefill is not
counted. It stands in the rows of set "all".

Acceptance: drafts are deterministic and a draft stands if it is the id that plain decoding emits, so how many drafts
stand from each position of the plain output (`_testing.DraftProbe`) settles every draft length at once: the rounds are
then walked as the engine walks them. The timed runs check this walk: their ids must be those of the plain run, and
their counts of drafts, draft tokens and accepted tokens those of the walk ("identical" and "walk_checked" in the JSON).

rows: {set, draft, num_speculative_tokens, temperature, acceptance_length, acceptance_per_position, speed_up}
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from common import make_engine, make_params, provenance, run_request, write_result

from eagle31rt import _core, _testing
from eagle31rt.tokenizer import Tokenizer

MAX_BATCH = 16
MAX_PROMPT = 1536
MAX_MODEL_LEN = 2048


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


def run_plain(engine: _core.Engine, prompts: list[list[int]], max_tokens: int, temperature: float) -> list[list[int]]:
    """Ids of all prompts, batched, without speculation."""
    ids: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        params = make_params(
            max_tokens, temperature=temperature, seed=index, ignore_eos=False, num_speculative_tokens=0
        )
        engine.add_request(index, prompt, params)
    while engine.has_unfinished_requests():
        for output in engine.step():
            ids[output.request_id] += output.new_token_ids
    return ids


@dataclass
class Walk:
    """Totals of the rounds that the engine would make; the fields are those of _core.SpeculationMetrics."""

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_position: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, standing: list[int], num_tokens: int, max_tokens: int, num_speculative_tokens: int) -> Walk:
        """standing[i]: drafts that stand after i + 1 of the num_tokens emitted ids."""
        walk = cls(num_accepted_tokens_per_position=[0] * num_speculative_tokens)
        emitted = 1  # by the prompt's pass
        while emitted < num_tokens:
            drafts = min(num_speculative_tokens, max_tokens - emitted - 1)
            accepted = min(standing[emitted - 1], drafts)
            if drafts > 0:
                walk.num_drafts += 1
                walk.num_draft_tokens += drafts
            for position in range(accepted):
                walk.num_accepted_tokens_per_position[position] += 1
            walk.num_accepted_tokens += accepted
            emitted += accepted + 1
        return walk

    def add(self, other: Walk) -> None:
        self.num_drafts += other.num_drafts
        self.num_draft_tokens += other.num_draft_tokens
        self.num_accepted_tokens += other.num_accepted_tokens
        pairs = zip(self.num_accepted_tokens_per_position, other.num_accepted_tokens_per_position, strict=True)
        self.num_accepted_tokens_per_position = [a + b for a, b in pairs]

    def summary(self) -> dict[str, Any]:
        rates = [count / self.num_drafts for count in self.num_accepted_tokens_per_position]
        return {
            "acceptance_length": round(1 + self.num_accepted_tokens / self.num_drafts, 4),
            "acceptance_per_position": [round(rate, 4) for rate in rates],
        }

    def equals(self, metrics: _core.SpeculationMetrics) -> bool:
        return all(getattr(metrics, name) == value for name, value in asdict(self).items())


@dataclass
class Speed:
    """Of one draft and temperature, over the timed questions."""

    speed_up: dict[int, float]
    identical: bool
    walk_checked: bool


def measure_speed(
    engine: _core.Engine,
    probe: _testing.DraftProbe,
    prompts: list[list[int]],
    max_tokens: int,
    temperature: float,
    counts: list[int],
) -> Speed:
    seconds = dict.fromkeys([0, *counts], 0.0)
    identical = walk_checked = True
    for prompt in prompts:
        plain: list[int] = []
        standing: list[int] = []
        for drafts in seconds:
            params = make_params(max_tokens, temperature=temperature, seed=1, num_speculative_tokens=drafts)
            ids, steps, metrics = run_request(engine, prompt, params)
            seconds[drafts] += sum(step["step"] for step in steps[1:]) * 1e-9
            if drafts == 0:
                plain, standing = ids, probe.agreement(prompt + ids, len(prompt), max(counts))
                continue
            identical &= ids == plain
            walk_checked &= Walk.of(standing, len(plain), max_tokens, drafts).equals(metrics)
    return Speed({drafts: seconds[0] / seconds[drafts] for drafts in counts}, identical, walk_checked)


def acceptance_rows(
    probe: _testing.DraftProbe,
    prompts: dict[str, list[list[int]]],
    outputs: dict[str, list[list[int]]],
    max_tokens: int,
    counts: list[int],
) -> list[dict[str, Any]]:
    totals = {drafts: Walk(num_accepted_tokens_per_position=[0] * drafts) for drafts in counts}
    rows: list[dict[str, Any]] = []
    for name in prompts:
        of_set = {drafts: Walk(num_accepted_tokens_per_position=[0] * drafts) for drafts in counts}
        for prompt, ids in zip(prompts[name], outputs[name], strict=True):
            standing = probe.agreement(prompt + ids, len(prompt), max(counts))
            for drafts in counts:
                walk = Walk.of(standing, len(ids), max_tokens, drafts)
                of_set[drafts].add(walk)
                totals[drafts].add(walk)
        rows += [{"set": name, "num_speculative_tokens": k, **of_set[k].summary(), "speed_up": None} for k in counts]
    return rows + [{"set": "all", "num_speculative_tokens": k, **totals[k].summary()} for k in counts]


def parse_options() -> argparse.Namespace:
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
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    prompts = load_prompts(options.questions, Tokenizer(Path(options.model)), options.per_set, MAX_PROMPT)
    timed = [prompt for of_set in prompts.values() for prompt in of_set[: options.timed_per_set]]
    plain = make_engine(options.model, max_num_seqs=MAX_BATCH, max_model_len=MAX_MODEL_LEN)
    outputs: dict[float, dict[str, list[list[int]]]] = {}
    result: dict[str, Any] = {
        "provenance": provenance(),
        "questions_per_set": options.per_set,
        "timed_questions_per_set": options.timed_per_set,
        "max_tokens": options.max_tokens,
        "identical": True,
        "walk_checked": True,
        "rows": [],
    }
    for name, directory in (entry.split("=", 1) for entry in options.draft):
        most = max(options.counts)
        engine = make_engine(
            options.model,
            directory,
            num_speculative_tokens=most,
            max_num_seqs=1,
            max_model_len=MAX_MODEL_LEN,
            profile=True,
            enable_prefix_caching=False,  # the run without drafts leaves no draft entries for those after it
        )
        probe = _testing.DraftProbe(options.model, directory, MAX_MODEL_LEN)
        for temperature in options.temperatures:
            speed = measure_speed(engine, probe, timed, options.max_tokens, temperature, options.counts)
            result["identical"] &= speed.identical
            result["walk_checked"] &= speed.walk_checked
            if temperature not in outputs:
                outputs[temperature] = {
                    key: run_plain(plain, of_set, options.max_tokens, temperature) for key, of_set in prompts.items()
                }
            rows = acceptance_rows(probe, prompts, outputs[temperature], options.max_tokens, options.counts)
            for row in rows:
                if row["set"] == "all":
                    row["speed_up"] = round(speed.speed_up[row["num_speculative_tokens"]], 3)
                    print(name, temperature, json.dumps(row), flush=True)
                result["rows"].append({"draft": name, "temperature": temperature, **row})
            write_result(options.output, result)
    print("identical:", result["identical"], "walk checked:", result["walk_checked"])


if __name__ == "__main__":
    main()
