"""What one training run is asked to do, and which values that can be."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from eagle31rt.errors import InvalidArgumentError

PRECISIONS = ("auto", "float32", "bfloat16")
VARIANTS = ("eagle3.1", "eagle3")
ATTENTIONS = ("auto", "gqa", "mla")
STARTS = ("closed-form", "random")


@dataclass(frozen=True)
class HeadSettings:
    """What the head is. A run that goes on from a checkpoint must agree with it in all of this."""

    variant: str = "eagle3.1"  # eagle3.1: norms of the captured states and post-norm feedback; eagle3: neither
    attention: str = "auto"  # gqa: grouped queries; mla: multi-head latent attention; auto: as the target
    draft_vocab_size: int = 32000  # at most the target's
    intermediate_size: int | None = None  # None: the target's
    capture_layers: tuple[int, ...] = ()  # k of the residual streams R_k; empty: (2, N//2, N-3)
    start: str = "closed-form"  # or "random"


@dataclass(frozen=True)
class LoopSettings:
    """How the head is trained. All of it but the seed may change between a checkpoint and its continuation."""

    epochs: float = 3.0
    steps: int | None = None  # overrides epochs
    batch_tokens: int = 1024  # tokens of conversations per optimizer step, about
    ttt_steps: int = 7  # depth of the chains that are trained
    chain_fraction: float = 0.33  # share of positions from which chains are unrolled past step 0
    dropout: float = 0.1  # of the fused feature, and of what attention and MLP add to it
    train_on_prompts: bool = True  # the target's distribution after given tokens teaches, too
    step_decay: float = 0.8  # weight of step k in the loss: step_decay ** k
    learning_rate: float = 4e-4
    head_learning_rate: float = 0.25  # of lm_head, as a factor of learning_rate; 0 freezes it at the target's rows
    warmup_steps: int = 50
    decay_fraction: float = 1.0  # the last part of the run over which the cosine falls; 1.0: a plain cosine
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    seed: int = 0
    checkpoint_minutes: float = 5.0
    evaluate_every: int = 500  # steps between acceptance measurements by the engine; 0: only at the end
    evaluate_prompts: int = 16
    num_speculative_tokens: int = 5  # of these measurements


@dataclass(frozen=True)
class DataSettings:
    """Where conversations come from, how long they may be, and how much disk the features of them may take."""

    prompts: Path | None = None
    self_generate: int = 0  # conversations
    documents: Path | None = None  # texts that self-written prompts quote
    max_tokens: int = 1024  # of a conversation
    max_new_tokens: int = 400  # of an answer
    max_turns: int = 3
    max_num_seqs: int = 32
    cache_gib: float = 20.0  # bound of the feature cache
    exact_features: bool = False  # store float32 instead of scaled float16
    seed: int = 0


@dataclass(frozen=True)
class TrainSettings:
    target: Path
    output: Path
    work: Path  # data, features, checkpoint and log
    head: HeadSettings
    loop: LoopSettings
    data: DataSettings
    device: str = "cpu"  # of torch and of the engine
    threads: int = 0  # of torch and of the engine; 0: physical cores
    precision: str = "auto"  # of matrix products; auto: bfloat16 on CUDA, float32 on the CPU

    def check(self) -> None:
        """Judges every value that needs no look at files. Raises InvalidArgumentError naming the option."""
        for group in (self, self.head, self.loop, self.data):
            for field in fields(group):
                _check_option(field.name, getattr(group, field.name))
        if not re.fullmatch(r"cpu|cuda(:\d{1,3})?", self.device):
            raise InvalidArgumentError(f"--device must be cpu or cuda, got {self.device!r}")


class _Range(NamedTuple):
    low: float
    high: float = math.inf  # itself never allowed if infinite
    above: bool = False  # low itself is not allowed

    def holds(self, value: float) -> bool:
        """False for what is not finite."""
        return (value > self.low if self.above else value >= self.low) and value <= self.high and value < math.inf

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"a finite number, more than {self.low}" if self.above else f"a finite number, {self.low} or more"
        return f"more than {self.low}, at most {self.high}" if self.above else f"{self.low} to {self.high}"


_INT32_MAX = 2**31 - 1
_SHARE = _Range(0, 1, above=True)
# Every numeric field of the settings. Steps and seed share the 64 bits of a step's random seed.
_RANGES = {
    "draft_vocab_size": _Range(2, _INT32_MAX),
    "intermediate_size": _Range(1, 2**20),
    "epochs": _Range(0, 1_000_000, above=True),
    "steps": _Range(1, _INT32_MAX),
    "batch_tokens": _Range(16, _INT32_MAX),
    "ttt_steps": _Range(1, 16),
    "chain_fraction": _SHARE,
    "dropout": _Range(0, 0.99),
    "step_decay": _SHARE,
    "learning_rate": _Range(0, above=True),
    "head_learning_rate": _Range(0),
    "warmup_steps": _Range(0, _INT32_MAX),
    "decay_fraction": _SHARE,
    "weight_decay": _Range(0),
    "max_gradient_norm": _Range(0, above=True),
    "seed": _Range(0, 2**32 - 1),
    "checkpoint_minutes": _Range(0),
    "evaluate_every": _Range(0, _INT32_MAX),
    "evaluate_prompts": _Range(1, 100_000),
    "num_speculative_tokens": _Range(1, 16),
    "self_generate": _Range(0, 10**8),
    "max_tokens": _Range(8, _INT32_MAX),
    "max_new_tokens": _Range(4, _INT32_MAX),
    "max_turns": _Range(1, 1000),
    "max_num_seqs": _Range(1, 65536),
    "cache_gib": _Range(0, 1e9, above=True),
    "threads": _Range(0, 1024),
}
_CHOICES = {"variant": VARIANTS, "attention": ATTENTIONS, "start": STARTS, "precision": PRECISIONS}


def _check_option(name: str, value: object) -> None:
    option = "--" + name.replace("_", "-")
    if name in _CHOICES and value not in _CHOICES[name]:
        raise InvalidArgumentError(f"{option} must be one of {', '.join(_CHOICES[name])}, got {value!r}")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not _RANGES[name].holds(value):
        raise InvalidArgumentError(f"{option} must be {_RANGES[name]}, got {value!r}")


def identity(settings: HeadSettings) -> dict[str, Any]:
    """What a checkpoint records of the head, in types that survive JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}
