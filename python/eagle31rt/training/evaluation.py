"""Acceptance of a head as the engine itself sees it: the only figure that counts."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from eagle31rt.llm import LLM
from eagle31rt.outputs import RequestMetrics
from eagle31rt.sampling_params import SamplingParams
from eagle31rt.training.export import export_head
from eagle31rt.training.files import writing
from eagle31rt.training.head import DraftHead
from eagle31rt.training.target import TargetSizes

MAX_NEW_TOKENS = 96
_FOLDER = ".evaluation-"


@dataclass(frozen=True)
class Acceptance:
    length: float  # mean tokens a verification, bonus included
    per_position: list[float]  # unconditional
    num_drafts: int

    @staticmethod
    def of(metrics: RequestMetrics) -> Acceptance:
        rates = [round(rate, 4) for rate in metrics.acceptance_per_position]
        return Acceptance(round(metrics.acceptance_length, 4), rates, metrics.num_drafts)


def measure_acceptance(
    target: Path, draft: Path, prompts: Sequence[list[int]], num_speculative_tokens: int, threads: int, device: str
) -> Acceptance:
    """Greedy answers of at most MAX_NEW_TOKENS to token-id prompts."""
    llm = LLM(
        target,
        skip_tokenizer_init=True,
        speculative_config={"method": "eagle3", "model": draft, "num_speculative_tokens": num_speculative_tokens},
        max_num_seqs=8,
        num_threads=threads or None,
        device=device,
    )
    params = SamplingParams(temperature=0.0, max_tokens=MAX_NEW_TOKENS)
    outputs = llm.generate(list(prompts), params, use_tqdm=False)
    return Acceptance.of(RequestMetrics.total(output.metrics for output in outputs))


def evaluate_head(
    head: DraftHead,
    kept: torch.Tensor,
    sizes: TargetSizes,
    target: Path,
    work: Path,
    prompts: Sequence[list[int]],
    num_speculative_tokens: int,
    threads: int,
    device: str,
) -> Acceptance:
    """Exports the head to a folder of its own, loads it as a user would, and measures."""
    for left in work.glob(_FOLDER + "*"):  # by a killed run
        shutil.rmtree(left, ignore_errors=True)
    with writing(work):
        folder = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=work))
    try:
        export_head(folder, head, kept, sizes)
        return measure_acceptance(target, folder, prompts, num_speculative_tokens, threads, device)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
