"""The training loop: batches, losses, AdamW, checkpoints, acceptance on the way."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eagle31rt.errors import CheckpointError, Eagle31rtError
from eagle31rt.training.batches import BatchPlan, Dataset
from eagle31rt.training.checkpoint import Checkpoint
from eagle31rt.training.evaluation import Acceptance, evaluate_head
from eagle31rt.training.files import writing
from eagle31rt.training.head import DraftHead
from eagle31rt.training.losses import StepLoss, Teacher, step_losses, weighted_loss
from eagle31rt.training.settings import LoopSettings, TrainSettings, identity
from eagle31rt.training.target import TargetSizes

_FINAL_RATE = 0.02  # of the learning rate, at the end of the cosine
_SMOOTHING = 0.05  # of the running figures that the progress bar shows
_RUINED = 10.0  # times the loss of guessing, or of the first step: no head with such a loss is worth keeping


class TrainingError(Eagle31rtError, RuntimeError):
    """Training cannot go on; the message says from where it can be resumed."""


@dataclass
class Figures:
    """Running means of a run, by step of the chain."""

    loss: list[float]
    agreement: list[float]

    def add(self, losses: list[StepLoss]) -> None:
        for k, step in enumerate(losses):
            if step.predictions == 0:
                continue
            now = (step.loss.item() / step.predictions, step.agreed.item() / step.predictions)
            if k == len(self.loss):
                self.loss.append(now[0])
                self.agreement.append(now[1])
            else:
                self.loss[k] += _SMOOTHING * (now[0] - self.loss[k])
                self.agreement[k] += _SMOOTHING * (now[1] - self.agreement[k])

    def rounded(self) -> dict[str, list[float]]:
        return {"loss": [round(x, 4) for x in self.loss], "agreement": [round(x, 4) for x in self.agreement]}


def learning_rate_factor(step: int, total: int, settings: LoopSettings) -> float:
    """Linear warm-up, constant, cosine down to _FINAL_RATE over the last decay_fraction of `total` steps."""
    warm = min(1.0, (step + 1) / max(1, settings.warmup_steps))
    decay_start = int(total * (1.0 - settings.decay_fraction))
    if step < decay_start:
        return warm
    done = (step - decay_start) / max(1, total - decay_start)
    return warm * (_FINAL_RATE + (1 - _FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * min(1.0, done))))


def make_optimizer(head: DraftHead, settings: LoopSettings) -> torch.optim.AdamW:
    output = [head.lm_head.weight]
    rest = [parameter for parameter in head.parameters() if parameter is not head.lm_head.weight]
    head.lm_head.weight.requires_grad_(settings.head_learning_rate > 0)
    groups: list[dict[str, Any]] = [
        {"params": rest, "factor": 1.0},
        {"params": output, "factor": settings.head_learning_rate},
    ]
    return torch.optim.AdamW(
        groups, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay, fused=True
    )


def restore_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """The moments of a checkpoint, but the rates of this run."""
    rates = [{key: group[key] for key in ("factor", "weight_decay")} for group in optimizer.param_groups]
    saved = state["param_groups"]
    if len(saved) == 1:  # earlier versions left a frozen lm_head out
        state = {**state, "param_groups": [*saved, {**saved[0], "params": [len(saved[0]["params"])]}]}
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, rates, strict=True):
        group.update(own)


class Trainer:
    """Owns the state that a checkpoint holds. `report(step, total, figures)` is called after every step."""

    def __init__(
        self,
        settings: TrainSettings,
        sizes: TargetSizes,
        head: DraftHead,
        teacher: Teacher,
        dataset: Dataset,
        kept: torch.Tensor,
        manifest: dict[str, Any],
    ) -> None:
        self.settings, self.sizes, self.head = settings, sizes, head
        self.teacher, self.dataset, self.kept = teacher, dataset, kept
        self.manifest = manifest
        self.step = 0
        self._saved_step = 0  # 0: nothing is saved
        self._last_plan: BatchPlan | None = None
        self._first_loss = 0.0
        self.optimizer = make_optimizer(head, settings.loop)
        self.figures = Figures([], [])
        self._saved_at = time.monotonic()

    @property
    def checkpoint_path(self) -> Path:
        return self.settings.work / "checkpoint.pt"

    @property
    def total_steps(self) -> int:
        loop = self.settings.loop
        if loop.steps is not None:
            return loop.steps
        return max(1, round(loop.epochs * len(self.dataset.epoch(0, loop.batch_tokens, loop.seed))))

    def save(self) -> None:
        """Raises TrainingError instead of keeping a state that training has ruined."""
        self._saved_at = time.monotonic()
        if self.step == self._saved_step:
            return
        self._check_state()
        head, optimizer = self.head.state_dict(), self.optimizer.state_dict()
        checkpoint = Checkpoint(self.step, identity(self.settings.head), self.kept, head, optimizer, self.manifest)
        checkpoint.save(self.checkpoint_path)
        self._saved_step = self.step

    def resume(self, checkpoint: Checkpoint) -> None:
        try:
            self.head.load_state_dict(checkpoint.head)
            restore_optimizer(self.optimizer, checkpoint.optimizer)
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            advice = "give the target and options that it was made with, or another --work"
            raise CheckpointError(
                f"{self.checkpoint_path} does not fit this target or these options: {advice}"
            ) from error
        self.step = self._saved_step = checkpoint.step

    @torch.no_grad()
    def _check_state(self) -> None:
        """The last update may have ruined what gave a finite loss: look at the loss after it."""
        finite = all(bool(torch.isfinite(parameter).all()) for parameter in self.head.parameters())
        loss = math.nan
        if finite and self._last_plan is not None:
            self.head.eval()
            batch = self.dataset.load(self._last_plan)
            (step,) = step_losses(self.head, self.teacher, batch, 1, 1.0, torch.Generator().manual_seed(0))
            loss = step.loss.item() / max(1, step.predictions)
        if not loss <= _RUINED * max(math.log(len(self.kept)), self._first_loss):
            raise TrainingError(f"the loss after step {self.step} is {loss:.3g}: {self._way_out()}")

    def _way_out(self) -> str:
        if self._saved_step:
            kept = f"the state after step {self._saved_step} is in {self.checkpoint_path}"
        else:
            kept = "no state was saved, the data are"
        return f"{kept}; resume with a lower --learning-rate"

    def run(self, report: Callable[[int, int, Figures], None]) -> Acceptance:
        """Trains to the last step, then measures and returns the acceptance."""
        loop, total = self.settings.loop, self.total_steps
        position = 0
        for _, plan in self.dataset.stream(loop.batch_tokens, loop.seed):
            if position >= total:
                break
            position += 1
            if position <= self.step:
                continue  # done before the checkpoint
            self._train_step(plan, total)
            report(self.step, total, self.figures)
            if time.monotonic() - self._saved_at > loop.checkpoint_minutes * 60:
                self.save()
            if loop.evaluate_every and self.step % loop.evaluate_every == 0 and self.step < total:
                self.save()
                self.evaluate()
        self.save()
        return self.evaluate()

    def _train_step(self, plan: BatchPlan, total: int) -> None:
        loop = self.settings.loop
        batch = self.dataset.load(plan)
        generator = torch.Generator().manual_seed((loop.seed << 32) + self.step)
        torch.manual_seed((loop.seed << 32) + self.step)  # of dropout: a resumed run drops the same
        self.head.train()
        self.head.drop_out(loop.dropout)
        losses = step_losses(self.head, self.teacher, batch, loop.ttt_steps, loop.chain_fraction, generator)
        loss = weighted_loss(losses, loop.step_decay)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.head.parameters(), loop.max_gradient_norm)
        if not (torch.isfinite(loss) and torch.isfinite(norm)):
            figures = f"{loss.item()} (gradient norm {norm.item()})"
            raise TrainingError(f"the loss of step {self.step + 1} is {figures}: {self._way_out()}")
        if self._last_plan is None:
            self._first_loss = losses[0].loss.item() / max(1, losses[0].predictions)
        self._last_plan = plan
        factor = learning_rate_factor(self.step, total, loop)
        for group in self.optimizer.param_groups:
            group["lr"] = loop.learning_rate * group["factor"] * factor
        self.optimizer.step()
        self.step += 1
        self.figures.add(losses)

    @torch.no_grad()
    def validate(self, most_batches: int = 16) -> dict[str, list[float]]:
        """Mean loss and agreement per step of the chain on conversations that are never trained on."""
        loop = self.settings.loop
        self.head.eval()
        sums: list[list[float]] = [[0.0, 0.0, 0.0] for _ in range(loop.ttt_steps)]
        generator = torch.Generator().manual_seed(7)
        for plan in self.dataset.validation[:most_batches]:
            batch = self.dataset.load(plan, answers_only=True)
            losses = step_losses(self.head, self.teacher, batch, loop.ttt_steps, 1.0, generator)
            for total, step in zip(sums, losses, strict=False):
                total[0] += step.loss.item()
                total[1] += step.agreed.item()
                total[2] += step.predictions
        counted = [total for total in sums if total[2]]
        return {
            "validation_loss": [round(loss / count, 4) for loss, _, count in counted],
            "validation_agreement": [round(agreed / count, 4) for _, agreed, count in counted],
        }

    def evaluate(self) -> Acceptance:
        """Measures with the engine and appends a line to log.jsonl."""
        settings, loop = self.settings, self.settings.loop
        acceptance = evaluate_head(
            self.head,
            self.kept,
            self.sizes,
            settings.target,
            settings.work,
            self.dataset.held_out_prompts(loop.evaluate_prompts, loop.batch_tokens, loop.seed),
            loop.num_speculative_tokens,
            settings.threads,
            settings.device,
        )
        line = {"step": self.step, **self.figures.rounded(), **self.validate(), "acceptance": acceptance.__dict__}
        path = settings.work / "log.jsonl"
        with writing(path), open(path, "a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")
        return acceptance
