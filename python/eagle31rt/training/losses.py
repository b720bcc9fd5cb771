"""Soft cross-entropy of every step of the unrolled draft against the target's own distribution."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from eagle31rt.training.head import DraftHead
from eagle31rt.training.unroll import Batch, Slots, unroll


class StepLoss(NamedTuple):
    """Sums over the counted predictions of one step, so that batches and processes add up."""

    loss: torch.Tensor  # sum of cross-entropies in nats
    agreed: torch.Tensor  # how often the draft's best token is the target's best within the draft vocabulary
    predictions: int


class _SoftCrossEntropy(torch.autograd.Function):
    """sum_i CE(targets_i, softmax(logits_i)); keeps one [rows, vocabulary] array for the backward pass, not three."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> Any:
        normaliser = logits.logsumexp(-1, keepdim=True)
        loss = (normaliser.squeeze(-1) - (targets * logits).sum(-1)).sum()
        ctx.save_for_backward((logits - normaliser).exp_().sub_(targets))
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return ctx.saved_tensors[0] * gradients[0], None


class Teacher:
    """The target's distribution over the draft vocabulary, from its last residual stream."""

    def __init__(self, folded_head: torch.Tensor, epsilon: float) -> None:
        self.folded_head = folded_head  # [draft_vocab_size, hidden_size]
        self.epsilon = epsilon

    @torch.no_grad()
    def probabilities(self, last: torch.Tensor) -> torch.Tensor:
        """[n, hidden_size] -> [n, draft_vocab_size]."""
        unit = F.rms_norm(last, last.shape[-1:], None, self.epsilon)
        return torch.softmax(F.linear(unit, self.folded_head), dim=-1)


def choose_anchors(batch: Batch, slots: Slots, fraction: float, generator: torch.Generator) -> torch.Tensor:
    """A random share of the slots whose step 1 counts, ascending; the draw is made on the CPU for any device."""
    reachable = slots.tokens_left >= 3
    row = torch.where(reachable, slots.row + 3, slots.row)
    candidates = torch.nonzero(reachable & batch.counted[row]).squeeze(-1)
    wanted = max(1, round(len(candidates) * fraction)) if len(candidates) else 0
    order = torch.randperm(len(candidates), generator=generator)[:wanted]
    return candidates[order.sort().values.to(candidates.device)]


def step_losses(
    head: DraftHead, teacher: Teacher, batch: Batch, num_steps: int, fraction: float, generator: torch.Generator
) -> list[StepLoss]:
    """Step k from anchor p predicts the token of p + k + 2, whose distribution the target gives at p + k + 1."""
    slots = Slots(batch)
    anchors = choose_anchors(batch, slots, fraction, generator)
    probabilities = teacher.probabilities(batch.last)
    result: list[StepLoss] = []
    for k, step in enumerate(unroll(head, batch, slots, anchors, num_steps)):
        inside = slots.tokens_left[step.slot] >= k + 2
        predicted = torch.where(inside, slots.row[step.slot] + k + 2, 0)
        chosen = torch.nonzero(inside & batch.counted[predicted]).squeeze(-1)
        targets = probabilities[predicted[chosen] - 1]
        logits = head.lm_head(step.normed[chosen])
        agreed = (logits.detach().argmax(-1) == targets.argmax(-1)).sum()
        loss = _SoftCrossEntropy.apply(logits, targets)
        result.append(StepLoss(loss, agreed, len(chosen)))
    return result


def weighted_loss(losses: list[StepLoss], step_decay: float) -> torch.Tensor:
    """sum_k step_decay^k * mean loss of step k."""
    return torch.stack([step_decay**k * step.loss / max(1, step.predictions) for k, step in enumerate(losses)]).sum()
