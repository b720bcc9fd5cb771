"""Tensors of a layer, by name and shape, as transformers writes each family of targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Config = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]


def attention_tensors(config: Config, biases: str = "", qk_norm: bool = False, sinks: bool = False) -> Shapes:
    """biases: letters of the projections that have one, of "qkvo"."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    shapes: Shapes = {}
    for name, rows, columns in (
        ("q", heads, hidden),
        ("k", kv_heads, hidden),
        ("v", kv_heads, hidden),
        ("o", hidden, heads),
    ):
        shapes[f"self_attn.{name}_proj.weight"] = (rows, columns)
        if name in biases:
            shapes[f"self_attn.{name}_proj.bias"] = (rows,)
    if qk_norm:
        shapes |= {"self_attn.q_norm.weight": (head_dim,), "self_attn.k_norm.weight": (head_dim,)}
    if sinks:
        shapes["self_attn.sinks"] = (config["num_attention_heads"],)
    return shapes


def mlp_tensors(config: Config) -> Shapes:
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    return {
        "mlp.gate_proj.weight": (wide, hidden),
        "mlp.up_proj.weight": (wide, hidden),
        "mlp.down_proj.weight": (hidden, wide),
    }


def expert_tensors(config: Config) -> Shapes:
    hidden, wide = config["hidden_size"], config["moe_intermediate_size"]
    shapes: Shapes = {"mlp.gate.weight": (config["num_experts"], hidden)}
    for expert in range(config["num_experts"]):
        for name, shape in (("gate", (wide, hidden)), ("up", (wide, hidden)), ("down", (hidden, wide))):
            shapes[f"mlp.experts.{expert}.{name}_proj.weight"] = shape
    return shapes


def fused_expert_tensors(config: Config) -> Shapes:
    """gpt_oss: all experts in one tensor, with biases."""
    count, hidden, wide = config["num_local_experts"], config["hidden_size"], config["intermediate_size"]
    return {
        "mlp.router.weight": (count, hidden),
        "mlp.router.bias": (count,),
        "mlp.experts.gate_up_proj": (count, hidden, 2 * wide),
        "mlp.experts.gate_up_proj_bias": (count, 2 * wide),
        "mlp.experts.down_proj": (count, wide, hidden),
        "mlp.experts.down_proj_bias": (count, hidden),
    }


def latent_attention_tensors(config: Config) -> Shapes:
    hidden, heads, rank = config["hidden_size"], config["num_attention_heads"], config["kv_lora_rank"]
    nope, rope, value = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    query = heads * (nope + rope)
    shapes: Shapes = {
        "kv_a_proj_with_mqa.weight": (rank + rope, hidden),
        "kv_a_layernorm.weight": (rank,),
        "kv_b_proj.weight": (heads * (nope + value), rank),
        "o_proj.weight": (hidden, heads * value),
    }
    if query_rank := config["q_lora_rank"]:
        shapes["q_a_proj.weight"], shapes["q_a_layernorm.weight"] = (query_rank, hidden), (query_rank,)
        shapes["q_b_proj.weight"] = (query, query_rank)
    else:
        shapes["q_proj.weight"] = (query, hidden)
    return {f"self_attn.{name}": shape for name, shape in shapes.items()}


def deepseek_tensors(config: Config) -> Shapes:
    """Latent attention in every layer; after the first layers experts, some of them for every token."""
    shared = {"intermediate_size": config["n_shared_experts"] * config["moe_intermediate_size"]}
    experts = expert_tensors({**config, "num_experts": config["n_routed_experts"]})
    experts["mlp.gate.e_score_correction_bias"] = (config["n_routed_experts"],)
    for name, shape in mlp_tensors({**config, **shared}).items():
        experts[name.replace("mlp.", "mlp.shared_experts.")] = shape
    common = {**latent_attention_tensors(config), **layer_norms(config)}
    return {
        f"layers.{index}.{name}": shape
        for index in range(config["num_hidden_layers"])
        for name, shape in {
            **common,
            **(mlp_tensors(config) if index < config["first_k_dense_replace"] else experts),
        }.items()
    }


def layer_norms(config: Config, *names: str) -> Shapes:
    return {
        f"{name}.weight": (config["hidden_size"],) for name in names or ("input_layernorm", "post_attention_layernorm")
    }


def dense(mlp: Callable[[Config], Shapes] = mlp_tensors, **attention: Any) -> Callable[[Config], Shapes]:
    """The llama layer with options of its attention, and with another MLP."""

    def tensors(config: Config) -> Shapes:
        layer = {**attention_tensors(config, **attention), **mlp(config), **layer_norms(config)}
        return {
            f"layers.{index}.{name}": shape
            for index in range(config["num_hidden_layers"])
            for name, shape in layer.items()
        }

    return tensors


def gemma_tensors(config: Config) -> Shapes:
    """Norms before and after attention and MLP."""
    norms = layer_norms(
        config,
        *("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    )
    layer = {**attention_tensors(config, qk_norm=True), **mlp_tensors(config), **norms}
    return {
        f"layers.{index}.{name}": shape for index in range(config["num_hidden_layers"]) for name, shape in layer.items()
    }
