"""Tiny random layers of deepseek_v3: multi-head latent attention, and experts after the first layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.random_weights import RandomWeights, random_experts
from support.tensors import Array


@dataclass(frozen=True)
class DeepseekSizes:
    q_lora_rank: int | None = 24  # None: one projection for the query
    kv_lora_rank: int = 32
    nope: int = 16  # of a query head
    rope: int = 8
    value: int = 16
    num_dense_layers: int = 1
    num_shared_experts: int = 1
    groups: tuple[int, int] = (2, 1)  # number of expert groups, how many a token chooses from


def latent_attention(
    random: RandomWeights, hidden: int, width: int, num_heads: int, sizes: DeepseekSizes
) -> dict[str, Array]:
    """The attention of a layer; width: of its input."""
    query = num_heads * (sizes.nope + sizes.rope)
    if sizes.q_lora_rank is None:
        tensors = {"q_proj.weight": random.matrix(query, width)}
    else:
        tensors = {
            "q_a_proj.weight": random.matrix(sizes.q_lora_rank, width),
            "q_a_layernorm.weight": random.norm(sizes.q_lora_rank),
            "q_b_proj.weight": random.matrix(query, sizes.q_lora_rank),
        }
    tensors |= {
        "kv_a_proj_with_mqa.weight": random.matrix(sizes.kv_lora_rank + sizes.rope, width),
        "kv_a_layernorm.weight": random.norm(sizes.kv_lora_rank),
        "kv_b_proj.weight": random.matrix(num_heads * (sizes.nope + sizes.value), sizes.kv_lora_rank),
        "o_proj.weight": random.matrix(hidden, num_heads * sizes.value),
    }
    return {f"self_attn.{name}": values for name, values in tensors.items()}


def with_latent_attention(
    random: RandomWeights, plain: dict[str, Array], width: int, num_heads: int, sizes: DeepseekSizes
) -> dict[str, Array]:
    """The layer `plain` of the llama graph with its attention replaced."""
    layer = {name: values for name, values in plain.items() if not name.startswith("self_attn.")}
    return layer | latent_attention(random, len(plain["input_layernorm.weight"]), width, num_heads, sizes)


def shared_mlp(random: RandomWeights, hidden: int, width: int) -> dict[str, Array]:
    shapes = {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
    return {f"mlp.shared_experts.{name}_proj.weight": random.matrix(*shape) for name, shape in shapes.items()}


def deepseek_layer(
    random: RandomWeights,
    plain: dict[str, Array],
    index: int,
    num_heads: int,
    experts: tuple[int, int, int],
    sizes: DeepseekSizes,
) -> dict[str, Array]:
    """The layer `plain` of the llama graph with its attention, and from num_dense_layers on its mlp, replaced."""
    hidden = len(plain["input_layernorm.weight"])
    layer = with_latent_attention(random, plain, hidden, num_heads, sizes)
    if index < sizes.num_dense_layers:
        return layer
    layer = {name: values for name, values in layer.items() if not name.startswith("mlp.")}
    num_experts, _, width = experts
    layer |= random_experts(random, hidden, num_experts, width)
    layer["mlp.gate.e_score_correction_bias"] = random.bias(num_experts)
    if sizes.num_shared_experts:
        layer |= shared_mlp(random, hidden, sizes.num_shared_experts * width)
    return layer


def latent_config(sizes: DeepseekSizes) -> dict[str, Any]:
    return {
        "q_lora_rank": sizes.q_lora_rank,
        "kv_lora_rank": sizes.kv_lora_rank,
        "qk_nope_head_dim": sizes.nope,
        "qk_rope_head_dim": sizes.rope,
        "v_head_dim": sizes.value,
    }


def deepseek_config(experts: tuple[int, int, int], sizes: DeepseekSizes) -> dict[str, Any]:
    num_experts, per_token, width = experts
    return {
        **latent_config(sizes),
        "n_routed_experts": num_experts,
        "num_experts_per_tok": per_token,
        "moe_intermediate_size": width,
        "n_shared_experts": sizes.num_shared_experts,
        "first_k_dense_replace": sizes.num_dense_layers,
        "n_group": sizes.groups[0],
        "topk_group": sizes.groups[1],
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
    }
