"""A tiny target that mostly follows a fixed successor of each token, and a draft that mostly knows it.

Random drafts agree with random targets about once in a vocabulary, which would leave acceptance untested. Here the
target's head prefers successor[t] after token t, random layers add context, and temperature picks others now and then.
The draft's attention copies the embedding of its own token, and its head knows the successor of most tokens, is wrong
about some, and cannot name a few at all (they are outside its vocabulary). So acceptance is around a half, with every
run length from 0 to K.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from support.checkpoints import (
    DraftSpec,
    TargetSpec,
    TinyCheckpoint,
    draft_config,
    draft_name,
    draft_weights,
    target_config,
    target_weights,
)
from support.tensors import Array, rounded, stored, write_directory

TARGET = TargetSpec(num_layers=4, hidden_size=64, intermediate_size=64, num_heads=4, num_kv_heads=2, vocab_size=96)
DRAFT = DraftSpec(
    num_kv_heads=4, num_heads=4, draft_vocab_size=88, intermediate_size=32, fc_norm=True, norm_output=True
)
EOS = 2
_CONTEXT = 0.35  # weight of what the random layers add to the residual stream
_STRENGTH = 2.0  # slope of the heads: at temperature 1 the best token has a probability of 0.3 to 0.95
_SHARPNESS = 2.0  # of the draft's attention to its own token
_FEATURE = 5.0  # weight of the captured states, so that wrong ones show: in the residual stream and in the values
_WRONG = 0.1  # share of tokens whose successor the draft has wrong


def successors(vocab_size: int) -> Array:
    """successor[t]: one cycle through the whole vocabulary, so that greedy text does not get stuck."""
    order = np.random.default_rng(99).permutation(vocab_size)
    successor = np.empty(vocab_size, np.int64)
    successor[order] = np.roll(order, -1)
    return successor


def _successor_head(embedding: Array) -> Array:
    """Row successor[t] points along the embedding of t."""
    head = np.empty_like(embedding)
    norms = np.linalg.norm(embedding, axis=1, keepdims=True)
    head[successors(len(embedding))] = embedding / norms * _STRENGTH
    return head


def write_successor_target(directory: Path, spec: TargetSpec = TARGET, seed: int = 0) -> TinyCheckpoint:
    weights = target_weights(spec, seed)
    for name in weights:
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            weights[name] *= _CONTEXT
    weights["norm.weight"][:] = 1.0
    weights["lm_head.weight"] = _successor_head(weights["embed_tokens.weight"])
    weights = {name: rounded(values, spec.dtype) for name, values in weights.items()}
    tensors = {
        (name if name == "lm_head.weight" else spec.prefix + name): stored(values, spec.dtype)
        for name, values in weights.items()
    }
    config = target_config(spec)
    write_directory(directory, config, tensors)
    return TinyCheckpoint(directory, config, weights, spec)


def write_successor_draft(
    directory: Path, target: TinyCheckpoint, spec: DraftSpec = DRAFT, seed: int = 1, wrong: float = _WRONG
) -> TinyCheckpoint:
    assert isinstance(target.spec, TargetSpec)
    weights = draft_weights(spec, target.spec, seed)
    hidden = target.spec.hidden_size
    copy_token = np.concatenate([np.eye(hidden), np.zeros((hidden, hidden))], axis=1).astype(np.float32)
    copy_with_feature = weights["layers.0.self_attn.v_proj.weight"] * 0.4
    copy_with_feature[:, :hidden] = np.eye(hidden)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        weights[f"layers.0.{name}.weight"][:] = 1.0
    weights["norm.weight"][:] = 1.0
    weights["fc.weight"] *= _FEATURE
    weights["layers.0.self_attn.q_proj.weight"] = copy_token * _SHARPNESS
    weights["layers.0.self_attn.k_proj.weight"] = copy_token * _SHARPNESS
    weights["layers.0.self_attn.v_proj.weight"] = copy_with_feature
    weights["layers.0.self_attn.o_proj.weight"] = 4.0 * np.eye(hidden, dtype=np.float32)
    if spec.own_embedding:  # an embedding that only this v_proj undoes
        weights["embed_tokens.weight"] = -target.weights["embed_tokens.weight"]
        weights["layers.0.self_attn.v_proj.weight"][:, :hidden] *= -1
    kept = np.arange(spec.draft_vocab_size or target.spec.vocab_size) + weights.get("d2t", 0)
    head = _successor_head(target.weights["embed_tokens.weight"])[kept]
    random = np.random.default_rng(seed)
    moved = random.permutation(len(head))[: int(wrong * len(head))]
    head[moved] = head[np.roll(moved, 1)]
    weights["lm_head.weight"] = head
    dtype = spec.dtype or target.spec.dtype
    weights = {name: rounded(values, dtype) for name, values in weights.items()}
    config = draft_config(spec, target.spec)
    tensors = {draft_name(name, spec.spelling): stored(values, dtype) for name, values in weights.items()}
    write_directory(directory, config, tensors)
    return TinyCheckpoint(directory, config, weights, spec)


def write_overflowing_target(directory: Path) -> Path:
    """Finite weights whose logits overflow: +inf or -inf for all ids, by the signs of the position's features."""
    spec = replace(TARGET, dtype="float32")
    weights = target_weights(spec, 0)
    weights["norm.weight"][:] = 1e38
    signs = np.where(np.arange(spec.hidden_size) % 2 == 0, 1e38, -1e38).astype(np.float32)
    weights["lm_head.weight"] = signs * np.ones((spec.vocab_size, 1), np.float32)
    tensors = {
        (name if name == "lm_head.weight" else spec.prefix + name): stored(values, spec.dtype)
        for name, values in weights.items()
    }
    write_directory(directory, target_config(spec), tensors)
    return directory
