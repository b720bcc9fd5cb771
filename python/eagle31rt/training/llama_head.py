"""The llama-style head: one layer whose attention reads [norm(embedding), norm(feature)]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from eagle31rt.training.head import DraftHead, HeadSizes, Linear, Projections, States


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(values, values.shape[-1:], self.weight, self.epsilon)


class Attention(nn.Module):
    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        width, heads, kv_heads = 2 * sizes.hidden_size, sizes.num_heads, sizes.num_kv_heads
        self.q_proj = Linear(width, heads * sizes.head_dim)
        self.k_proj = Linear(width, kv_heads * sizes.head_dim)
        self.v_proj = Linear(width, kv_heads * sizes.head_dim)
        self.o_proj = Linear(heads * sizes.head_dim, sizes.hidden_size)


class MLP(nn.Module):
    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.gate_proj = Linear(sizes.hidden_size, sizes.intermediate_size)
        self.up_proj = Linear(sizes.hidden_size, sizes.intermediate_size)
        self.down_proj = Linear(sizes.intermediate_size, sizes.hidden_size)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = self.down_proj(F.silu(self.gate_proj(values)) * self.up_proj(values))
        return gated


class Layer(nn.Module):
    def __init__(self, sizes: HeadSizes) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.hidden_norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.mlp = MLP(sizes)


def rope_tables(sizes: HeadSizes, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin, [num_positions, head_dim / 2]: rotate-half, no scaling; angles in float64."""
    exponents = torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), sizes.rope_theta**-exponents)
    return angles.cos().float(), angles.sin().float()


def rotate(values: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """values [n, heads, head_dim], cosine and sine [n, head_dim / 2]."""
    low, high = values.chunk(2, dim=-1)
    cosine, sine = cosine[:, None], sine[:, None]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)


class LlamaHead(DraftHead):
    """Parameter names are those of the checkpoint (`midlayer.*`). The embedding is the target's, frozen, not saved."""

    embedding: torch.Tensor
    fc_scale: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, sizes: HeadSizes, embedding: torch.Tensor, max_tokens: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.scale = sizes.head_dim**-0.5
        width = len(sizes.capture_layers) * sizes.hidden_size
        self.fc = Linear(width, sizes.hidden_size)
        if sizes.fc_norm:
            norms = [RMSNorm(sizes.hidden_size, sizes.rms_norm_eps) for _ in sizes.capture_layers]
            self.fc_norm = nn.ModuleList(norms)
        self.midlayer = Layer(sizes)
        self.dropout = nn.Dropout(0.0)
        self.norm = RMSNorm(sizes.hidden_size, sizes.rms_norm_eps)
        self.lm_head = Linear(sizes.hidden_size, sizes.draft_vocab_size)
        # Without fc_norm the captured states differ in scale by orders of magnitude between features, which no single
        # step size of Adam fits: fc is trained on standardised states and the scale folded into it on export.
        self.register_buffer("fc_scale", torch.ones(width))
        self.register_buffer("embedding", embedding, persistent=False)
        cosine, sine = rope_tables(sizes, max_tokens)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def fuse(self, captured: torch.Tensor) -> torch.Tensor:
        if self.sizes.fc_norm:
            chunks = captured.chunk(len(self.sizes.capture_layers), dim=-1)
            captured = torch.cat([norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)], dim=-1)
        feature: torch.Tensor = self.dropout(self.fc(captured * self.fc_scale))
        return feature

    def project(self, feature: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor) -> Projections:
        layer, attention, size = self.midlayer, self.midlayer.self_attn, self.sizes.head_dim
        embedded = layer.input_layernorm(self.embedding[token_ids])
        inputs = torch.cat([embedded, layer.hidden_norm(feature)], dim=-1)
        cosine, sine = self.cosine[positions], self.sine[positions]
        query = attention.q_proj(inputs).unflatten(-1, (-1, size))
        key = attention.k_proj(inputs).unflatten(-1, (-1, size))
        value = attention.v_proj(inputs).unflatten(-1, (-1, size))
        return Projections(rotate(query, cosine, sine), rotate(key, cosine, sine), value)

    def finish(self, feature: torch.Tensor, attended: torch.Tensor) -> States:
        layer = self.midlayer
        state = feature + self.dropout(layer.self_attn.o_proj(attended))
        state = state + self.dropout(layer.mlp(layer.post_attention_layernorm(state)))
        normed = self.norm(state)
        return States(normed, normed if self.sizes.norm_output else state)

    def exported(self) -> dict[str, torch.Tensor]:
        tensors = {name: value.detach().float().cpu() for name, value in self.named_parameters()}
        tensors["fc.weight"] = tensors["fc.weight"] * self.fc_scale.cpu()
        return tensors
