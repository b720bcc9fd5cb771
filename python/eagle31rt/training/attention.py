"""The attention of a head: what it offers to `unroll`, and the grouped one of the llama graph.

Query, key and value are handed out per head, rotated, of any widths: training needs no compressed cache, so a latent
attention (latent_attention.py) expands its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn

from eagle31rt.training.modules import Linear
from eagle31rt.training.rope import Rope, RotaryEmbedding


class Projections(NamedTuple):
    """Of n slots."""

    query: torch.Tensor  # [n, num_heads, key_size]
    key: torch.Tensor  # [n, num_kv_heads, key_size]
    value: torch.Tensor  # [n, num_kv_heads, value_size]


class Attention(nn.Module, ABC):
    """Parameter names are those of the checkpoint."""

    o_proj: Linear  # [hidden_size, num_heads * value_size]
    scale: float  # of the scores

    @abstractmethod
    def project(self, inputs: torch.Tensor, positions: torch.Tensor) -> Projections:
        """inputs [n, 2 * hidden_size]: norms of embedding and feature; rotary positions [n]."""


@dataclass(frozen=True)
class GroupedSizes:
    num_kv_heads: int
    head_dim: int

    @staticmethod
    def read(config: Mapping[str, Any]) -> GroupedSizes:
        """From config.json. Raises KeyError, TypeError or ValueError."""
        return GroupedSizes(int(config["num_key_value_heads"]), int(config["head_dim"]))


class GroupedAttention(Attention):
    def __init__(self, sizes: GroupedSizes, hidden_size: int, num_heads: int, rope: Rope, num_positions: int) -> None:
        super().__init__()
        self.sizes = sizes
        width, size = 2 * hidden_size, sizes.head_dim
        self.q_proj = Linear(width, num_heads * size)
        self.k_proj = Linear(width, sizes.num_kv_heads * size)
        self.v_proj = Linear(width, sizes.num_kv_heads * size)
        self.o_proj = Linear(num_heads * size, hidden_size)
        self.rotate = RotaryEmbedding(rope, size, num_positions)
        self.scale = size**-0.5

    def project(self, inputs: torch.Tensor, positions: torch.Tensor) -> Projections:
        size = self.sizes.head_dim
        query = self.q_proj(inputs).unflatten(-1, (-1, size))
        key = self.k_proj(inputs).unflatten(-1, (-1, size))
        value = self.v_proj(inputs).unflatten(-1, (-1, size))
        return Projections(self.rotate(query, positions), self.rotate(key, positions), value)
