"""Memory plans from configs and headers: the exact published shapes of Kimi K2.6 and of gpt-oss-120b
with NVIDIA's head, as sparse files, against numbers worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.deepseek import DeepseekSizes
from support.draft_formats import TARGET as DRAFTS_TARGET
from support.draft_formats import SourceDraft, write_gguf
from support.engine import make_engine
from support.published import (
    GPT_OSS,
    KIMI_DRAFT,
    KIMI_TEXT,
    NVIDIA_DRAFT,
    gpt_oss_120b,
    kimi_draft,
    kimi_k26,
    nvidia_draft,
    write_sparse,
)

from eagle31rt.errors import CheckpointError, InvalidArgumentError
from eagle31rt.memory_plan import SIZES, PlanSettings, plan_memory

BF16, F32 = 2, 4
VISION_BYTES = 1152 * 3 * 14 * 14 * BF16


def _check(found: dict[str, int], whole: dict[str, int], divided: dict[str, int], size: int) -> None:
    expected = {kind: whole.get(kind, 0) + divided.get(kind, 0) // size for kind in whole.keys() | divided.keys()}
    assert found == expected, f"at tensor parallel size {size}"


def test_kimi_k26_with_its_latent_draft(tmp_path: Path) -> None:
    wrapper = {"model_type": "kimi_k25", "text_config": KIMI_TEXT, "vision_config": {"model_type": "kimi_k25_vision"}}
    target_bytes = write_sparse(tmp_path / "target", wrapper, kimi_k26(), shards=64)
    draft_bytes = write_sparse(tmp_path / "draft", KIMI_DRAFT, kimi_draft())
    settings = PlanSettings(num_speculative_tokens=3)
    plan = plan_memory(tmp_path / "target", tmp_path / "draft", settings)
    assert plan["draft_file_bytes"] == draft_bytes
    assert plan["target_file_bytes"] == target_bytes - VISION_BYTES == 594_205_904_896
    assert plan["max_model_len"] == 262144 and plan["dtype"] == "bfloat16"
    for size, rank in zip(SIZES, plan["ranks"], strict=True):
        _check(
            rank["target_weights"],
            {
                "attention": 61 * 15_138_816 * BF16,  # q_a 1536 x 7168 and kv_a 576 x 7168
                "router": 60 * (384 * 7168 * BF16 + 384 * F32),
                "norms": (61 * (2 * 7168 + 1536 + 512) + 7168) * F32,
            },
            {
                "embedding": 163840 * 7168 * BF16,
                "head": 163840 * 7168 * BF16,
                "attention": 61 * 85_983_232 * BF16,  # q_b 12288 x 1536, kv_b 16384 x 512, o 7168 x 8192
                "mlp": 396_361_728 * BF16,  # 3 x 7168 x 18432
                "shared_experts": 60 * 44_040_192 * BF16,  # 3 x 7168 x 2048
                "routed_experts": 60 * 384 * 44_040_192 * 9 // 16,  # four bits, and two bytes for each 32 values
            },
            size,
        )
        _check(
            rank["draft_weights"],
            {
                "fusion": 7168 * 21504 * BF16,
                "attention": 2112 * 14336 * BF16,  # q_a and kv_a of the doubled width
                "norms": (7 * 7168 + 1536 + 512) * F32,
            },
            {
                "embedding": 163840 * 7168 * BF16,
                "head": 163840 * 7168 * BF16,
                "attention": 85_983_232 * BF16,
                "mlp": 396_361_728 * BF16,
            },
            size,
        )
        # One latent entry of 512 + 64 a layer, on every device.
        assert rank["target_kv_bytes_per_token"] == 61 * 576 * BF16 == 70272
        assert rank["draft_kv_bytes_per_token"] == 576 * BF16
        assert rank["kv_cache_bytes"] == 64 * 262144 * 62 * 576 * BF16
    first = plan["ranks"][0]
    plain = 1_026_407_202_816 - 60 * 384 * 44_040_192
    quantised = 60 * 384 * 24_772_608  # bytes: 44_040_192 x (1 / 2 + 2 / 32)
    assert first["target_weight_bytes"] == plain * BF16 + quantised + (60 * 384 + 1_006_592) * F32
    rows = 512 + 64 * 4
    # 3 x 7168, 3 x 18432, 1536 + 576 + 64 x (192 + 576 + 512 + 128), 384 + 8 x (4 + 3 x 2048 + 7168)
    # and of the draft: 3 x 7168 captured, 5 x 7168, 3 x 18432 and its attention
    assert first["activation_bytes"] == rows * (275_936 + 204_864) * F32
    assert first["logits_bytes"] == 64 * 4 * 163840 * F32
    parts = ("target_weight_bytes", "draft_weight_bytes", "kv_cache_bytes", "activation_bytes", "logits_bytes")
    assert first["total_bytes"] == sum(first[part] for part in parts)


def test_gpt_oss_120b_with_the_head_of_nvidia(tmp_path: Path) -> None:
    target_bytes = write_sparse(tmp_path / "target", GPT_OSS, gpt_oss_120b(), shards=15)
    draft_bytes = write_sparse(tmp_path / "draft", NVIDIA_DRAFT, nvidia_draft())
    settings = PlanSettings(max_model_len=65537, max_num_seqs=32)
    plan = plan_memory(tmp_path / "target", tmp_path / "draft", settings)
    assert plan["target_file_bytes"] == target_bytes and plan["draft_file_bytes"] == draft_bytes
    for size, rank in zip(SIZES, plan["ranks"], strict=True):
        _check(
            rank["target_weights"],
            {
                "attention": 36 * 2880 * F32,  # bias of o
                "routed_experts": 36 * 128 * 2880 * F32,  # bias of down
                "router": 36 * (128 * 2880 * BF16 + 128 * F32),
                "norms": (36 * 2 + 1) * 2880 * F32,
            },
            {
                "embedding": 201088 * 2880 * BF16,
                "head": 201088 * 2880 * BF16,
                # q and o 4096 x 2880, k and v 512 x 2880; biases of q, k, v and sinks
                "attention": 36 * (26_542_080 * BF16 + (4096 + 2 * 512 + 64) * F32),
                # 3 x 128 x 2880 x 2880 values of four bits, and a byte for each 32 of them
                "routed_experts": 36 * (1_692_057_600 + 128 * 5760 * F32),
            },
            size,
        )
        _check(
            rank["draft_weights"],
            {"fusion": 2880 * 8640 * BF16, "norms": 4 * 2880 * F32},
            {
                "head": 201088 * 2880 * BF16,
                "attention": (4096 * 5760 + 2 * 512 * 5760 + 2880 * 4096) * BF16,
                "mlp": 3 * 2880 * 17280 * BF16,
            },
            size,
        )
        kv_heads = 8 // size
        assert rank["target_kv_bytes_per_token"] == 36 * 2 * kv_heads * 64 * BF16
        assert rank["draft_kv_bytes_per_token"] == 2 * kv_heads * 64 * BF16
        assert rank["kv_cache_bytes"] == 32 * 65552 * 37 * 2 * kv_heads * 64 * BF16  # 65537 in pages of 16


LATENT = DraftSpec(graph="deepseek", num_layers=2, intermediate_size=64, latent=DeepseekSizes(32, 32, 32, 32, 32))
LLAMA = DraftSpec(intermediate_size=64, draft_vocab_size=64, fc_norm=True)


@pytest.mark.parametrize(("experts", "draft_spec"), [(False, LLAMA), (True, LLAMA), (False, LATENT)])
def test_one_device_is_what_the_engine_takes(tmp_path: Path, experts: bool, draft_spec: DraftSpec) -> None:
    """Rows are multiples of 32, so that packing adds none."""
    spec = TargetSpec(
        model_type="qwen3_moe" if experts else "llama",
        hidden_size=64,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        experts=(32, 2, 32),
    )
    target = write_target(tmp_path / "target", spec)
    draft = write_draft(tmp_path / "draft", target, draft_spec)
    settings = PlanSettings(max_num_seqs=2, max_model_len=50)
    plan = plan_memory(target.directory, draft.directory, settings, [1])
    engine = make_engine(target.path, draft.path, num_speculative_tokens=3, max_num_seqs=2, max_model_len=50)
    rank, info = plan["ranks"][0], engine.info
    assert rank["target_weight_bytes"] == info["weight_bytes"]
    assert rank["kv_cache_bytes"] == info["kv_cache_bytes"]
    assert rank["logits_bytes"] == info["logits_bytes"]
    assert rank["draft_weight_bytes"] == info["draft_weight_bytes"]


def test_kv_heads_are_divided_down_to_one(tmp_path: Path) -> None:
    target = write_target(tmp_path, TargetSpec(num_heads=8, num_kv_heads=2, head_dim=8))
    ranks = plan_memory(target.directory, None, PlanSettings())["ranks"]
    assert [rank["target_kv_bytes_per_token"] for rank in ranks] == [4 * 2 * heads * 8 * F32 for heads in (2, 1, 1, 1)]
    projections = 4 * 32 * 8 * F32  # of one head, in all layers
    assert [rank["target_weights"]["attention"] for rank in ranks] == [
        projections * heads for heads in (8 + 8 + 2 + 2, 4 + 4 + 1 + 1, 2 + 2 + 1 + 1, 1 + 1 + 1 + 1)
    ]


@pytest.mark.parametrize(
    ("spec", "size", "message"),
    [
        ({}, 8, r"tensor_parallel_size is 8, which does not divide num_attention_heads \(4\)"),
        ({"vocab_size": 97}, 2, r"does not divide vocab_size \(97\)"),
        ({"num_heads": 12, "num_kv_heads": 3, "head_dim": 8}, 2, r"neither divides num_key_value_heads \(3\)"),
        ({}, 0, r"tensor_parallel_size is 0"),
    ],
)
def test_sizes_that_cannot_be_divided_are_refused(
    tmp_path: Path, spec: dict[str, Any], size: int, message: str
) -> None:
    target = write_target(tmp_path, TargetSpec(**spec))
    with pytest.raises(InvalidArgumentError, match=message):
        plan_memory(target.directory, None, PlanSettings(), [size])


@pytest.mark.parametrize("field", ["max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size"])
def test_settings_out_of_range_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field} is 0"):
        plan_memory(tmp_path, None, PlanSettings(**{field: 0}))


def test_sizes_that_do_not_divide_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    """Of 9 or 28 heads, say. A draft may have other heads than its target."""
    target = write_target(tmp_path / "target", TargetSpec(num_layers=8, num_heads=8, num_kv_heads=2, head_dim=8))
    draft = write_draft(tmp_path / "draft", target, DraftSpec(num_heads=6, num_kv_heads=2, head_dim=8))
    plan = plan_memory(target.directory, draft.directory, PlanSettings())
    assert [rank["tensor_parallel_size"] for rank in plan["ranks"]] == [1, 2]
    why = "tensor_parallel_size is {}, which does not divide num_attention_heads of the draft (6)"
    assert plan["left_out"] == {size: why.format(size) for size in ("4", "8")}
    assert plan["ranks"] == plan_memory(target.directory, draft.directory, PlanSettings(), [1, 2])["ranks"]
    shown = _command(target.path, "--draft", draft.path)
    assert shown.returncode == 0 and "TP 8 is left out" in shown.stdout
    assert _command(target.path, "--draft", draft.path, "--tensor-parallel-size", "4").returncode == 2


@pytest.mark.parametrize("field", ["max_model_len", "max_num_seqs", "max_num_batched_tokens"])
def test_settings_beyond_an_int32_are_refused(tmp_path: Path, field: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field} is 2147483648; give 1 to 2147483647"):
        plan_memory(tmp_path, None, PlanSettings(**{field: 2**31}))


def test_a_plan_of_what_loading_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GGUF files and hub ids, as of check and LLM."""
    monkeypatch.setenv("EAGLE31RT_CACHE", str(tmp_path / "cache"))
    target = write_target(tmp_path / "target", DRAFTS_TARGET, seed=1)
    draft = write_gguf(tmp_path / "gguf", SourceDraft(target), absolute=True)
    shown = _command(target.path, "--draft", str(draft), "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["draft_file_bytes"] > 0
    absent = _command("owner/never-seen")
    assert absent.returncode == 2 and "not in the local cache" in absent.stderr


def _command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eagle31rt.cli", "plan", *arguments], capture_output=True, text=True, timeout=60
    )


def test_the_command(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", TargetSpec(num_heads=8, num_kv_heads=2, head_dim=8))
    draft = write_draft(tmp_path / "draft", target, DraftSpec(head_dim=8))
    shown = _command(target.path, "--draft", draft.path, "--max-num-seqs", "4")
    assert shown.returncode == 0, shown.stderr
    assert "TP 8" in shown.stdout and "draft attention" in shown.stdout
    plan = json.loads(_command(target.path, "--json", "--tensor-parallel-size", "2", "--max-model-len", "64").stdout)
    assert plan == plan_memory(target.directory, None, PlanSettings(max_model_len=64), [2])
    failed = _command(str(tmp_path))
    assert failed.returncode == 2 and "config.json" in failed.stderr


def test_headers_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    shapes = gpt_oss_120b()
    shapes["model.layers.7.mlp.router.weight"] = ("BF16", (64, 2880))
    write_sparse(tmp_path / "target", GPT_OSS, shapes)
    with pytest.raises(CheckpointError, match=r"layers.7.mlp.router.weight\" has shape \[64, 2880\]"):
        plan_memory(tmp_path / "target", None, PlanSettings())
