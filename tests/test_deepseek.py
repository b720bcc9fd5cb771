"""deepseek_v3 and kimi_k2 (latent attention, grouped sigmoid routing): logits of transformers, and no bit that depends
on chunks, company, speculation, preemption or prefix hits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.deepseek import DeepseekSizes
from support.engine import Request, endless, make_engine, plain_outcome, random_prompt, run_decoder, serve
from support.loading import rewrite
from support.transformers_logits import transformers_logits

from eagle31rt.errors import CheckpointError, UnsupportedError

YARN = {
    "type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
DENSE = DeepseekSizes(num_dense_layers=4)
SPECS = {
    "dense": TargetSpec(model_type="deepseek_v3", deepseek=DENSE),
    "dense-plain-query": TargetSpec(model_type="deepseek_v3", deepseek=replace(DENSE, q_lora_rank=None)),
    "dense-yarn": TargetSpec(model_type="deepseek_v3", deepseek=DENSE, rope_scaling=YARN),
    "experts": TargetSpec(model_type="deepseek_v3"),
    # Sizes that fill no panel, heads whose parts all differ, two shared experts, more groups.
    "experts-odd": TargetSpec(
        model_type="deepseek_v3",
        num_heads=3,
        hidden_size=40,
        experts=(9, 3, 20),
        rope_scaling=YARN,
        config={"head_dim": 16},
        deepseek=DeepseekSizes(40, 24, 8, 16, 32, num_shared_experts=2, groups=(3, 2)),
    ),
    "experts-bfloat16": TargetSpec(model_type="deepseek_v3", dtype="bfloat16"),
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
    np.testing.assert_allclose(logits, expected, atol=1e-4, rtol=0)


def test_chunks_change_no_bit(tmp_path: Path, spec: TargetSpec) -> None:
    write_target(tmp_path, spec, seed=3)
    whole, _ = run_decoder(tmp_path, PROMPT)
    for chunks in ([1] * 70, [1, 7, 3, 20, 1, 38], [33, 37]):
        chunked, _ = run_decoder(tmp_path, PROMPT, chunks)
        assert chunked.tobytes() == whole.tobytes()


def requests_of(count: int, shared: list[int] | None = None) -> list[Request]:
    requests = []
    for i in range(count):
        params: dict[str, Any] = endless(24, temperature=0.8 * (i % 2), seed=i)
        requests.append(Request((shared or []) + random_prompt(5 + 9 * i, seed=i), params))
    return requests


@pytest.mark.parametrize("batch_size", [1, 2, 5, 8])
def test_speculation_and_company_change_no_id(tmp_path: Path, batch_size: int) -> None:
    target = write_target(tmp_path / "target", replace(SPECS["experts"], unigram_strength=3.0), seed=1)
    draft = write_draft(tmp_path / "draft", target, DraftSpec(num_kv_heads=2), seed=2)
    requests = requests_of(batch_size)
    plain = make_engine(target.path)
    expected = [plain_outcome(plain, request).token_ids for request in requests]
    results = serve(make_engine(target.path, draft.path, num_speculative_tokens=4), requests)
    assert [result.token_ids for result in results] == expected
    assert sum(result.num_accepted_tokens for result in results) > 0


def test_kimi_k2_is_the_same_graph(tmp_path: Path) -> None:
    tiny = write_target(tmp_path / "deepseek", SPECS["experts"])
    kimi = write_target(tmp_path / "kimi", replace(SPECS["experts"], config={"model_type": "kimi_k2"}))
    logits = [run_decoder(checkpoint.directory, PROMPT)[0] for checkpoint in (tiny, kimi)]
    assert logits[0].tobytes() == logits[1].tobytes()


def test_preemption_and_prefix_hits_change_no_id(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", replace(SPECS["experts"], unigram_strength=3.0), seed=1)
    draft = write_draft(tmp_path / "draft", target, DraftSpec(num_kv_heads=2), seed=2)
    requests = requests_of(4, shared=random_prompt(20, seed=9))
    plain = make_engine(target.path, enable_prefix_caching=False)
    expected = [plain_outcome(plain, request).token_ids for request in requests]
    engine = make_engine(target.path, draft.path, num_speculative_tokens=4, page_size=4)
    preempted = [replace(request, preempt_at=(2 + i, 7)) for i, request in enumerate(requests)]
    for _ in range(2):  # the second round finds its prompts in the prefix cache
        assert [result.token_ids for result in serve(engine, preempted)] == expected
    assert engine.stats["num_preemptions"] > 4
    assert engine.stats["num_cached_pages"] > 0


def test_the_cache_holds_one_latent_entry_a_position(tmp_path: Path) -> None:
    info = make_engine(write_target(tmp_path, SPECS["dense"]).path, page_size=16).info
    bytes_per_token = 4 * (32 + 8) * 4  # layers * (latent + rope) * float32
    assert info["target_kv_bytes"] == info["num_pages"] * 16 * bytes_per_token


def test_a_checkpoint_without_the_latent_up_projection_is_refused(tmp_path: Path) -> None:
    tiny = write_target(tmp_path, SPECS["dense"])
    rewrite(tiny, {"model.layers.2.self_attn.kv_b_proj.weight": None})
    with pytest.raises(CheckpointError, match=r"lacks the tensor\(s\) \"layers.2.self_attn.kv_b_proj.weight\""):
        make_engine(tiny.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attention_bias": True}, r"\"attention_bias\" is true"),
        ({"num_key_value_heads": 2}, r"\"num_key_value_heads\" is 2"),
        ({"kv_lora_rank": 36}, r"\"kv_lora_rank\" is 36; supported are multiples of 8"),
        ({"partial_rotary_factor": 0.5}, r"partial_rotary_factor"),
    ],
)
def test_options_that_the_graph_lacks_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    tiny = write_target(tmp_path, replace(SPECS["dense"], config=change))
    with pytest.raises(UnsupportedError, match=message):
        make_engine(tiny.path)
