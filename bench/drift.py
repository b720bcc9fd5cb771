"""Attention drift of draft heads, in bench/results/drift.json; bench/drift_plots.py draws it.

    python bench/drift.py --model DIR --draft NAME=DIR [NAME=DIR ...] --questions DIR

What is measured (arXiv 2605.09992 calls it attention drift): as a draft goes deeper it reads its own states instead of
the target's. Per draft depth d (1 = from the target's feature), over anchors in the target's greedy answers, with the
tokens of the answer as the drafted ones (the state that matters is the one after accepted drafts):

- magnitude: RMS of the state that is fed back
- entropy: of the attention, in nats, mean over heads
- sink: attention mass on the first position of the context
- recent: attention mass on the d newest entries (the slot itself and the drafted ones before it)
- drifted: attention mass on entries that were made from fed-back states (d - 1 of them)
- acceptance: share of anchors whose draft d stands, given that those before it stood; by the engine itself

Conditions: short (first turns of mt_bench, with the chat template), bare (the same without it), long (articles of the
set "sum" joined to about --long-tokens tokens, with the template).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import make_engine, make_params, provenance, write_result

from eagle31rt import _core, _testing
from eagle31rt.tokenizer import Tokenizer
from eagle31rt.training.attention import Projections
from eagle31rt.training.head import DraftHead
from eagle31rt.training.load import load_head
from eagle31rt.training.target import TargetSizes, TargetTensors
from eagle31rt.training.unroll import Batch, Chains, Slots, causal_attention

MAX_LEN = 2560
KINDS = ("magnitude", "entropy", "sink", "recent", "drifted")


def make_prompts(folder: Path, tokenizer: Tokenizer, count: int, long_tokens: int) -> dict[str, list[list[int]]]:
    """Token ids by condition."""

    def first_turns(name: str) -> list[str]:
        return [json.loads(line)["turns"][0] for line in (folder / f"{name}.jsonl").read_text().splitlines()]

    def chat(text: str) -> list[int]:
        rendered = tokenizer.render_chat([{"role": "user", "content": text}])
        return tokenizer.encode(rendered, add_special_tokens=False)

    turns = first_turns("mt_bench")
    chosen = turns[:: max(1, len(turns) // count)][:count]
    articles = iter(first_turns("sum"))
    long: list[list[int]] = []
    while len(long) < count:
        text = next(articles)
        while len(chat(text)) < long_tokens:
            text += "\n\n" + next(articles)
        ids = chat(text)
        tail = 64  # keep the template's end
        long.append(ids[: long_tokens - tail] + ids[-tail:])
    bare = [tokenizer.encode(text) for text in chosen]
    return {"short": [chat(text) for text in chosen], "bare": bare, "long": long}


def answer(engine: _core.Engine, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Greedy ids of every prompt, past any end of turn, so that all answers are equally long."""
    ids: list[list[int]] = [[] for _ in prompts]
    for index, prompt in enumerate(prompts):
        engine.add_request(index, prompt, make_params(max_tokens))
    while engine.has_unfinished_requests():
        for output in engine.step():
            ids[output.request_id] += output.new_token_ids
    return ids


def first_weights(projections: Projections, slots: Slots, anchors: torch.Tensor, scale: float) -> torch.Tensor:
    """Attention weights of step 0 in a batch of one conversation, [anchors, heads, slots]."""
    kv_heads = projections.key.shape[1]
    query = projections.query[anchors].unflatten(1, (kv_heads, -1))
    scores = torch.einsum("akgd,tkd->akgt", query, projections.key) * scale
    hidden = slots.position[None, :] > slots.position[anchors][:, None]
    return torch.softmax(scores.masked_fill(hidden[:, None, None], float("-inf")), dim=-1).flatten(1, 2)


def measure(weights: torch.Tensor, feedback: torch.Tensor, newest: torch.Tensor, drafted: int) -> dict[str, float]:
    """weights [chains, heads, context + drafted]; newest [chains]: the last visible slot of the context."""
    context = weights[..., : weights.shape[-1] - drafted]
    own = weights[..., weights.shape[-1] - drafted :].sum(-1)
    last = context.gather(2, newest[:, None, None].expand(-1, weights.shape[1], 1)).squeeze(-1)
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1)
    return {
        "magnitude": feedback.pow(2).mean(-1).sqrt().mean().item(),
        "entropy": entropy.mean().item(),
        "sink": context[..., 0].mean().item(),
        "recent": (own + last).mean().item(),
        "drifted": own.mean().item(),
    }


