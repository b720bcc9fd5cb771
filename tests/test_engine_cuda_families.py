"""Families of targets and graphs of drafts on device cuda: what the CPU computes, with speculation and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TinyCheckpoint, write_draft, write_target
from support.engine import Request, Result, endless, make_engine, random_prompt, serve
from support.families import FAMILIES, write_family

pytestmark = pytest.mark.cuda
MAX_TOKENS = 16
# One past the windows of the families; logits in float32 differ too little from the CPU's to change an id.
REQUESTS = [
    Request(
        random_prompt(length, seed=length), endless(MAX_TOKENS, temperature=temperature, seed=length, num_logprobs=1)
    )
    for length, temperature in ((21, 0.0), (4, 0.8), (12, 1.2))
]
DRAWN = {"rejection_sample_method": "standard", "draft_sample_method": "probabilistic"}
# Beside the llama graph: latent attention; norms of query and key; layers.
DRAFTS = {
    "deepseek": DraftSpec(graph="deepseek"),
    "qwen3": DraftSpec(graph="qwen3"),
    "two layers": DraftSpec(num_layers=2),
}


class Pair:
    def __init__(self, folder: Path, target: TinyCheckpoint, draft: DraftSpec, dtype: str) -> None:
        self.paths = (target.directory, write_draft(folder / "draft", target, draft, seed=8).directory)
        self.options = {"dtype": dtype, "kv_cache_dtype": dtype, "max_model_len": 64, "max_num_seqs": len(REQUESTS)}

    def plain(self, device: str) -> list[Result]:
        return serve(make_engine(self.paths[0], device=device, **self.options), REQUESTS, simple=True)

    def speculative(self, device: str, **changes: Any) -> list[Result]:
        engine = make_engine(*self.paths, device=device, num_speculative_tokens=3, **self.options, **changes)
        return serve(engine, REQUESTS)


def some_accepted(results: list[Result]) -> bool:
    drafted, accepted = (sum(getattr(r, n) for r in results) for n in ("num_draft_tokens", "num_accepted_tokens"))
    return 0 < accepted < drafted


def ids_and_logprobs(results: list[Result]) -> list[Any]:
    return [(result.outcome, result.logprobs) for result in results]


def logprobs(results: list[Result]) -> np.ndarray:
    return np.array([[logprob for _, logprob, *_ in result.logprobs] for result in results])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3", "gemma3_text"])
def test_targets(tmp_path: Path, family: str, dtype: str) -> None:
    pair = Pair(tmp_path, write_family(tmp_path / "target", FAMILIES[family], seed=7), DraftSpec(), dtype)
    plain, speculative = pair.plain("cuda"), pair.speculative("cuda")
    assert ids_and_logprobs(speculative) == ids_and_logprobs(plain)
    assert some_accepted(speculative)
    if dtype == "float32":
        expected = pair.plain("cpu")
        assert [result.outcome for result in plain] == [result.outcome for result in expected]
        np.testing.assert_allclose(logprobs(plain), logprobs(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("draft", list(DRAFTS))
def test_drafts(tmp_path: Path, draft: str) -> None:
    pair = Pair(tmp_path, write_target(tmp_path / "target", seed=7), DRAFTS[draft], "float32")
    assert ids_and_logprobs(pair.speculative("cuda")) == ids_and_logprobs(pair.plain("cuda"))
    # Ids that depend on every probability of the draft.
    drawn, expected = pair.speculative("cuda", **DRAWN), pair.speculative("cpu", **DRAWN)
    assert [result.outcome for result in drawn] == [result.outcome for result in expected]
    assert some_accepted(drawn)
