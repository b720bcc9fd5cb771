"""qwen3 (norms of query and key) and qwen3_moe (with experts): logits of transformers, and no bit that depends on
chunks, company or speculation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.engine import Request, endless, make_engine, plain_outcome, random_prompt, run_decoder, serve
from support.loading import rewrite
from support.transformers_logits import transformers_logits

from eagle31rt.errors import CheckpointError

SPECS = {
    "qwen3": TargetSpec(model_type="qwen3", head_dim=16),
    "qwen3-biases": TargetSpec(model_type="qwen3", attention_bias=True),
    "qwen3_moe": TargetSpec(model_type="qwen3_moe"),
    # Sizes that fill no panel, and weights that do not add up to one.
    "qwen3_moe-odd": TargetSpec(model_type="qwen3_moe", experts=(9, 4, 40), config={"norm_topk_prob": False}),
    "qwen3_moe-bfloat16": TargetSpec(model_type="qwen3_moe", experts=(8, 8, 24), dtype="bfloat16"),
}
PROMPT = random_prompt(70)


@pytest.fixture(params=SPECS, ids=SPECS)
def spec(request: pytest.FixtureRequest) -> TargetSpec:
    return SPECS[request.param]


@pytest.mark.dev
def test_logits_are_those_of_transformers(tmp_path: Path, spec: TargetSpec) -> None:
    write_target(tmp_path, spec, seed=3)
    expected = transformers_logits(tmp_path, PROMPT)
    logits, _ = run_decoder(tmp_path, PROMPT, dtype="float32")
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)  # measured: 3e-5; a wrong graph: 1e-1


def test_chunks_change_no_bit(tmp_path: Path, spec: TargetSpec) -> None:
    write_target(tmp_path, spec, seed=3)
    whole, _ = run_decoder(tmp_path, PROMPT)
    for chunks in ([1] * 70, [1, 7, 3, 20, 1, 38], [33, 37]):
        chunked, _ = run_decoder(tmp_path, PROMPT, chunks)
        assert chunked.tobytes() == whole.tobytes()


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_speculation_and_company_change_no_id(tmp_path: Path, batch_size: int) -> None:
    spec = replace(SPECS["qwen3_moe"], unigram_strength=3.0)
    target = write_target(tmp_path / "target", spec, seed=1)
    draft = write_draft(tmp_path / "draft", target, DraftSpec(), seed=2)
    requests = []
    for i in range(batch_size):
        params: dict[str, Any] = endless(24, temperature=0.8 * (i % 2), seed=i)
        requests.append(Request(random_prompt(5 + 9 * i, seed=i), params))
    plain = make_engine(target.path)
    expected = [plain_outcome(plain, request).token_ids for request in requests]
    results = serve(make_engine(target.path, draft.path, num_speculative_tokens=4), requests)
    assert [result.token_ids for result in results] == expected
    assert sum(result.num_accepted_tokens for result in results) > 0


def test_a_checkpoint_without_an_expert_is_refused(tmp_path: Path) -> None:
    tiny = write_target(tmp_path, SPECS["qwen3_moe"])
    rewrite(tiny, {"model.layers.2.mlp.experts.5.up_proj.weight": None})
    with pytest.raises(CheckpointError, match=r"lacks the tensor\(s\) \"layers.2.mlp.experts.5.up_proj.weight\""):
        make_engine(tiny.path)
