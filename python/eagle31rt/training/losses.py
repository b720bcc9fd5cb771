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
    """sum_i CE(targets_i, softmax(states_i @ weight^T)), keeping one [rows, vocabulary] array instead of three."""

    @staticmethod
    def forward(ctx: Any, states: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, dtype: torch.dtype) -> Any:
        states, weight = states.to(dtype), weight.to(dtype)
        logits = F.linear(states, weight).float()
        normaliser = logits.logsumexp(-1, keepdim=True)
        loss = (normaliser.squeeze(-1) - (targets * logits).sum(-1)).sum()
        agreed = (logits.argmax(-1) == targets.argmax(-1)).sum()
        difference = logits.sub_(normaliser).exp_().sub_(targets).to(dtype)
        ctx.save_for_backward(states, weight, difference)
        ctx.mark_non_differentiable(agreed)
        return loss, agreed

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        states, weight, difference = ctx.saved_tensors
        scale = gradients[0]
        for_states = (difference @ weight).float() * scale
        for_weight = (difference.t() @ states).float() * scale if ctx.needs_input_grad[1] else None
        return for_states, for_weight, None, None


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
        output = head.lm_head
        loss, agreed = _SoftCrossEntropy.apply(step.normed[chosen], output.weight, targets, output.compute_dtype)
        result.append(StepLoss(loss, agreed, len(chosen)))
    return result


def weighted_loss(losses: list[StepLoss], step_decay: float) -> torch.Tensor:
    """sum_k step_decay^k * mean loss of step k."""
    return torch.stack([step_decay**k * step.loss / max(1, step.predictions) for k, step in enumerate(losses)]).sum()
