"""Multi-head latent attention of the deepseek graph, expanded: every head's keys and values are made from the latent.

The engine runs the same weights absorbed, with the latent and the shared rope key as its cache entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from eagle31rt.training.attention import Attention, Projections
from eagle31rt.training.modules import Linear, RMSNorm
from eagle31rt.training.rope import Rope, RotaryEmbedding

_MAX_RANK, _MAX_ROPE = 512, 64  # of the engine's cache entry


@dataclass(frozen=True)
class LatentSizes:
    """Fields have the names of config.json."""

    q_lora_rank: int | None  # None: queries come from one projection
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int

    @staticmethod
    def read(config: Mapping[str, Any]) -> LatentSizes:
        """From config.json. Raises KeyError, TypeError or ValueError."""
        q_lora_rank = config.get("q_lora_rank")
        return LatentSizes(
            q_lora_rank=None if q_lora_rank is None else int(q_lora_rank),
            kv_lora_rank=int(config["kv_lora_rank"]),
            qk_nope_head_dim=int(config["qk_nope_head_dim"]),
            qk_rope_head_dim=int(config["qk_rope_head_dim"]),
            v_head_dim=int(config["v_head_dim"]),
        )

    @staticmethod
    def like(head_dim: int, hidden_size: int) -> LatentSizes:
        """For a target without latent attention: DeepSeek-V2's proportions, which are 1536, 512, 128, 64 and 128 for
        heads of 128. Ranks are at most hidden_size; all are multiples of 8, as the engine needs them."""

        def eights(size: int) -> int:
            return max(8, size // 8 * 8)

        return LatentSizes(
            q_lora_rank=eights(min(12 * head_dim, hidden_size)),
            kv_lora_rank=eights(min(4 * head_dim, hidden_size, _MAX_RANK)),
            qk_nope_head_dim=eights(head_dim),
            qk_rope_head_dim=eights(min(head_dim // 2, _MAX_ROPE)),
            v_head_dim=eights(head_dim),
        )

    @property
    def key_size(self) -> int:
        return self.qk_nope_head_dim + self.qk_rope_head_dim


class LatentAttention(Attention):
    def __init__(
        self,
        sizes: LatentSizes,
        hidden_size: int,
        num_heads: int,
        rope: Rope,
        epsilon: float,
        num_positions: int,
    ) -> None:
        super().__init__()
        self.sizes = sizes
        width = 2 * hidden_size
        if sizes.q_lora_rank is None:
            self.q_proj = Linear(width, num_heads * sizes.key_size)
        else:
            self.q_a_proj = Linear(width, sizes.q_lora_rank)
            self.q_a_layernorm = RMSNorm(sizes.q_lora_rank, epsilon)
            self.q_b_proj = Linear(sizes.q_lora_rank, num_heads * sizes.key_size)
        self.kv_a_proj_with_mqa = Linear(width, sizes.kv_lora_rank + sizes.qk_rope_head_dim)
        self.kv_a_layernorm = RMSNorm(sizes.kv_lora_rank, epsilon)
        self.kv_b_proj = Linear(sizes.kv_lora_rank, num_heads * (sizes.qk_nope_head_dim + sizes.v_head_dim))
        self.o_proj = Linear(num_heads * sizes.v_head_dim, hidden_size)
        self.rotate = RotaryEmbedding(rope, sizes.qk_rope_head_dim, num_positions)
        self.scale = sizes.key_size**-0.5
        if rope.yarn is not None and rope.yarn.mscale_all_dim:
            self.scale *= rope.yarn.magnitude(rope.yarn.mscale_all_dim) ** 2

    def project(self, inputs: torch.Tensor, positions: torch.Tensor) -> Projections:
        sizes = self.sizes
        if sizes.q_lora_rank is None:
            query = self.q_proj(inputs)
        else:
            query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(inputs)))
        query = query.unflatten(-1, (-1, sizes.key_size))
        query_nope, query_rope = query.split([sizes.qk_nope_head_dim, sizes.qk_rope_head_dim], dim=-1)
        latent, key_rope = self.kv_a_proj_with_mqa(inputs).split([sizes.kv_lora_rank, sizes.qk_rope_head_dim], dim=-1)
        expanded = self.kv_b_proj(self.kv_a_layernorm(latent))
        expanded = expanded.unflatten(-1, (-1, sizes.qk_nope_head_dim + sizes.v_head_dim))
        key_nope, value = expanded.split([sizes.qk_nope_head_dim, sizes.v_head_dim], dim=-1)
        shared = self.rotate(key_rope[:, None], positions).expand(-1, key_nope.shape[1], -1)
        return Projections(
            torch.cat([query_nope, self.rotate(query_rope, positions)], dim=-1),
            torch.cat([key_nope, shared], dim=-1),
            value,
        )
