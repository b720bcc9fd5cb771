"""Tiny random checkpoints of every family of targets, as transformers writes them: its config keys, its tensor names.

    checkpoint = write_family(tmp_path / "target", FAMILIES["qwen3"], seed=1)
    write_draft(tmp_path / "draft", checkpoint)

A family is a row of FAMILIES: the keys of its config.json beside those of BASE, and its tensors by name and shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from support.checkpoints import TargetSpec, TinyCheckpoint
from support.family_tensors import (
    Config,
    Shapes,
    deepseek_tensors,
    dense,
    expert_tensors,
    fused_expert_tensors,
    gemma_tensors,
)
from support.random_weights import unigram
from support.tensors import Array, rounded, stored, write_directory

BASE: Config = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "hidden_act": "silu",
    "vocab_size": 96,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "eos_token_id": 2,
}
# How strongly targets prefer some tokens and their drafts the same ones, so that some drafts are accepted.
_UNIGRAM_STRENGTH = 3.0


@dataclass(frozen=True)
class Family:
    config: Mapping[str, Any]  # beside BASE; None removes a key
    tensors: Callable[[Config], Shapes]
    shapes: tuple[Mapping[str, Any], ...] = ({},)  # further changes, each one more checkpoint
    centred_norms: bool = False  # norms multiply by 1 + weight
    text_part: str = ""  # key of the text part's config under a multimodal wrapper
    prefix: str = "model."
    note: str = ""  # for the table in the docs

    def config_of(self, shape: int = 0) -> Config:
        merged = {**BASE, **self.config, **self.shapes[shape]}
        return {key: value for key, value in merged.items() if value is not None}


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_DEEPSEEK_YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
}

FAMILIES: dict[str, Family] = {
    "llama": Family(
        {"model_type": "llama"}, dense(), ({}, {"rope_scaling": _LLAMA3, "head_dim": 24, "num_key_value_heads": 4})
    ),
    "mistral": Family(
        {"model_type": "mistral", "sliding_window": None},
        dense(),
        ({}, {"sliding_window": 9}, {"sliding_window": 70, "num_key_value_heads": 1}),
        note="sliding window",
    ),
    "qwen2": Family(
        {"model_type": "qwen2", "use_sliding_window": False},
        dense(biases="qkv"),
        ({}, {"use_sliding_window": True, "sliding_window": 13, "max_window_layers": 2}),
        note="sliding window of the upper layers",
    ),
    "qwen3": Family(
        {"model_type": "qwen3", "use_sliding_window": False},
        dense(qk_norm=True),
        ({}, {"head_dim": 16, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
        note="norms of query and key, sliding window of the upper layers",
    ),
    "qwen3_moe": Family(
        {
            "model_type": "qwen3_moe",
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        },
        dense(expert_tensors, qk_norm=True),
        ({}, {"num_experts": 9, "num_experts_per_tok": 4, "moe_intermediate_size": 40, "norm_topk_prob": False}),
        note="qwen3 with experts",
    ),
    "gpt_oss": Family(
        {
            "model_type": "gpt_oss",
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "attention_bias": True,
            "swiglu_limit": 1.5,  # inputs of a tiny model lie on both sides
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 128,
            },
        },
        dense(fused_expert_tensors, biases="qkvo", sinks=True),
        ({}, {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 4, "swiglu_limit": 7.0}),
        note="experts with clamped swiglu (bfloat16 or MXFP4), sinks, a sliding window in every second layer",
    ),
    "deepseek_v3": Family(
        {
            "model_type": "deepseek_v3",
            "num_key_value_heads": 4,
            "head_dim": None,
            "q_lora_rank": 24,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
        },
        deepseek_tensors,
        ({}, {"num_attention_heads": 2, "num_key_value_heads": 2, "v_head_dim": 24, "rope_scaling": _DEEPSEEK_YARN}),
        note="latent attention; experts in groups, sigmoid scores, shared experts; also in FP8 blocks (`kimi_k2` is "
        "the same, `kimi_k25` its wrapper with packed int4 experts)",
    ),
    "gemma3_text": Family(
        {
            "model_type": "gemma3_text",
            "hidden_act": None,
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 16,
            "sliding_window": 9,
            "sliding_window_pattern": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        gemma_tensors,
        (
            {},
            {
                "rope_theta": None,
                "rope_local_base_freq": None,
                "rope_scaling": None,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "head_dim": 16,
                "rope_parameters": {
                    "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
                    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e5},
                },
                "tie_word_embeddings": True,
            },
        ),
        centred_norms=True,
        note="norms before and after attention and MLP, gelu, scaled embeddings, windowed layers with their own rope",
    ),
}


def _values(name: str, shape: tuple[int, ...], random: np.random.Generator, centred_norms: bool) -> Array:
    normal = random.standard_normal(shape).astype(np.float32)
    if name.endswith("norm.weight"):
        return 0.25 * normal + (0.0 if centred_norms else 1.0)
    if name.endswith("bias"):
        return 0.2 * normal
    if name.endswith(("embed_tokens.weight", "sinks")):
        return normal
    return normal * np.float32(1.5 / np.sqrt(shape[-1]))


def _family_weights(family: Family, config: Config, seed: int) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    shapes: Shapes = {"embed_tokens.weight": (config["vocab_size"], config["hidden_size"]), **family.tensors(config)}
    shapes["norm.weight"] = (config["hidden_size"],)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = shapes["embed_tokens.weight"]
    weights = {name: _values(name, shape, random, family.centred_norms) for name, shape in shapes.items()}
    if "lm_head.weight" in weights:
        weights["embed_tokens.weight"][:, 0] = 8.0
        weights["norm.weight"][0] = 0.0 if family.centred_norms else 1.0
        weights["lm_head.weight"][:, 0] = _UNIGRAM_STRENGTH * unigram(config["vocab_size"])
    return {name: rounded(values, config["torch_dtype"]) for name, values in weights.items()}


def write_family(directory: Path, family: Family, seed: int = 1, shape: int = 0) -> TinyCheckpoint:
    config = family.config_of(shape)
    weights = _family_weights(family, config, seed)
    head_prefix = family.prefix.removesuffix("model.")
    tensors = {
        (head_prefix if name == "lm_head.weight" else family.prefix) + name: stored(values, config["torch_dtype"])
        for name, values in weights.items()
    }
    written = config
    if family.text_part:
        written = {"model_type": family.text_part, "text_config": config, "torch_dtype": config["torch_dtype"]}
    write_directory(directory, written, tensors)
    spec = TargetSpec(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim"),
        vocab_size=config["vocab_size"],
        max_position_embeddings=config["max_position_embeddings"],
        tie_word_embeddings=config["tie_word_embeddings"],
        dtype=config["torch_dtype"],
        unigram_strength=0.0 if config["tie_word_embeddings"] else _UNIGRAM_STRENGTH,
    )
    return TinyCheckpoint(directory, written, weights, spec)
