"""Rotary embeddings of heads: plain or YaRN, rotate-half or interleaved, with the engine's angles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Yarn:
    """Keys of a config's rope_scaling."""

    factor: float
    original_max_position_embeddings: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0  # 0: not given
    mscale_all_dim: float = 0.0  # 0: not given
    attention_factor: float | None = None  # of cosine and sine; None: follows from factor and the two above
    truncate: bool = True  # to whole frequencies where the ramp begins and ends

    @staticmethod
    def read(config: Mapping[str, Any]) -> Yarn | None:
        """From config.json, None for a rotary embedding without scaling. Raises ValueError for another kind."""
        scaling: dict[str, Any] = config.get("rope_scaling") or config.get("rope_parameters") or {}
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        if kind == "default":
            return None
        if kind != "yarn":
            raise ValueError(f"rope type {kind!r} is not supported; supported are default and yarn")
        longest = float(config["max_position_embeddings"])
        original = float(
            scaling.get("original_max_position_embeddings") or config.get("original_max_position_embeddings") or longest
        )
        factor = scaling.get("attention_factor")
        return Yarn(
            factor=float(scaling.get("factor") or longest / original),
            original_max_position_embeddings=original,
            beta_fast=float(scaling.get("beta_fast") or 32.0),
            beta_slow=float(scaling.get("beta_slow") or 1.0),
            mscale=float(scaling.get("mscale") or 0.0),
            mscale_all_dim=float(scaling.get("mscale_all_dim") or 0.0),
            attention_factor=None if factor is None else float(factor),
            truncate=bool(scaling.get("truncate", True)),
        )

    def config(self) -> dict[str, Any]:
        """rope_scaling of an exported config: what is not given is left out, since engines differ in reading it."""
        unset = {"mscale": 0.0, "mscale_all_dim": 0.0, "attention_factor": None, "truncate": True}
        given = {key: value for key, value in asdict(self).items() if key not in unset or value != unset[key]}
        return {"rope_type": "yarn", **given}

    def magnitude(self, mscale: float) -> float:
        return 1.0 if self.factor <= 1.0 else 0.1 * mscale * math.log(self.factor) + 1.0

    def stretched(self, frequencies: torch.Tensor, theta: float) -> torch.Tensor:
        """Low frequencies divided by the factor, high ones kept, a ramp between. [rotary_dim / 2]"""
        size = 2 * len(frequencies)

        def index(rotations: float) -> float:
            """Of the frequency that turns so often within the original length."""
            ratio = self.original_max_position_embeddings / (rotations * 2.0 * math.pi)
            return size * math.log(ratio) / (2.0 * math.log(theta))

        low, high = index(self.beta_fast), index(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0.0), min(high, size - 1.0)
        if low == high:
            high += 0.001  # no division by zero
        ramp = ((torch.arange(len(frequencies), dtype=torch.float64) - low) / (high - low)).clamp(0.0, 1.0)
        return frequencies / self.factor * ramp + frequencies * (1.0 - ramp)

    def table_factor(self) -> float:
        """Of cosine and sine."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self.magnitude(self.mscale) / self.magnitude(self.mscale_all_dim)
        return self.magnitude(1.0)


@dataclass(frozen=True)
class Rope:
    theta: float
    interleaved: bool = False  # pairs (2i, 2i + 1) instead of (i, i + size / 2)
    yarn: Yarn | None = None

    def tables(self, size: int, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and sin, [num_positions, size / 2]; angles in float64."""
        frequencies = self.theta ** -(torch.arange(0, size, 2, dtype=torch.float64) / size)
        factor = 1.0
        if self.yarn is not None:
            frequencies = self.yarn.stretched(frequencies, self.theta)
            factor = self.yarn.table_factor()
        angles = torch.outer(torch.arange(num_positions, dtype=torch.float64), frequencies)
        return (angles.cos() * factor).float(), (angles.sin() * factor).float()


class RotaryEmbedding(nn.Module):
    """Rotates the last dimension, `size` wide, of values [n, heads, size] at positions [n] below num_positions."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, rope: Rope, size: int, num_positions: int) -> None:
        super().__init__()
        self._interleaved = rope.interleaved
        cosine, sine = rope.tables(size, num_positions)
        self.register_buffer("cosine", cosine, persistent=False)
        self.register_buffer("sine", sine, persistent=False)

    def forward(self, values: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.cosine[positions][:, None], self.sine[positions][:, None]
        if self._interleaved:
            low, high = values[..., ::2], values[..., 1::2]
            pairs = [low * cosine - high * sine, high * cosine + low * sine]
            return torch.stack(pairs, dim=-1).flatten(-2)
        low, high = values.chunk(2, dim=-1)
        return torch.cat([low * cosine - high * sine, high * cosine + low * sine], dim=-1)
