"""What every head is built of: projections, norms, the MLP."""

from __future__ import annotations

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


class RMSNorm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(values, values.shape[-1:], self.weight, self.epsilon)


class MLP(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int) -> None:
        super().__init__()
        self.gate_proj = Linear(hidden_size, intermediate_size)
        self.up_proj = Linear(hidden_size, intermediate_size)
        self.down_proj = Linear(intermediate_size, hidden_size)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        gated: torch.Tensor = self.down_proj(F.silu(self.gate_proj(values)) * self.up_proj(values))
        return gated
