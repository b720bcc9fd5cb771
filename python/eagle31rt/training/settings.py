"""What one training run is asked to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from eagle31rt.errors import InvalidArgumentError

PRECISIONS = ("auto", "float32", "bfloat16")
VARIANTS = ("eagle3.1", "eagle3")
MAX_TTT_STEPS = 16


@dataclass(frozen=True)
class HeadSettings:
    """What the head is. A run that goes on from a checkpoint must agree with it in all of this."""

    variant: str = "eagle3.1"  # eagle3.1: norms of the captured states and post-norm feedback; eagle3: neither
    draft_vocab_size: int = 32000  # at most the target's
    intermediate_size: int | None = None  # None: the target's
    capture_layers: tuple[int, ...] = ()  # k of the residual streams R_k; empty: (2, N//2, N-3)
    start: str = "closed-form"  # or "random"

    def check(self) -> None:
        if self.variant not in VARIANTS:
            raise InvalidArgumentError(f"variant must be one of {', '.join(VARIANTS)}, got {self.variant!r}")
        _require(self.draft_vocab_size >= 2, "draft-vocab-size", "2 or more", self.draft_vocab_size)
        _require(self.start in ("closed-form", "random"), "start", "closed-form or random", self.start)


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

    def check(self) -> None:
        _require(self.epochs > 0, "epochs", "more than 0", self.epochs)
        _require(self.steps is None or self.steps >= 1, "steps", "1 or more", self.steps)
        _require(self.batch_tokens >= 16, "batch-tokens", "16 or more", self.batch_tokens)
        _require(1 <= self.ttt_steps <= MAX_TTT_STEPS, "ttt-steps", f"1 to {MAX_TTT_STEPS}", self.ttt_steps)
        _require(0 < self.chain_fraction <= 1, "chain-fraction", "more than 0, at most 1", self.chain_fraction)
        _require(0 <= self.dropout < 1, "dropout", "at least 0, less than 1", self.dropout)
        _require(0 < self.step_decay <= 1, "step-decay", "more than 0, at most 1", self.step_decay)
        _require(self.learning_rate > 0, "learning-rate", "more than 0", self.learning_rate)
        _require(self.head_learning_rate >= 0, "head-learning-rate", "0 or more", self.head_learning_rate)
        _require(self.warmup_steps >= 0, "warmup-steps", "0 or more", self.warmup_steps)
        _require(0 < self.decay_fraction <= 1, "decay-fraction", "more than 0, at most 1", self.decay_fraction)
        _require(self.max_gradient_norm > 0, "max-gradient-norm", "more than 0", self.max_gradient_norm)
        _require(self.seed >= 0, "seed", "0 or more", self.seed)
        _require(self.evaluate_prompts >= 1, "evaluate-prompts", "1 or more", self.evaluate_prompts)
        limits = "1 to 16"
        _require(1 <= self.num_speculative_tokens <= 16, "num-speculative-tokens", limits, self.num_speculative_tokens)


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

    def check(self) -> None:
        _require(self.self_generate >= 0, "self-generate", "0 or more", self.self_generate)
        _require(self.max_tokens >= 8, "max-tokens", "8 or more", self.max_tokens)
        _require(self.max_new_tokens >= 4, "max-new-tokens", "4 or more", self.max_new_tokens)
        _require(self.max_turns >= 1, "max-turns", "1 or more", self.max_turns)
        _require(self.max_num_seqs >= 1, "max-num-seqs", "1 or more", self.max_num_seqs)
        _require(self.cache_gib > 0, "cache-gib", "more than 0", self.cache_gib)


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
        """Raises InvalidArgumentError naming the option."""
        self.head.check()
        self.loop.check()
        self.data.check()
        _require(self.threads >= 0, "threads", "0 or more", self.threads)
        _require(self.precision in PRECISIONS, "precision", ", ".join(PRECISIONS), self.precision)


def identity(settings: HeadSettings) -> dict[str, Any]:
    """What a checkpoint records of the head, in types that survive JSON."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(settings).items()}


def option_names(*groups: type) -> list[str]:
    """Field names of settings classes."""
    return [field.name for group in groups for field in fields(group)]


def _require(condition: bool, option: str, wanted: str, value: object) -> None:
    if not condition:
        raise InvalidArgumentError(f"--{option} must be {wanted}, got {value!r}")
