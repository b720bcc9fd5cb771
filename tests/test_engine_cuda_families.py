"""Families of targets and graphs of drafts on device cuda: the ids of the CPU, with speculation and without."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.checkpoints import DraftSpec, write_draft
from support.engine import Request, Result, endless, make_engine, random_prompt, serve
from support.families import FAMILIES, write_family

pytestmark = pytest.mark.cuda
MAX_TOKENS = 16
# One past the windows of the families; logits in float32 differ too little from the CPU's to change an id.
REQUESTS = [
    Request(random_prompt(length, seed=length), endless(MAX_TOKENS, temperature=temperature, seed=length))
    for length, temperature in ((21, 0.0), (4, 0.8), (12, 1.2))
]
# Beside the llama graph: latent attention; norms of query and key; layers.
DRAFTS = {
    "llama": DraftSpec(),
    "deepseek": DraftSpec(graph="deepseek"),
    "qwen3": DraftSpec(graph="qwen3"),
    "two layers": DraftSpec(num_layers=2),
}


def check(folder: Path, family: str, draft: DraftSpec, dtype: str) -> None:
    target = write_family(folder / "target", FAMILIES[family], seed=7)
    head = write_draft(folder / "draft", target, draft, seed=8)

    def run(device: str, num_drafts: int) -> list[Result]:
        paths = (target.directory, head.directory)[: 1 + min(num_drafts, 1)]
        options = {"dtype": dtype, "kv_cache_dtype": dtype, "max_model_len": 64, "max_num_seqs": len(REQUESTS)}
        engine = make_engine(*paths, device=device, num_speculative_tokens=num_drafts, **options)
        return serve(engine, REQUESTS, simple=num_drafts == 0)

    plain, speculative = run("cuda", 0), run("cuda", 3)
    assert [result.outcome for result in speculative] == [result.outcome for result in plain]
    drafted, accepted = (sum(getattr(r, n) for r in speculative) for n in ("num_draft_tokens", "num_accepted_tokens"))
    assert 0 < accepted < drafted
    if dtype == "float32":
        assert plain == run("cpu", 0)
        assert speculative == run("cpu", 3)  # the drafts, too


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3", "gemma3_text"])
def test_targets(tmp_path: Path, family: str, dtype: str) -> None:
    check(tmp_path, family, DRAFTS["llama"], dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("draft", ["deepseek", "qwen3", "two layers"])
def test_drafts(tmp_path: Path, draft: str, dtype: str) -> None:
    check(tmp_path, "llama", DRAFTS[draft], dtype)
