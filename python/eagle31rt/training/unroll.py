"""Training-time test: the head is unrolled over its own states, exactly as the engine drafts.

Step 0 runs over all slots of a conversation with the target's features. Step k >= 1 continues a chain from an anchor p:
rotary position p + k, the token of p + k + 1, the state fed back from step k - 1; it attends to the step-0 entries of
positions <= p and to the chain's own entries of steps 1 to k. That is what the engine's KV cache holds when it drafts
after position p, so nothing needs a mask of its own at inference.

Chains from different anchors do not see each other, so steps >= 1 may run on any subset of anchors, at its share of the
cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from eagle31rt.training.attention import Projections
from eagle31rt.training.head import DraftHead


@dataclass(frozen=True)
class Batch:
    """Conversations one after the other, n tokens in all."""

    token_ids: torch.Tensor  # [n] int64
    counted: torch.Tensor  # [n] bool: whether predicting this token is part of the loss
    captured: torch.Tensor  # [n, A * hidden_size]
    last: torch.Tensor  # [n, hidden_size]: the residual stream after all layers of the target
    lengths: list[int]  # each >= 2


class Slots:
    """The slots of a batch (n - 1 a conversation), packed, and their rectangle for attention."""

    def __init__(self, batch: Batch) -> None:
        device = batch.token_ids.device
        lengths = torch.tensor(batch.lengths, device=device)
        counts = lengths - 1
        conversation = torch.arange(len(batch.lengths), device=device)
        self.conversation = torch.repeat_interleave(conversation, counts)  # [s]
        first_slot = torch.cumsum(counts, 0) - counts
        self.position = torch.arange(int(counts.sum()), device=device) - first_slot[self.conversation]  # [s]
        first_row = torch.cumsum(lengths, 0) - lengths
        self.row = first_row[self.conversation] + self.position  # [s] row of the slot's feature in the batch
        self.tokens_left = lengths[self.conversation] - 1 - self.position  # [s] tokens after position p
        width = torch.arange(int(counts.max()), device=device)
        rectangle = first_slot[:, None] + torch.minimum(width[None, :], counts[:, None] - 1)
        self.rectangle = rectangle  # [conversations, most slots] slot index; past the end the last slot again

    def context(self, projections: Projections) -> Context:
        """Keys and values of all slots as rectangles."""
        return Context(
            projections.key[self.rectangle].transpose(1, 2), projections.value[self.rectangle].transpose(1, 2)
        )


@dataclass(frozen=True)
class Context:
    """Step-0 entries, by conversation."""

    key: torch.Tensor  # [conversations, num_kv_heads, most slots, key_size]
    value: torch.Tensor  # [conversations, num_kv_heads, most slots, value_size]


def causal_attention(slots: Slots, projections: Projections, context: Context, scale: float) -> torch.Tensor:
    """Step 0: every slot attends to the slots up to itself, [s, num_heads * value_size]."""
    query = projections.query[slots.rectangle].transpose(1, 2)
    attended = F.scaled_dot_product_attention(
        query, context.key, context.value, is_causal=True, scale=scale, enable_gqa=True
    )
    return attended[slots.conversation, :, slots.position].flatten(1)


class Chains:
    """Chains that grow by one entry a step from the chosen anchors (slot indices, ascending)."""

    def __init__(self, slots: Slots, anchors: torch.Tensor, context: Context, scale: float) -> None:
        self.scale = scale
        conversation = slots.conversation[anchors]
        num_conversations = len(slots.rectangle)
        counts = torch.bincount(conversation, minlength=num_conversations)
        first = torch.cumsum(counts, 0) - counts
        self._conversation = conversation
        self._place = torch.arange(len(anchors), device=anchors.device) - first[conversation]
        # Conversations with fewer anchors than the widest repeat one of them; what it attends to is not read.
        width = torch.arange(int(counts.max()), device=anchors.device)
        chain = first[:, None] + torch.minimum(width[None, :], (counts[:, None] - 1).clamp_min(0))
        self._rectangle = chain.clamp_max(len(anchors) - 1)  # [conversations, most anchors]
        self._context = context
        key_position = torch.arange(context.key.shape[2], device=anchors.device)
        positions = slots.position[anchors][self._rectangle]
        self._hidden = key_position[None, None, :] > positions[:, :, None]  # [conversations, most anchors, most slots]
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._weights = torch.empty(0)

    def attend(self, projections: Projections) -> torch.Tensor:
        """Appends this step's entries and attends, [chains, num_heads * value_size]."""
        scores, own = self._scores(projections)
        weights = torch.softmax(torch.cat([scores, own], dim=-1), dim=-1)
        self._weights = weights.detach()
        num_context = scores.shape[-1]
        attended = torch.einsum("bkgat,bktd->bkgad", weights[..., :num_context], self._context.value)
        attended = self._packed(attended)  # [chains, kv heads, group, value_size]
        own_weights = self._packed(weights[..., num_context:])
        values = torch.stack(self._values, dim=2)  # [chains, kv heads, steps, value_size]
        return (attended + torch.einsum("ckgj,ckjd->ckgd", own_weights, values)).flatten(1)

    def weights(self) -> torch.Tensor:
        """Attention weights of the last step, [chains, num_heads, most slots + steps]: the context, then the chain."""
        return self._packed(self._weights).flatten(1, 2)

    def _scores(self, projections: Projections) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores over the context and over the chain itself, both [b, kv heads, group, most anchors, keys]."""
        self._keys.append(projections.key)
        self._values.append(projections.value)
        kv_heads = projections.key.shape[1]
        query = projections.query.unflatten(1, (kv_heads, -1)) * self.scale  # [chains, kv heads, group, key_size]
        own = torch.einsum("ckgd,ckjd->ckgj", query, torch.stack(self._keys, dim=2))
        rectangle = query[self._rectangle]  # [b, anchors, kv heads, group, key_size]
        scores = torch.einsum("bakgd,bktd->bkgat", rectangle, self._context.key)
        scores = scores.masked_fill(self._hidden[:, None, None], float("-inf"))
        return scores, own[self._rectangle].permute(0, 2, 3, 1, 4)

    def _packed(self, rectangle: torch.Tensor) -> torch.Tensor:
        """[b, kv heads, group, anchors, x] -> [chains, kv heads, group, x]."""
        return rectangle[self._conversation, :, :, self._place]


@dataclass(frozen=True)
class Step:
    """One step of the unrolled draft: for chain i of anchor slot `slot[i]` the state that lm_head reads."""

    slot: torch.Tensor  # [c] slot index of the anchor
    normed: torch.Tensor  # [c, hidden_size]


def unroll(head: DraftHead, batch: Batch, slots: Slots, anchors: torch.Tensor, num_steps: int) -> list[Step]:
    """Step 0 for all slots, steps 1 to num_steps - 1 for `anchors` (slot indices, ascending).

    Tokens past a conversation's end are never read: an anchor with fewer tokens left takes its last token again, and
    the caller leaves those steps out of the loss.
    """
    feature = head.fuse(batch.captured[slots.row])
    projections = head.project(feature, batch.token_ids[slots.row + 1], slots.position)
    context = slots.context(projections)
    states = head.finish(feature, causal_attention(slots, projections, context, head.scale))
    steps = [Step(torch.arange(len(slots.row), device=slots.row.device), states.normed)]
    if num_steps == 1 or len(anchors) == 0:
        return steps
    chains = Chains(slots, anchors, context, head.scale)
    feedback = states.feedback[anchors]
    for step in range(1, num_steps):
        offset = torch.minimum(torch.full_like(anchors, step + 1), slots.tokens_left[anchors])
        token_ids = batch.token_ids[slots.row[anchors] + offset]
        projections = head.project(feedback, token_ids, slots.position[anchors] + step)
        states = head.finish(feedback, chains.attend(projections))
        feedback = states.feedback
        steps.append(Step(anchors, states.normed))
    return steps