@torch.no_grad()
def drift(head: DraftHead, batch: Batch, first_anchor: int, depth: int) -> list[dict[str, float]]:
    """One conversation; anchors are all slots from first_anchor on whose chain of `depth` fits."""
    slots = Slots(batch)
    anchors = torch.arange(first_anchor, len(slots.row) - depth)
    feature = head.fuse(batch.captured[slots.row])
    projections = head.project(feature, batch.token_ids[slots.row + 1], slots.position)
    context = slots.context(projections)
    states = head.finish(feature, causal_attention(slots, projections, context, head.scale))
    weights = first_weights(projections, slots, anchors, head.scale)
    result = [measure(weights, states.feedback[anchors], slots.position[anchors], 0)]
    chains = Chains(slots, anchors, context, head.scale)
    feedback = states.feedback[anchors]
    for step in range(1, depth):
        projections = head.project(feedback, batch.token_ids[anchors + 1 + step], slots.position[anchors] + step)
        feedback = head.finish(feedback, chains.attend(projections)).feedback
        result.append(measure(chains.weights(), feedback, slots.position[anchors], step))
    return result


def conditional_acceptance(standing: list[int], depth: int) -> list[list[int]]:
    """[reached, stood] per depth, over the positions where `depth` drafts could be compared."""
    full = standing[: len(standing) - depth]
    return [[sum(s >= d for s in full), sum(s > d for s in full)] for d in range(depth)]


def run_condition(
    options: argparse.Namespace, directory: str, prompts: list[list[int]], answers: list[list[int]]
) -> dict[str, Any]:
    sizes = TargetSizes.read(Path(options.model))
    head, _ = load_head(Path(directory), sizes, TargetTensors.read(Path(options.model)), MAX_LEN)
    probe = _testing.DraftProbe(options.model, directory, MAX_LEN, options.threads)
    extractor = _core.FeatureExtractor(options.model, list(head.sizes.capture_layers), MAX_LEN, options.threads)
    depths: list[list[dict[str, float]]] = []
    counts = np.zeros((options.depth, 2), np.int64)
    for prompt, ids in zip(prompts, answers, strict=True):
        tokens = prompt + ids
        states = torch.from_numpy(extractor.extract(tokens, [len(tokens)]))
        token_ids = torch.tensor(tokens)
        batch = Batch(token_ids, torch.ones(len(tokens), dtype=torch.bool), states, states, [len(tokens)])
        depths.append(drift(head, batch, len(prompt) - 1, options.depth))
        standing = probe.agreement(tokens, len(prompt), options.depth)
        counts += np.array(conditional_acceptance(standing, options.depth))
    rows: dict[str, Any] = {
        kind: [round(float(np.mean([one[d][kind] for one in depths])), 4) for d in range(options.depth)]
        for kind in KINDS
    }
    rows["acceptance"] = [round(stood / reached, 4) if reached else None for reached, stood in counts.tolist()]
    rows["reached"] = counts[:, 0].tolist()
    rows["mean_accepted"] = round(float(counts[:, 1].sum() / counts[0, 0]), 4)
    rows["anchors"] = int(counts[0, 0])
    rows["prompt_tokens"] = round(float(np.mean([len(prompt) for prompt in prompts])))
    return rows


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True, nargs="+", metavar="NAME=DIR")
    parser.add_argument("--questions", required=True, type=Path)
    parser.add_argument("--prompts", type=int, default=12, help="of each condition")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--long-tokens", type=int, default=2000)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--threads", type=int, default=0, help="0: physical cores")
    parser.add_argument("--output", default="drift.json")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    prompts = make_prompts(options.questions, Tokenizer(Path(options.model)), options.prompts, options.long_tokens)
    if options.threads:
        torch.set_num_threads(options.threads)
    engine = make_engine(options.model, max_num_seqs=8, max_model_len=MAX_LEN, num_threads=options.threads)
    answers = {name: answer(engine, of_condition, options.max_tokens) for name, of_condition in prompts.items()}
    rows: list[dict[str, Any]] = []
    for entry in options.draft:
        name, directory = entry.split("=", 1)
        for condition in prompts:
            figures = run_condition(options, directory, prompts[condition], answers[condition])
            rows.append({"draft": name, "condition": condition, **figures})
            print(json.dumps(rows[-1]), flush=True)
    write_result(options.output, {"provenance": provenance(), "prompts": options.prompts, "rows": rows})


if __name__ == "__main__":
    main()
