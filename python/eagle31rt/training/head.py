"""The interface between a head and its training: what `unroll` asks of any attention family.

A slot pairs the feature of position p with the token of p + 1 and predicts the token of p + 2. Query, key and value are
per head and already rotated, of any widths; so a head with multi-head latent attention fits by handing out its expanded
keys and values (training needs no absorbed form).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Linear(nn.Linear):
    """No bias. Multiplies in compute_dtype and returns float32; the parameter stays float32."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.compute_dtype = torch.float32

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return F.linear(values.to(self.compute_dtype), self.weight.to(self.compute_dtype)).float()


class Projections(NamedTuple):
    """Of n slots."""

    query: torch.Tensor  # [n, num_heads, key_size]
    key: torch.Tensor  # [n, num_kv_heads, key_size]
    value: torch.Tensor  # [n, num_kv_heads, value_size]


class States(NamedTuple):
    """Of n slots, both [n, hidden_size]."""

    normed: torch.Tensor  # what lm_head reads
    feedback: torch.Tensor  # the feature of the next draft step


@dataclass(frozen=True)
class HeadSizes:
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    capture_layers: tuple[int, ...]
    fc_norm: bool
    norm_output: bool


class DraftHead(nn.Module, ABC):
    sizes: HeadSizes
    lm_head: Linear
    scale: float  # of the attention scores

    def compute_in(self, dtype: torch.dtype) -> None:
        """The type of matrix products; norms, rotations, attention and the residual stream stay float32."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.compute_dtype = dtype

    def drop_out(self, probability: float) -> None:
        """Of every nn.Dropout, which draw from torch's global generator in train mode."""
        for module in self.modules():
            if isinstance(module, nn.Dropout):
                module.p = probability

    @abstractmethod
    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        """Captured states [n, A * hidden_size] -> features [n, hidden_size]."""

    @abstractmethod
    def project(self, feature: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor) -> Projections:
        """Attention inputs of n slots: feature [n, hidden_size], token_ids [n], rotary positions [n]."""

    @abstractmethod
    def finish(self, feature: torch.Tensor, attended: torch.Tensor) -> States:
        """The rest of the layer: feature [n, hidden_size] and attention output [n, num_heads * value_size]."""

    @abstractmethod
    def exported(self) -> dict[str, torch.Tensor]:
        """Tensors of the checkpoint by their names in it, float32, without d2t and t2d."""
