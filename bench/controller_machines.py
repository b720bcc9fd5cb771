"""Cost curves for bench/controller_sim.py: GPUs by roofline, this project's CPU by measurement.

A pass takes the larger of bytes / bandwidth and flops / peak at the efficiencies below, plus a constant for launches
and collectives. Experts are read once per pass if any row goes to them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from typing import Protocol

from common import RESULTS
from gpu import PEAKS

BANDWIDTH_EFFICIENCY, FLOPS_EFFICIENCY = 0.8, 0.6
HEAD_VOCABULARY = 32000


class Machine(Protocol):
    name: str

    def plain(self, requests: int, context: float) -> float:
        """Seconds of a step without drafts; `context` is the KV entries of all requests."""
        ...

    def verify(self, requests: int, rows: int, context: float) -> float: ...

    def draft(self, requests: int, context: float) -> float:
        """Of one draft pass over so many requests."""
        ...

    def observe(self, requests: int, rows: int, context: float) -> float: ...


@dataclass(frozen=True)
class Model:
    """Sizes of a target and its head; bytes as stored, parameters that a row meets."""

    name: str
    dense_bytes: float
    row_parameters: float
    kv_bytes: float  # of a token, all layers
    draft_bytes: float
    draft_kv_bytes: float
    expert_bytes: float = 0.0  # all experts of all layers
    num_experts: int = 0
    experts_per_row: int = 0
    layers: int = 32


# Llama: 8.03e9 parameters less the embedding; head: one layer, fc, 32k ids. gpt-oss: 128 experts of 36 layers in MXFP4,
# 4 a row, half of the layers with a window of 128. Kimi: 384 experts of 60 layers in 4 bits, 8 a row; latent KV.
LLAMA_8B = Model("Llama-3.1-8B", 15.0e9, 7.5e9, 131072, 0.85e9, 4096)
GPT_OSS_120B = Model("gpt-oss-120b", 3.2e9, 5.1e9, 36864, 0.75e9, 4096, 60.0e9, 128, 4, 36)
KIMI_K2 = Model("Kimi-K2.6", 22.0e9, 32.0e9, 70272, 2.4e9, 1152, 560.0e9, 384, 8, 61)


@dataclass(frozen=True)
class Roofline:
    """`num_gpus` of a kind run the model with tensor parallelism."""

    gpu: str
    model: Model
    num_gpus: int = 1

    @property
    def name(self) -> str:
        return f"{self.model.name}, {f'{self.num_gpus} ' if self.num_gpus > 1 else ''}{self.gpu}"

    def _pass(self, num_bytes: float, flops: float, layers: int) -> float:
        peak = PEAKS[self.gpu]
        overhead = layers * (4e-6 + (12e-6 if self.num_gpus > 1 else 0.0))
        seconds = max(num_bytes / peak.bandwidth / BANDWIDTH_EFFICIENCY, flops / peak.flops / FLOPS_EFFICIENCY)
        return seconds / self.num_gpus + overhead

    def verify(self, requests: int, rows: int, context: float) -> float:
        model = self.model
        touched = 1 - (1 - model.experts_per_row / model.num_experts) ** rows if model.num_experts else 0.0
        num_bytes = model.dense_bytes + touched * model.expert_bytes + context * model.kv_bytes
        return self._pass(num_bytes, 2 * model.row_parameters * rows, model.layers)

    def plain(self, requests: int, context: float) -> float:
        return self.verify(requests, requests, context)

    def draft(self, requests: int, context: float) -> float:
        model = self.model
        num_bytes = model.draft_bytes + context * model.draft_kv_bytes
        return self._pass(num_bytes, model.draft_bytes * requests, 2)

    def observe(self, requests: int, rows: int, context: float) -> float:
        return self.draft(rows, context)


class MeasuredCpu:
    """SmolLM2-135M with its head on two cores: results/decode.json. Between and beyond measured rows linear."""

    name = "SmolLM2-135M, 2 CPU cores"

    def __init__(self) -> None:
        figures = json.loads((RESULTS / "decode.json").read_text())["figures"]
        self._plain = 1 / figures["plain_tokens_per_second"]
        self._rows = [(1, 1.0), *((rows, figures[f"rows_{rows}"]) for rows in (2, 4, 8))]
        fractions = figures["draft_step_fraction_by_num_speculative_tokens"]
        self._pass = (7 * fractions["7"] - fractions["1"]) / 6
        self._observe = fractions["1"] - self._pass

    def _relative(self, rows: float) -> float:
        for (low, before), (high, after) in zip(self._rows, self._rows[1:], strict=False):
            if rows <= high or high == 8:
                return before + (after - before) * (rows - low) / (high - low)
        raise AssertionError

    def verify(self, requests: int, rows: int, context: float) -> float:
        attention = 0.0257 * rows / max(requests, 1) * context / 150
        return self._plain * (self._relative(rows) + attention)

    def plain(self, requests: int, context: float) -> float:
        return self.verify(requests, requests, context)

    def draft(self, requests: int, context: float) -> float:
        return self._plain * self._pass * self._relative(requests)

    def observe(self, requests: int, rows: int, context: float) -> float:
        return self._plain * self._observe * self._relative(rows)


@cache
def machines() -> tuple[Machine, ...]:
    return (
        MeasuredCpu(),
        *(Roofline(gpu, LLAMA_8B) for gpu in ("H100", "H200", "B200")),
        Roofline("H100", GPT_OSS_120B),
        Roofline("H200", KIMI_K2, 8),
        Roofline("B200", KIMI_K2, 4),
    )
