"""A layer with multi-head latent attention in plain numpy (eagle31_spec 2.5): nothing is absorbed, every key and value
is made from the latents anew."""

from __future__ import annotations

import math

import numpy as np

from support.oracle import Arithmetic, KvCache, Layer, attend
from support.oracle_tensors import round_to


def _halves(heads: np.ndarray) -> np.ndarray:
    """Pairs (2i, 2i + 1) as halves (i, i + d / 2), which `Rope` rotates. Query and key alike: products stay."""
    return np.concatenate([heads[..., ::2], heads[..., 1::2]], axis=-1)


def score_scale(config: dict) -> float:
    scale = (config["qk_nope_head_dim"] + config["qk_rope_head_dim"]) ** -0.5
    rope = config.get("rope_scaling") or {}
    if (rope.get("rope_type") or rope.get("type")) == "yarn" and rope.get("mscale_all_dim"):
        scale *= (0.1 * rope["mscale_all_dim"] * math.log(rope["factor"]) + 1) ** 2
    return scale


class LatentLayer(Layer):
    def __init__(self, config: dict, tensors: dict[str, np.ndarray], prefix: str, arithmetic: Arithmetic) -> None:
        super().__init__({**config, "head_dim": config["qk_rope_head_dim"]}, tensors, prefix, arithmetic)
        self.config = config
        self.scale = score_scale(config)

    def normed(self, name: str, x: np.ndarray) -> np.ndarray:
        return self.arithmetic.rms_norm(x, self.weight(name), self.epsilon)

    def query(self, x: np.ndarray, positions: np.ndarray) -> np.ndarray:
        if self.config["q_lora_rank"]:
            x = self.normed("self_attn.q_a_layernorm", self.project("self_attn.q_a_proj", x))
            query = self.project("self_attn.q_b_proj", x)
        else:
            query = self.project("self_attn.q_proj", x)
        heads = query.reshape(len(x), self.num_heads, -1)
        nope = self.config["qk_nope_head_dim"]
        rotated = self.rope.rotate(_halves(heads[..., nope:]), positions)
        return np.concatenate([heads[..., :nope], rotated], axis=-1)

    def entries(self, x: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What the cache holds: latents [n, 1, rank] and rotated rope keys [n, 1, rope]."""
        rank = self.config["kv_lora_rank"]
        projected = self.project("self_attn.kv_a_proj_with_mqa", x)
        latent = self.normed("self_attn.kv_a_layernorm", projected[:, :rank])
        key = self.rope.rotate(_halves(projected[:, None, rank:]), positions)
        return latent[:, None], key

    def attention(self, x: np.ndarray, positions: np.ndarray, cache: KvCache) -> np.ndarray:
        latent, rope_key = self.entries(x, positions)
        cache.append(round_to(latent, self.arithmetic.kv_dtype), round_to(rope_key, self.arithmetic.kv_dtype))
        assert cache.key is not None and cache.value is not None
        expanded = self.project("self_attn.kv_b_proj", cache.key[:, 0].astype(x.dtype))
        expanded = expanded.reshape(len(cache), self.num_heads, -1)
        nope = self.config["qk_nope_head_dim"]
        rope_keys = np.repeat(cache.value, self.num_heads, axis=1)
        keys = np.concatenate([expanded[..., :nope], rope_keys], axis=-1)
        context = attend(self.query(x, positions), keys, expanded[..., nope:], self.scale)
        return self.project("self_attn.o_proj", context.reshape(len(x), -1))
