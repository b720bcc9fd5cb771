"""Host work of a step at a batch of 64, in microseconds: schedule, packing, commit, events and pages.

    python bench/scheduler.py [--batch N] [--steps N] [--output NAME.json]

The model is as good as none (one layer of 16 channels, 96 ids), and drafting, the forward pass and verification are
taken off as wholes (EngineProfile.scheduling). Figures are medians over steps in which every request decodes; pages of
16 tokens, so that a step takes and publishes pages for a sixteenth of the requests. Each with text and without.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from common import make_engine, make_params, provenance, write_result

from eagle31rt import _core

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target

TARGET_MICROSECONDS = 200.0
SIZE = 16  # channels
VOCABULARY = 96
PROMPT = 24


def null_models(folder: Path) -> tuple[str, str]:
    target = write_target(
        folder / "target",
        TargetSpec(
            num_layers=4,  # the draft reads three states
            hidden_size=SIZE,
            intermediate_size=SIZE,
            num_heads=1,
            num_kv_heads=1,
            vocab_size=VOCABULARY,
            max_position_embeddings=1024,
        ),
    )
    draft = write_draft(folder / "draft", target, DraftSpec(num_heads=1, num_kv_heads=1, intermediate_size=SIZE))
    return str(target.directory), str(draft.directory)


def token_table() -> _core.TokenTable:
    return _core.TokenTable([f" {i}".encode() for i in range(VOCABULARY)], [False] * VOCABULARY, 0)


def host_microseconds(models: tuple[str, str], batch: int, steps: int, drafts: int, text: bool) -> float:
    """Median over steps in which all requests decode."""
    engine = make_engine(
        *models,
        num_speculative_tokens=drafts,
        max_num_seqs=batch,
        max_num_batched_tokens=batch * PROMPT,
        kv_cache_memory_bytes=1 << 28,
        profile=True,
    )
    if text:
        engine.set_token_table(token_table())
    for index in range(batch):
        prompt = [(7 * index + 3 * place) % VOCABULARY for place in range(PROMPT)]
        engine.add_request(index, prompt, make_params(steps * (drafts + 1) + 2, detokenize=text))
    engine.step()
    engine.profile()
    samples = []
    for _ in range(steps):
        engine.step()
        samples.append(engine.profile()["scheduling"] / 1e3)
    return median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--output", default="")
    arguments = parser.parse_args()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        models = null_models(Path(folder))
        for drafts in (0, 3):
            for text in (False, True):
                name = f"drafts_{drafts}_{'text' if text else 'ids'}"
                figures[name] = round(host_microseconds(models, arguments.batch, arguments.steps, drafts, text), 1)
                print(f"{name:16} {figures[name]:8.1f} us  (goal: below {TARGET_MICROSECONDS:.0f})")
    if arguments.output:
        result: dict[str, Any] = {
            **provenance(),
            "batch": arguments.batch,
            "host_microseconds_per_step": figures,
            "goal_microseconds": TARGET_MICROSECONDS,
        }
        print(f"wrote {write_result(arguments.output, result)}")


if __name__ == "__main__":
    main()
