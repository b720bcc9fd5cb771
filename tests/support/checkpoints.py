"""Tiny random targets and EAGLE-3 / EAGLE-3.1 drafts, written as Hugging Face directories.

    target = write_target(tmp_path / "target", TargetSpec(num_layers=4), seed=1)
    draft = write_draft(tmp_path / "draft", target, DraftSpec(fc_norm=True, norm_output=True), seed=2)

Both return a TinyCheckpoint: the directory, config.json as a dict, and every weight as a float32 array under its
canonical name (`layers.0.self_attn.q_proj.weight`, no `model.` or `midlayer.`), already rounded to the dtype of the
file. A numpy model that reads `weights` therefore sees exactly what the runtime loads. `d2t` is int64, `t2d` bool.

By default random heads agree with nothing. `unigram_strength` > 0 makes the target prefer some tokens and its draft the
same ones (through column 0 of the embedding, of fc and of the heads), so that drafts are accepted now and then. It
needs an untied target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from support.deepseek import DeepseekSizes, deepseek_config, deepseek_layer, latent_config, with_latent_attention
from support.random_weights import RandomWeights, random_experts, random_layer, unigram
from support.tensors import Array, rounded, stored, write_directory


@dataclass(frozen=True)
class TargetSpec:
    """A target. `config` entries are merged into config.json last; None removes a key."""

    # llama | smollm | mistral | qwen2 (qkv biases) | qwen3 (qk norms) | qwen3_moe | deepseek_v3
    model_type: str = "llama"
    num_layers: int = 4
    hidden_size: int = 32
    intermediate_size: int = 48
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int | None = None  # None: not in the file, hidden_size / num_heads
    experts: tuple[int, int, int] = (6, 2, 24)  # number, how many a token, width; of *_moe and deepseek_v3
    deepseek: DeepseekSizes = field(default_factory=DeepseekSizes)
    vocab_size: int = 96
    max_position_embeddings: int = 512
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None  # transformers 5 spelling instead of the two above
    dtype: str = "float32"
    eos_token_id: int | list[int] | None = 2
    prefix: str = "model."  # of the tensor names; "" also occurs
    num_shards: int = 1
    unigram_strength: float = 0.0
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def resolved_head_dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_heads


# architectures and model_type of drafts with each graph.
DRAFT_GRAPHS = {
    "llama": ("LlamaForCausalLMEagle3", "llama"),
    "qwen3": ("Eagle3Qwen3ForCausalLM", "qwen3"),
    "deepseek": ("Eagle3DeepseekV2ForCausalLM", "kimi_k2"),
}


@dataclass(frozen=True)
class DraftSpec:
    """An EAGLE-3 draft. None means: as the target (sizes), or what the other fields ask for (embedding, head, ids)."""

    graph: str = "llama"  # of the layers: a key of DRAFT_GRAPHS
    num_layers: int = 1
    latent: DeepseekSizes = field(default_factory=DeepseekSizes)  # of the deepseek graph
    num_captured: int = 3  # A
    capture_layers: tuple[int, ...] | None = None  # canonical k, ascending; None: default_capture_layers
    id_convention: str = "residual_index"  # how the file numbers them: residual_index (k) | layer_output (k - 1) | none
    id_places: tuple[str, ...] = ("top",)  # top and / or eagle_config
    hidden_size: int | None = None  # H
    intermediate_size: int = 40
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    draft_vocab_size: int | None = None  # Vd; None: V and no d2t
    fc_norm: bool = False
    norm_before_fc: bool = False
    norm_output: bool = False
    norm_before_residual: bool = False
    fc_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    own_embedding: bool | None = None  # None: only if H != Ht
    own_head: bool | None = None  # None: only if H != Ht or Vd != V
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rms_norm_eps: float = 1e-5
    dtype: str | None = None
    spelling: str = "midlayer"  # midlayer | layers | model (layers.0 with the prefix model.)
    form: str = "flat"  # flat | speculators (transformer_layer_config; ids are residual indices)
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TinyCheckpoint:
    directory: Path
    config: dict[str, Any]  # as written to config.json
    weights: dict[str, Array]  # canonical name -> float32 values as stored (d2t int64, t2d bool)
    spec: TargetSpec | DraftSpec

    @property
    def path(self) -> str:
        return str(self.directory)


def default_capture_layers(num_captured: int, num_layers: int) -> tuple[int, ...]:
    """The usual (2, N//2, N-3) where it exists, else points spread up to N (an id == N settles the numbering)."""
    if num_captured == 3 and num_layers >= 7:
        return (2, num_layers // 2, num_layers - 3)
    if num_captured > num_layers + 1:
        raise ValueError(f"{num_captured} capture points need at least {num_captured - 1} layers")
    if num_captured == 1:
        return (num_layers,)
    first = 1 if num_captured <= num_layers else 0
    return tuple(first + (i * (num_layers - first)) // (num_captured - 1) for i in range(num_captured))


def target_weights(spec: TargetSpec, seed: int) -> dict[str, Array]:
    random = RandomWeights(seed)
    weights = {"embed_tokens.weight": random.embedding(spec.vocab_size, spec.hidden_size)}
    heads = (spec.num_heads, spec.num_kv_heads, spec.resolved_head_dim)
    qkv_bias = spec.attention_bias or spec.model_type == "qwen2"
    for index in range(spec.num_layers):
        biases = (qkv_bias, spec.attention_bias and spec.model_type != "qwen2", spec.mlp_bias)
        layer = random_layer(random, spec.hidden_size, spec.hidden_size, spec.intermediate_size, heads, biases)
        if spec.model_type.startswith("qwen3"):
            layer |= {f"self_attn.{x}_norm.weight": random.norm(spec.resolved_head_dim) for x in "qk"}
        if spec.model_type.endswith("_moe"):
            layer = {name: values for name, values in layer.items() if not name.startswith("mlp.")}
            layer |= random_experts(random, spec.hidden_size, spec.experts[0], spec.experts[2])
        if spec.model_type == "deepseek_v3":
            layer = deepseek_layer(random, layer, index, spec.num_heads, spec.experts, spec.deepseek)
        weights.update({f"layers.{index}.{name}": values for name, values in layer.items()})
    weights["norm.weight"] = random.norm(spec.hidden_size)
    if not spec.tie_word_embeddings:
        weights["lm_head.weight"] = random.matrix(spec.vocab_size, spec.hidden_size)
        if spec.unigram_strength:
            weights["embed_tokens.weight"][:, 0] = 8.0
            weights["norm.weight"][0] = 1.0
            weights["lm_head.weight"][:, 0] = spec.unigram_strength * unigram(spec.vocab_size)
    return {name: rounded(values, spec.dtype) for name, values in weights.items()}


def target_config(spec: TargetSpec) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": spec.model_type,
        "num_hidden_layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "hidden_act": "silu",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "torch_dtype": spec.dtype,
        "eos_token_id": spec.eos_token_id,
    }
    if spec.head_dim is not None or spec.model_type.startswith("qwen3"):
        config["head_dim"] = spec.resolved_head_dim
    if spec.model_type.endswith("_moe"):
        num_experts, per_token, width = spec.experts
        config.update(num_experts=num_experts, num_experts_per_tok=per_token, moe_intermediate_size=width)
        config.update(norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[])
    if spec.model_type == "deepseek_v3":
        config.update(deepseek_config(spec.experts, spec.deepseek), num_key_value_heads=spec.num_heads)
    if spec.model_type == "mistral":
        config["sliding_window"] = None
    elif spec.model_type == "qwen2":
        config["use_sliding_window"] = False
    else:
        config.update(attention_bias=spec.attention_bias, mlp_bias=spec.mlp_bias)
    if spec.rope_parameters is not None:
        config["rope_parameters"] = dict(spec.rope_parameters)
    else:
        config["rope_theta"] = spec.rope_theta
        config["rope_scaling"] = dict(spec.rope_scaling) if spec.rope_scaling else None
    return _merged(config, spec.config)


def _merged(config: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = {**config, **changes}
    return {key: value for key, value in result.items() if value is not None or key not in changes}


def write_target(directory: Path, spec: TargetSpec | None = None, seed: int = 0) -> TinyCheckpoint:
    spec = spec or TargetSpec()
    config = target_config(spec)
    weights = target_weights(spec, seed)
    tensors = {
        (name if name == "lm_head.weight" else spec.prefix + name): stored(values, spec.dtype)
        for name, values in weights.items()
    }
    write_directory(directory, config, tensors, spec.num_shards)
    return TinyCheckpoint(directory, config, weights, spec)


def _draft_sizes(spec: DraftSpec, target: TargetSpec) -> tuple[int, int, tuple[int, int, int]]:
    """H, Vd and (heads, kv heads, head_dim)."""
    hidden = spec.hidden_size or target.hidden_size
    num_heads = spec.num_heads or target.num_heads
    head_dim = spec.head_dim or hidden // num_heads
    return (
        hidden,
        spec.draft_vocab_size or target.vocab_size,
        (num_heads, spec.num_kv_heads or target.num_kv_heads, head_dim),
    )


def _draft_layer(
    random: RandomWeights, spec: DraftSpec, hidden: int, heads: tuple[int, int, int], is_first: bool
) -> dict[str, Array]:
    width = 2 * hidden if is_first else hidden
    biases = (spec.attention_bias, spec.attention_bias, spec.mlp_bias)
    layer = random_layer(random, hidden, width, spec.intermediate_size, heads, biases)
    layer.pop("self_attn.o_proj.bias", None)  # attention_bias of a draft covers q, k and v only
    if is_first:
        layer["hidden_norm.weight"] = random.norm(hidden)
    if spec.graph == "qwen3":
        layer |= {f"self_attn.{x}_norm.weight": random.norm(heads[2]) for x in "qk"}
    if spec.graph == "deepseek":
        layer = with_latent_attention(random, layer, width, heads[0], spec.latent)
    return layer


def draft_weights(spec: DraftSpec, target: TargetSpec, seed: int) -> dict[str, Array]:
    random = RandomWeights(seed)
    hidden, draft_vocab, heads = _draft_sizes(spec, target)
    concat = spec.num_captured * target.hidden_size
    weights = {"fc.weight": random.matrix(hidden, concat), "norm.weight": random.norm(hidden)}
    if spec.fc_bias:
        weights["fc.bias"] = random.bias(hidden)
    if spec.fc_norm:
        weights.update({f"fc_norm.{i}.weight": random.norm(target.hidden_size) for i in range(spec.num_captured)})
    if spec.norm_before_fc:
        weights["input_norm.weight"] = random.norm(concat)
    for index in range(spec.num_layers):
        layer = _draft_layer(random, spec, hidden, heads, is_first=index == 0)
        weights.update({f"layers.{index}.{name}": values for name, values in layer.items()})
    widths_differ = hidden != target.hidden_size
    if spec.own_embedding if spec.own_embedding is not None else widths_differ:
        weights["embed_tokens.weight"] = random.embedding(target.vocab_size, hidden)
    kept = np.arange(draft_vocab, dtype=np.int64)
    if draft_vocab != target.vocab_size:
        kept = random.sorted_ids(draft_vocab, target.vocab_size)
        weights["d2t"] = kept - np.arange(draft_vocab, dtype=np.int64)
        weights["t2d"] = np.isin(np.arange(target.vocab_size), kept)
    if spec.own_head if spec.own_head is not None else (widths_differ or draft_vocab != target.vocab_size):
        weights["lm_head.weight"] = random.matrix(draft_vocab, hidden)
    if target.unigram_strength:
        weights["fc.weight"][0] = 0.0
        weights["fc.weight"][0, concat - target.hidden_size] = 1.0
        weights["norm.weight"][0] = 1.0
        if "lm_head.weight" in weights:
            weights["lm_head.weight"][:, 0] = target.unigram_strength * unigram(target.vocab_size)[kept]
    dtype = spec.dtype or target.dtype
    return {name: rounded(values, dtype) for name, values in weights.items()}


def _layer_ids(spec: DraftSpec, target: TargetSpec) -> list[int] | None:
    if spec.id_convention == "none":
        return None
    layers = spec.capture_layers or default_capture_layers(spec.num_captured, target.num_layers)
    return [k - 1 if spec.id_convention == "layer_output" else k for k in layers]


def draft_config(spec: DraftSpec, target: TargetSpec) -> dict[str, Any]:
    hidden, draft_vocab, (num_heads, num_kv_heads, head_dim) = _draft_sizes(spec, target)
    architecture, model_type = DRAFT_GRAPHS[spec.graph]
    layer: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": hidden,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "vocab_size": target.vocab_size,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope_theta,
        "rope_scaling": dict(spec.rope_scaling) if spec.rope_scaling else None,
        "max_position_embeddings": target.max_position_embeddings,
        "attention_bias": spec.attention_bias,
        "mlp_bias": spec.mlp_bias,
    }
    if spec.graph == "deepseek":
        del layer["head_dim"]
        layer.update(latent_config(spec.latent), num_key_value_heads=num_heads)
    outer: dict[str, Any] = {
        "draft_vocab_size": draft_vocab,
        "target_hidden_size": target.hidden_size,
        "torch_dtype": spec.dtype or target.dtype,
        "fc_norm": spec.fc_norm,
        "norm_output": spec.norm_output,
        "norm_before_fc": spec.norm_before_fc,
        "norm_before_residual": spec.norm_before_residual,
        "bias": spec.fc_bias,
    }
    ids = _layer_ids(spec, target)
    if ids is not None and "top" in spec.id_places:
        outer["eagle_aux_hidden_state_layer_ids"] = ids
    if spec.form == "speculators":
        config = {"architectures": ["Eagle3DraftModel"], "speculators_model_type": "eagle3", **outer}
        config["transformer_layer_config"] = layer
        return _merged(config, spec.config)
    config = {"architectures": [architecture], **layer, **outer}
    config["num_aux_hidden_states"] = spec.num_captured
    if ids is not None and "eagle_config" in spec.id_places:
        config["eagle_config"] = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": ids}
    return _merged(config, spec.config)


def draft_name(name: str, spelling: str) -> str:
    """The canonical tensor name as a file of this spelling has it."""
    if spelling == "midlayer":
        return name.replace("layers.0.", "midlayer.")
    if spelling == "model" and name not in ("lm_head.weight", "d2t", "t2d"):
        return "model." + name
    return name


def write_draft(
    directory: Path, target: TinyCheckpoint, spec: DraftSpec | None = None, seed: int = 1
) -> TinyCheckpoint:
    spec = spec or DraftSpec()
    assert isinstance(target.spec, TargetSpec)
    config = draft_config(spec, target.spec)
    weights = draft_weights(spec, target.spec, seed)
    dtype = spec.dtype or target.spec.dtype
    tensors = {draft_name(name, spec.spelling): stored(values, dtype) for name, values in weights.items()}
    write_directory(directory, config, tensors)
    return TinyCheckpoint(directory, config, weights, spec)
