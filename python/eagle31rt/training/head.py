"""An EAGLE-3 or EAGLE-3.1 head of one layer whose attention reads [norm(embedding), norm(feature)].

A slot pairs the feature of position p with the token of p + 1 and predicts the token of p + 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn

from eagle31rt.training.attention import Attention, GroupedAttention, GroupedSizes, Projections
from eagle31rt.training.latent_attention import LatentAttention, LatentSizes
from eagle31rt.training.modules import MLP, Linear, RMSNorm
from eagle31rt.training.rope import Rope


class States(NamedTuple):
    """Of n slots, both [n, hidden_size]."""

    normed: torch.Tensor  # what lm_head reads
    feedback: torch.Tensor  # the feature of the next draft step


@dataclass(frozen=True)
class HeadSizes:
    hidden_size: int
    intermediate_size: int
    num_heads: int
    attention: GroupedSizes | LatentSizes
    vocab_size: int
    draft_vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: Rope
    capture_layers: tuple[int, ...]
    fc_norm: bool
    norm_output: bool


class Layer(nn.Module):
    def __init__(self, sizes: HeadSizes, num_positions: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.hidden_norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.self_attn = _attention(sizes, num_positions)
        self.post_attention_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.mlp = MLP(sizes.hidden_size, sizes.intermediate_size)


def _attention(sizes: HeadSizes, num_positions: int) -> Attention:
    own, hidden, heads = sizes.attention, sizes.hidden_size, sizes.num_heads
    if isinstance(own, LatentSizes):
        return LatentAttention(own, hidden, heads, sizes.rope, sizes.rms_norm_eps, num_positions)
    return GroupedAttention(own, hidden, heads, sizes.rope, num_positions)


class DraftHead(nn.Module):
    """Parameter names are those of the checkpoint (`midlayer.*`). The embedding is the target's, frozen, not saved.

    max_tokens: rotary positions are below it.
    """

    embedding: torch.Tensor
    fc_scale: torch.Tensor

    def __init__(self, sizes: HeadSizes, embedding: torch.Tensor, max_tokens: int) -> None:
        super().__init__()
        self.sizes = sizes
        width = len(sizes.capture_layers) * sizes.hidden_size
        self.fc = Linear(width, sizes.hidden_size)
        if sizes.fc_norm:
            norms = [RMSNorm(sizes.hidden_size, sizes.rms_norm_eps) for _ in sizes.capture_layers]
            self.fc_norm = nn.ModuleList(norms)
        self.midlayer = Layer(sizes, max_tokens)
        self.dropout = nn.Dropout(0.0)
        self.norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.lm_head = Linear(sizes.hidden_size, sizes.draft_vocab_size)
        # Without fc_norm the captured states differ in scale by orders of magnitude between features, which no single
        # step size of Adam fits: fc is trained on standardised states and the scale folded into it on export.
        self.register_buffer("fc_scale", torch.ones(width))
        self.register_buffer("embedding", embedding, persistent=False)

    @property
    def scale(self) -> float:
        """Of the attention scores."""
        return self.midlayer.self_attn.scale

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

    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        """Captured states [n, A * hidden_size] -> features [n, hidden_size]."""
        if self.sizes.fc_norm:
            chunks = captured.chunk(len(self.sizes.capture_layers), dim=-1)
            captured = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        feature: torch.Tensor = self.dropout(self.fc(captured * self.fc_scale))
        return feature

    def project(self, feature: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor) -> Projections:
        """Attention inputs of n slots: feature [n, hidden_size], token_ids [n], rotary positions [n]."""
        embedded = self.midlayer.input_layernorm(self.embedding[token_ids])
        inputs = torch.cat([embedded, self.midlayer.hidden_norm(feature)], dim=-1)
        return self.midlayer.self_attn.project(inputs, positions)

    def finish(self, feature: torch.Tensor, attended: torch.Tensor) -> States:
        """The rest of the layer: feature [n, hidden_size] and attention output [n, num_heads * value_size]."""
        layer = self.midlayer
        state = feature + self.dropout(layer.self_attn.o_proj(attended))
        state = state + self.dropout(layer.mlp(layer.post_attention_layernorm(state)))
        normed = self.norm(state)
        return States(normed, normed if self.sizes.norm_output else state)

    def exported(self) -> dict[str, torch.Tensor]:
        """Tensors of the checkpoint by their names in it, float32, without d2t and t2d."""
        tensors = {name: value.detach().float().cpu() for name, value in self.named_parameters()}
        tensors["fc.weight"] = tensors["fc.weight"] * self.fc_scale.cpu()
        return tensors
