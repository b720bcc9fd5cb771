"""The models in plain numpy, written from eagle31_spec sections 1 and 2 and not from the C++: the judge of its logits.

In float64 it is the truth. In float32 with an `order_seed` it is "the naive version", whose error bounds what the
runtime may have: each sum one product after the other, in a shuffled order, since one order alone may be lucky.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.oracle_tensors import read_checkpoint, round_to


@dataclass(frozen=True)
class Arithmetic:
    """How to compute. The runtime keeps matrices in weight_dtype and K/V in kv_dtype; norms and biases stay float32."""

    dtype: type = np.float64
    weight_dtype: str = "float32"
    kv_dtype: str = "float32"
    order_seed: int | None = None

    def linear(self, x: np.ndarray, weight: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
        """x [n, in] @ weight [out, in]^T + bias [out]."""
        weight = round_to(weight, self.weight_dtype).astype(self.dtype, copy=False)
        if self.order_seed is None:
            y = x @ weight.T
        else:
            order = np.random.default_rng(self.order_seed).permutation(x.shape[1])
            y = np.cumsum(x[:, None, order] * weight[:, order], axis=-1)[..., -1]
        return y if bias is None else y + bias.astype(self.dtype)

    def rms_norm(self, x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.dtype(epsilon)) * weight.astype(self.dtype)

    def rows(self, table: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
        return round_to(table[token_ids], self.weight_dtype).astype(self.dtype)


def _yarn_mscale(factor: float, mscale: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _yarn(inverse: np.ndarray, rope: dict, theta: float, max_position: int) -> tuple[np.ndarray, float]:
    half = len(inverse)
    factor = rope["factor"]
    original = rope.get("original_max_position_embeddings") or max_position

    def turns_to_index(turns: float) -> float:
        return half * math.log(original / (turns * 2 * math.pi)) / math.log(theta)

    low, high = turns_to_index(rope.get("beta_fast") or 32), turns_to_index(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * half - 1)
    high = high + 0.001 if low == high else high
    stretched = np.clip((np.arange(half) - low) / (high - low), 0, 1)
    inverse = inverse / factor * stretched + inverse * (1 - stretched)
    if rope.get("attention_factor") is not None:
        return inverse, rope["attention_factor"]
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return inverse, _yarn_mscale(factor, rope["mscale"]) / _yarn_mscale(factor, rope["mscale_all_dim"])
    return inverse, _yarn_mscale(factor)


class Rope:
    """Rotary embedding of half-split pairs (i, i + rotary_dim / 2)."""

    def __init__(self, config: dict, head_dim: int) -> None:
        rope = config.get("rope_parameters") or {}
        rope = {**(config.get("rope_scaling") or {}), **rope}
        theta = rope.get("rope_theta") or config.get("rope_theta") or 10000.0
        partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
        self.rotary_dim = int(head_dim * partial)
        inverse = theta ** (-np.arange(0, self.rotary_dim, 2, dtype=np.float64) / self.rotary_dim)
        self.attention_factor = 1.0
        kind = rope.get("rope_type") or rope.get("type") or "default"
        if kind == "linear":
            inverse = inverse / rope["factor"]
        elif kind == "llama3":
            inverse = self._llama3(inverse, rope)
        elif kind == "yarn":
            inverse, self.attention_factor = _yarn(inverse, rope, theta, config["max_position_embeddings"])
        elif kind != "default":
            raise ValueError(f"the oracle knows no rope of type {kind}")
        self.inverse_frequency = inverse

    @staticmethod
    def _llama3(inverse: np.ndarray, rope: dict) -> np.ndarray:
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        turns = rope["original_max_position_embeddings"] * inverse / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0, 1)  # 0: slow, stretched by the factor; 1: fast, kept
        return (1 - smooth) * inverse / rope["factor"] + smooth * inverse

    def rotate(self, heads: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """heads [n, num_heads, head_dim] at positions [n]."""
        angle = positions[:, None].astype(np.float64) * self.inverse_frequency
        cosine = (np.cos(angle) * self.attention_factor).astype(heads.dtype)[:, None, :]
        sine = (np.sin(angle) * self.attention_factor).astype(heads.dtype)[:, None, :]
        half = self.rotary_dim // 2
        x, y, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
        return np.concatenate([x * cosine - y * sine, y * cosine + x * sine, rest], axis=-1)


class KvCache:
    """Keys and values of one layer, [length, num_kv_heads, head_dim]."""

    def __init__(self) -> None:
        self.key: np.ndarray | None = None
        self.value: np.ndarray | None = None

    def __len__(self) -> int:
        return 0 if self.key is None else len(self.key)

    def append(self, key: np.ndarray, value: np.ndarray) -> None:
        self.key = key if self.key is None else np.concatenate([self.key, key])
        self.value = value if self.value is None else np.concatenate([self.value, value])

    def truncate(self, length: int) -> None:
        if self.key is not None and self.value is not None:
            self.key, self.value = self.key[:length], self.value[:length]


def attend(query: np.ndarray, keys: np.ndarray, values: np.ndarray, scale: float, window: int = 0) -> np.ndarray:
    """The last n of m positions: query [n, h, d], keys [m, h, d], values [m, h, v] -> [n, h, v].

    window: positions that each sees, itself included; 0: all.
    """
    n, m = len(query), len(keys)
    scores = np.einsum("qhd,khd->hqk", query, keys) * query.dtype.type(scale)
    own = m - n + np.arange(n)[:, None]
    hidden = (np.arange(m)[None, :] > own) | (np.arange(m)[None, :] <= own - (window or m))
    scores = np.where(hidden[None], -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, values)


class Layer:
    """Attention and MLP of one transformer layer; the norms around them are the caller's. window: see attend."""

    window = 0

    def __init__(self, config: dict, tensors: dict[str, np.ndarray], prefix: str, arithmetic: Arithmetic) -> None:
        self.tensors, self.prefix, self.arithmetic = tensors, prefix, arithmetic
        self.num_heads = config["num_attention_heads"]
        self.num_kv_heads = config.get("num_key_value_heads") or self.num_heads
        self.head_dim = config.get("head_dim") or config["hidden_size"] // self.num_heads
        self.epsilon = config["rms_norm_eps"]
        self.rope = Rope(config, self.head_dim)

    def weight(self, name: str) -> np.ndarray:
        return self.tensors[f"{self.prefix}{name}.weight"]

    def project(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.arithmetic.linear(x, self.weight(name), self.tensors.get(f"{self.prefix}{name}.bias"))

    def norm_heads(self, name: str, heads: np.ndarray) -> np.ndarray:
        """heads [n, num_heads, head_dim]; unchanged in layers without the norm."""
        weight = self.tensors.get(f"{self.prefix}self_attn.{name}.weight")
        return heads if weight is None else self.arithmetic.rms_norm(heads, weight, self.epsilon)

    def attention(self, x: np.ndarray, positions: np.ndarray, cache: KvCache) -> np.ndarray:
        """x [n, in] are the next n entries of the cache; each sees the entries up to itself."""
        n = len(x)
        query = self.project("self_attn.q_proj", x).reshape(n, self.num_heads, self.head_dim)
        key = self.project("self_attn.k_proj", x).reshape(n, self.num_kv_heads, self.head_dim)
        value = self.project("self_attn.v_proj", x).reshape(n, self.num_kv_heads, self.head_dim)
        query, key = self.norm_heads("q_norm", query), self.norm_heads("k_norm", key)
        query, key = self.rope.rotate(query, positions), self.rope.rotate(key, positions)
        cache.append(round_to(key, self.arithmetic.kv_dtype), round_to(value, self.arithmetic.kv_dtype))
        group = self.num_heads // self.num_kv_heads
        keys, values = np.repeat(cache.key, group, axis=1), np.repeat(cache.value, group, axis=1)
        context = attend(query, keys, values, self.head_dim**-0.5, self.window).reshape(
            n, self.num_heads * self.head_dim
        )
        return self.project("self_attn.o_proj", context)

    def mlp(self, x: np.ndarray) -> np.ndarray:
        gate = self.project("mlp.gate_proj", x)
        return self.project("mlp.down_proj", gate / (1 + np.exp(-gate)) * self.project("mlp.up_proj", x))


class Target:
    """A llama-family decoder."""

    def __init__(self, directory: str | Path, arithmetic: Arithmetic | None = None) -> None:
        self.config, tensors = read_checkpoint(directory)
        self.tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
        self.arithmetic = arithmetic or Arithmetic()
        self.epsilon = self.config["rms_norm_eps"]
        self.num_layers = self.config["num_hidden_layers"]
        self.embedding = self.tensors["embed_tokens.weight"]
        tied = self.config.get("tie_word_embeddings", False)
        self.head = self.embedding if tied else self.tensors["lm_head.weight"]
        self.layers = [
            Layer(self.config, self.tensors, f"layers.{i}.", self.arithmetic) for i in range(self.num_layers)
        ]

    def new_caches(self) -> list[KvCache]:
        return [KvCache() for _ in self.layers]

    def forward(self, token_ids: list[int], caches: list[KvCache]) -> tuple[np.ndarray, list[np.ndarray]]:
        """The next len(token_ids) rows -> logits [n, vocab] and R_0 .. R_N, the residual stream after k layers."""
        arithmetic = self.arithmetic
        positions = np.arange(len(caches[0]), len(caches[0]) + len(token_ids))
        x = arithmetic.rows(self.embedding, np.asarray(token_ids, np.int64))
        residuals = [x]
        for layer, cache in zip(self.layers, caches, strict=True):
            normed = arithmetic.rms_norm(x, layer.weight("input_layernorm"), self.epsilon)
            x = x + layer.attention(normed, positions, cache)
            normed = arithmetic.rms_norm(x, layer.weight("post_attention_layernorm"), self.epsilon)
            x = x + layer.mlp(normed)
            residuals.append(x)
        normed = arithmetic.rms_norm(x, self.tensors["norm.weight"], self.epsilon)
        return arithmetic.linear(normed, self.head), residuals


def generate(target: Target, prompt: list[int], max_tokens: int, stop_ids: tuple[int, ...] = ()) -> list[int]:
    """Plain greedy decoding."""
    caches = target.new_caches()
    output: list[int] = []
    fed = prompt
    while len(output) < max_tokens and (not output or output[-1] not in stop_ids):
        output.append(int(target.forward(fed, caches)[0][-1].argmax()))
        fed = output[-1:]
    return output
