"""Drafts beyond one llama layer (qwen3 graph, several layers, latent attention) in the engine: they change no id.

Their logits against the oracle, chunks and fed-back states: tests/test_draft_oracle.py.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import (
    DraftSpec,
    TargetSpec,
    TinyCheckpoint,
    draft_config,
    target_config,
    write_draft,
    write_target,
)
from support.deepseek import DeepseekSizes
from support.engine import Request, make_engine, plain_outcome, random_prompt, serve
from support.loading import rewrite

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, UnsupportedError

SWITCHES = {"fc_norm": True, "norm_output": True}
DRAFTS = {
    "qwen3": DraftSpec(graph="qwen3", num_kv_heads=1),
    "three-layers": DraftSpec(num_layers=3, num_kv_heads=2, norm_before_residual=True),
    "mla": DraftSpec(graph="deepseek", **SWITCHES),
    "mla-two-layers": DraftSpec(graph="deepseek", num_layers=2, num_captured=4),
    "mla-one-state": DraftSpec(graph="deepseek", num_captured=1, **SWITCHES),
}
TARGETS = {
    "llama": TargetSpec(unigram_strength=6.0),
    "deepseek_v3": TargetSpec(model_type="deepseek_v3", unigram_strength=6.0),
}
MAX_TOKENS = 16


def parse(spec: DraftSpec, target: TargetSpec | None = None, **changes: Any) -> dict[str, Any]:
    """`...` removes a key."""
    target = target or TargetSpec(num_layers=32)
    config = {key: value for key, value in {**draft_config(spec, target), **changes}.items() if value is not ...}
    return _testing.parse_draft_config(json.dumps(config).encode(), json.dumps(target_config(target)).encode())


@pytest.mark.parametrize(
    ("graph", "architecture", "model_type"),
    [
        ("llama", "LlamaForCausalLMEagle3", "llama"),
        ("llama", "LlamaForCausalLMEagle3Deep", ...),
        ("llama", "Eagle3Qwen3vlForCausalLM", "llama"),
        ("llama", ..., "mistral"),
        ("qwen3", "Eagle3Qwen3ForCausalLM", "llama"),
        ("qwen3", "Eagle3DraftModel", "qwen3"),
        ("deepseek", "Eagle3DeepseekV3ForCausalLM", "llama"),
        ("deepseek", "DeepSeekForCausalLMEagle3", "deepseek_v3"),
        ("deepseek", ..., ...),
        ("deepseek", ..., "kimi_k2"),
        ("deepseek", ..., "deepseek_v2"),
    ],
)
def test_which_graph(graph: str, architecture: Any, model_type: Any) -> None:
    architectures = ... if architecture is ... else [architecture]
    config = parse(DraftSpec(graph=graph, num_layers=2), architectures=architectures, model_type=model_type)
    assert ("qk_norm" in config, "mla" in config) == (graph == "qwen3", graph == "deepseek")
    assert config["num_layers"] == 2


def test_sizes_of_kimi_k2() -> None:
    """eagle31_spec 2.5; experts in the file are the target's, and a draft has none."""
    target = TargetSpec(num_layers=61, hidden_size=7168, num_heads=64, vocab_size=163840)
    latent = DeepseekSizes(q_lora_rank=1536, kv_lora_rank=512, nope=128, rope=64, value=128)
    rope = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}  # fmt: skip
    spec = DraftSpec(
        graph="deepseek", latent=latent, rope_scaling=rope, rope_theta=50000.0, id_convention="layer_output"
    )
    config = parse(spec, target, n_routed_experts=384, moe_intermediate_size=2048)
    assert config["mla"] == {
        "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "scale": pytest.approx(0.144680, abs=1e-6), "norm_epsilon": pytest.approx(1e-5),
    }  # fmt: skip
    assert (config["head_dim"], config["num_kv_heads"], config["rope"]["rotary_dim"]) == (192, 64, 64)
    assert config["rope"]["interleaved"]
    assert config["capture_layers"] == [2, 30, 58]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mla_use_nope": True}, '"mla_use_nope" is true'),
        ({"attention_bias": True}, '"attention_bias" is true'),
        ({"num_key_value_heads": 2}, '"num_key_value_heads" is 2'),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"]}, '_lora_rank" is'),
    ],
)
def test_options_that_a_latent_attention_lacks(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        parse(DraftSpec(graph="deepseek"), **change)


def write_pair(tmp_path: Path, target: str, draft: DraftSpec) -> tuple[TinyCheckpoint, TinyCheckpoint]:
    written = write_target(tmp_path / "target", TARGETS[target], seed=1)
    return written, write_draft(tmp_path / "draft", written, draft, seed=2)


def requests_of(count: int) -> list[Request]:
    """Of several lengths, past a split of attention (64), greedy and sampled."""
    return [
        Request(
            random_prompt(length, seed=length),
            {"max_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": 0.8 * (i % 2), "seed": i},
        )
        for i, length in enumerate((9, 70, 1, 64, 20, 5, 130, 33)[:count])
    ]


@pytest.mark.parametrize("decode_state", ["host", "device"])
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("name", DRAFTS)
def test_speculation_changes_no_id(tmp_path: Path, name: str, target_name: str, decode_state: str) -> None:
    target, draft = write_pair(tmp_path, target_name, DRAFTS[name])
    plain = make_engine(target.path)
    expected = [plain_outcome(plain, request).outcome for request in requests_of(8)]
    for batch in range(1, 9):
        engine = make_engine(
            target.path, draft.path, num_speculative_tokens=3, max_num_seqs=batch, decode_state=decode_state
        )
        results = serve(engine, requests_of(batch))
        assert [result.outcome for result in results] == expected[:batch], f"at batch size {batch}"
    assert sum(result.num_accepted_tokens for result in results) > 0


@pytest.mark.parametrize("name", ["three-layers", "mla-two-layers"])
def test_preemption_and_prefix_hits_change_no_id(tmp_path: Path, name: str) -> None:
    """Pages are copied for all layers of the draft."""
    target, draft = write_pair(tmp_path, "deepseek_v3", DRAFTS[name])
    shared = random_prompt(20, seed=9)
    requests = [replace(request, prompt=shared + request.prompt) for request in requests_of(4)]
    plain = make_engine(target.path, enable_prefix_caching=False)
    alone = make_engine(target.path, draft.path, num_speculative_tokens=4, enable_prefix_caching=False)
    expected = [plain_outcome(plain, request).token_ids for request in requests]
    accepted = [serve(alone, [request])[0].num_accepted_tokens for request in requests]
    engine = make_engine(target.path, draft.path, num_speculative_tokens=4, page_size=4)
    assert [result.token_ids for result in serve(engine, requests)] == expected
    results = serve(engine, requests)  # finds its prompts in the prefix cache
    assert [result.token_ids for result in results] == expected
    assert [result.num_accepted_tokens for result in results] == accepted, "the draft has lost entries"
    assert engine.stats["num_cached_pages"] > 0
    preempted = [replace(request, preempt_at=(2 + i, 7)) for i, request in enumerate(requests)]
    assert [result.token_ids for result in serve(engine, preempted)] == expected
    assert engine.stats["num_preemptions"] > 4


@pytest.mark.parametrize(
    ("name", "bytes_per_token"),
    [
        ("qwen3", 2 * 1 * 8 * 4),  # key and value, heads, head_dim, float32
        ("three-layers", 3 * 2 * 2 * 8 * 4),
        ("mla-two-layers", 2 * (32 + 8) * 4),  # layers, latent and rope key
    ],
)
def test_memory_of_the_cache(tmp_path: Path, name: str, bytes_per_token: int) -> None:
    target, draft = write_pair(tmp_path, "llama", DRAFTS[name])
    info = make_engine(target.path, draft.path, num_speculative_tokens=3, page_size=16).info
    assert info["draft_kv_bytes"] == info["num_pages"] * 16 * bytes_per_token


def load(target: TinyCheckpoint, draft: TinyCheckpoint) -> None:
    _testing.load_draft_weights(draft.path, target.path)


ONES = np.ones(32)


def test_tensors_must_be_those_of_the_graph(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path, "llama", DRAFTS["three-layers"])
    rewrite(draft, {"layers.1.hidden_norm.weight": ONES})
    with pytest.raises(UnsupportedError, match=r"second input norm of layer 1; engines disagree"):
        load(target, draft)
    rewrite(draft, {"layers.1.hidden_norm.weight": None}, {"num_hidden_layers": 2})
    with pytest.raises(CheckpointError, match=r"layer 2 counted from 0, but num_hidden_layers is 2"):
        load(target, draft)
    rewrite(draft, {}, {"num_hidden_layers": 4})
    with pytest.raises(CheckpointError, match=r"lacks .*\"layers.3."):
        load(target, draft)


@pytest.mark.parametrize(
    ("name", "message"),
    [("qwen3", 'norms of query and key.*set model_type to "qwen3"'), ("mla", 'set model_type to "deepseek_v3"')],
)
def test_config_of_another_graph(tmp_path: Path, name: str, message: str) -> None:
    target, draft = write_pair(tmp_path, "llama", DRAFTS[name])
    plain = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "num_key_value_heads": 4}
    latent = dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim"))
    rewrite(draft, {}, plain | latent)
    with pytest.raises(CheckpointError, match=message):
        load(target, draft)


def test_an_embedding_in_every_layer_is_refused(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path, "llama", DRAFTS["three-layers"])
    rewrite(draft, {}, {"eagle_config": {"next_layer_regular": False}})
    with pytest.raises(UnsupportedError, match="next_layer_regular"):
        load(target, draft)
