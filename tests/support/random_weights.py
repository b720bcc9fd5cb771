"""Random weights by seed, in the sizes of a llama layer."""

from __future__ import annotations

import numpy as np

from support.tensors import Array


class RandomWeights:
    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def _normal(self, shape: tuple[int, ...] | int, scale: float) -> Array:
        return (scale * self._generator.standard_normal(shape)).astype(np.float32)

    def matrix(self, rows: int, columns: int) -> Array:
        return self._normal((rows, columns), 1.5 / np.sqrt(columns))

    def embedding(self, rows: int, columns: int) -> Array:
        return self._normal((rows, columns), 1.0)

    def norm(self, size: int) -> Array:
        return 1.0 + self._normal(size, 0.25)

    def bias(self, size: int) -> Array:
        return self._normal(size, 0.2)

    def sorted_ids(self, count: int, limit: int) -> Array:
        return np.sort(self._generator.permutation(limit)[:count]).astype(np.int64)


def random_layer(
    random: RandomWeights,
    hidden: int,
    attention_width: int,
    intermediate: int,
    heads: tuple[int, int, int],
    biases: tuple[bool, bool, bool],
) -> dict[str, Array]:
    """One layer; heads = (query heads, kv heads, head_dim), biases = (qkv, output, mlp)."""
    num_heads, num_kv_heads, head_dim = heads
    shapes = {
        "self_attn.q_proj": (num_heads * head_dim, attention_width, biases[0]),
        "self_attn.k_proj": (num_kv_heads * head_dim, attention_width, biases[0]),
        "self_attn.v_proj": (num_kv_heads * head_dim, attention_width, biases[0]),
        "self_attn.o_proj": (hidden, num_heads * head_dim, biases[1]),
        "mlp.gate_proj": (intermediate, hidden, biases[2]),
        "mlp.up_proj": (intermediate, hidden, biases[2]),
        "mlp.down_proj": (hidden, intermediate, biases[2]),
    }
    tensors = {"input_layernorm.weight": random.norm(hidden), "post_attention_layernorm.weight": random.norm(hidden)}
    for name, (rows, columns, has_bias) in shapes.items():
        tensors[f"{name}.weight"] = random.matrix(rows, columns)
        if has_bias:
            tensors[f"{name}.bias"] = random.bias(rows)
    return tensors


def random_experts(random: RandomWeights, hidden: int, num_experts: int, width: int) -> dict[str, Array]:
    """A router and its experts, instead of the mlp of random_layer."""
    tensors = {"mlp.gate.weight": random.matrix(num_experts, hidden)}
    for expert in range(num_experts):
        for name, rows, columns in (("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)):
            tensors[f"mlp.experts.{expert}.{name}_proj.weight"] = random.matrix(rows, columns)
    return tensors


def unigram(vocab_size: int) -> Array:
    """A fixed preference per token, the same for a target and its draft."""
    return np.random.default_rng(12345).standard_normal(vocab_size).astype(np.float32)
