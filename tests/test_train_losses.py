"""The loss: its value, its gradient, what it counts, and whose distribution it teaches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import TargetSpec, write_target
from support.engine import run_decoder

torch = pytest.importorskip("torch")
from eagle31rt.errors import CheckpointError  # noqa: E402
from eagle31rt.training.attention import GroupedSizes  # noqa: E402
from eagle31rt.training.closed_form import closed_form_start  # noqa: E402
from eagle31rt.training.head import DraftHead, HeadSizes  # noqa: E402
from eagle31rt.training.latent_attention import LatentSizes  # noqa: E402
from eagle31rt.training.losses import Teacher, choose_anchors, step_losses, weighted_loss  # noqa: E402
from eagle31rt.training.rope import Rope  # noqa: E402
from eagle31rt.training.target import TargetSizes, TargetTensors  # noqa: E402
from eagle31rt.training.unroll import Batch, Slots, causal_attention, unroll  # noqa: E402

pytestmark = pytest.mark.dev

HIDDEN, VOCAB, DRAFT_VOCAB, STEPS = 16, 40, 24, 4
GQA, MLA = GroupedSizes(num_kv_heads=2, head_dim=8), LatentSizes(16, 24, 8, 8, 16)
LENGTHS = [9, 30, 2, 14]


def head_sizes(attention: GroupedSizes | LatentSizes, hidden: int = HIDDEN) -> HeadSizes:
    rope = Rope(1e4, interleaved=isinstance(attention, LatentSizes))
    return HeadSizes(hidden, 24, 4, attention, VOCAB, DRAFT_VOCAB, 128, 1e-5, rope, (1, 2), True, True)


def make_head(attention: GroupedSizes | LatentSizes = GQA) -> DraftHead:
    torch.manual_seed(0)
    return DraftHead(head_sizes(attention), torch.randn(VOCAB, HIDDEN), max_tokens=64)


def make_batch(seed: int = 1) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    n = sum(LENGTHS)
    token_ids = torch.randint(0, VOCAB, (n,), generator=generator)
    counted = torch.rand(n, generator=generator) < 0.7
    captured = torch.randn(n, 2 * HIDDEN, generator=generator)
    return Batch(token_ids, counted, captured, torch.randn(n, HIDDEN, generator=generator), LENGTHS)


def make_teacher() -> Teacher:
    return Teacher(torch.randn(DRAFT_VOCAB, HIDDEN, generator=torch.Generator().manual_seed(2)), 1e-5)


def plain_losses(head: DraftHead, teacher: Teacher, batch: Batch, anchors: torch.Tensor) -> list[torch.Tensor]:
    """Position by position, with torch's own cross-entropy: the mean of every step."""
    slots = Slots(batch)
    ends = np.cumsum(batch.lengths)
    result = []
    for k, step in enumerate(unroll(head, batch, slots, anchors, STEPS)):
        terms = []
        for state, slot in zip(step.normed, step.slot.tolist(), strict=True):
            row = int(slots.row[slot])
            end = int(ends[np.searchsorted(ends, row, side="right")])
            if row + k + 2 < end and batch.counted[row + k + 2]:
                wanted = teacher.probabilities(batch.last[row + k + 1])
                terms.append(torch.nn.functional.cross_entropy(head.lm_head(state), wanted))
        result.append(torch.stack(terms).mean())
    return result


@pytest.mark.parametrize("attention", [GQA, MLA], ids=["gqa", "mla"])
def test_loss_and_gradient(attention: GroupedSizes | LatentSizes) -> None:
    head, teacher, batch = make_head(attention), make_teacher(), make_batch()
    losses = step_losses(head, teacher, batch, STEPS, 1.0, torch.Generator().manual_seed(3))
    weighted_loss(losses, 0.8).backward()
    gradients = {name: parameter.grad.clone() for name, parameter in head.named_parameters()}
    head.zero_grad()
    anchors = choose_anchors(batch, Slots(batch), 1.0, torch.Generator().manual_seed(3))
    plain = plain_losses(head, teacher, batch, anchors)
    for step, expected in zip(losses, plain, strict=True):
        assert step.loss.item() / step.predictions == pytest.approx(expected.item(), rel=1e-5)
    sum(0.8**k * loss for k, loss in enumerate(plain)).backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad.abs().max() > 0, name
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_bfloat16_products_change_little() -> None:
    """Loss within 0.5 %, gradients within a few roundings of 2^-8; parameters and gradients stay float32."""
    teacher, batch = make_teacher(), make_batch()
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        head = make_head()
        head.compute_in(dtype)
        loss = weighted_loss(step_losses(head, teacher, batch, STEPS, 1.0, torch.Generator().manual_seed(3)), 0.8)
        loss.backward()
        assert all(parameter.grad.dtype == torch.float32 for parameter in head.parameters())
        results.append((loss.item(), {name: parameter.grad for name, parameter in head.named_parameters()}))
    (exact, gradients), (rounded, rounded_gradients) = results
    assert rounded != exact and rounded == pytest.approx(exact, rel=5e-3)
    for name, gradient in gradients.items():
        assert (rounded_gradients[name] - gradient).norm() < 0.03 * gradient.norm(), name


@pytest.mark.parametrize("attention", [GQA, MLA], ids=["gqa", "mla"])
def test_chains_do_not_see_each_other(attention: GroupedSizes | LatentSizes) -> None:
    """Any subset of anchors gives each chain the same states."""
    head, batch = make_head(attention), make_batch()
    slots = Slots(batch)
    anchors = choose_anchors(batch, slots, 1.0, torch.Generator().manual_seed(3))
    with torch.no_grad():
        whole = unroll(head, batch, slots, anchors, STEPS)
        for subset in ([0], [3, 5], [1, len(anchors) - 1]):
            part = unroll(head, batch, slots, anchors[subset], STEPS)
            for some, all_ in zip(part[1:], whole[1:], strict=True):
                torch.testing.assert_close(some.normed, all_.normed[subset], rtol=1e-5, atol=1e-6)


def test_states_do_not_see_later_tokens() -> None:
    head, batch = make_head(), make_batch()
    slots = Slots(batch)
    position = 12  # in the second conversation
    row = LENGTHS[0] + position
    changed = Batch(batch.token_ids.clone(), batch.counted, batch.captured.clone(), batch.last, batch.lengths)
    changed.token_ids[row + STEPS + 1 :] = 1
    changed.captured[row + 1 :] = 7.0
    anchors = torch.tensor([LENGTHS[0] - 1 + position])
    with torch.no_grad():
        for k, (a, b) in enumerate(
            zip(unroll(head, batch, slots, anchors, STEPS), unroll(head, changed, slots, anchors, STEPS), strict=True)
        ):
            index = int(anchors) if k == 0 else 0
            assert torch.equal(a.normed[index], b.normed[index]), k


def test_anchors_are_a_share_of_what_counts() -> None:
    batch = make_batch()
    slots = Slots(batch)
    all_ = choose_anchors(batch, slots, 1.0, torch.Generator().manual_seed(0))
    assert all(batch.counted[slots.row[all_] + 3]) and all(slots.tokens_left[all_] >= 3)
    some = choose_anchors(batch, slots, 0.5, torch.Generator().manual_seed(0))
    assert len(some) == round(len(all_) / 2) and set(some.tolist()) < set(all_.tolist())
    assert not torch.equal(some, choose_anchors(batch, slots, 0.5, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("num_ids", [1, 3, 30])
@pytest.mark.parametrize("attention", [GQA, MLA], ids=["gqa", "mla"])
def test_closed_form_starts_from_little_data(attention: GroupedSizes | LatentSizes, num_ids: int) -> None:
    """Fewer different tokens than dimensions: moments whose smallest eigenvalues float32 sums leave below zero."""
    hidden = 256
    torch.manual_seed(0)
    head = DraftHead(head_sizes(attention, hidden), torch.randn(VOCAB, hidden), max_tokens=64)
    n = 60
    batches = [
        Batch(torch.arange(n) % num_ids, torch.ones(n).bool(), torch.randn(n, 2 * hidden), torch.randn(n, hidden), [n])
        for _ in range(8)
    ]
    assert closed_form_start(head, batches, 0) == 8 * (n - 2)
    assert all(torch.isfinite(parameter).all() for parameter in head.parameters())
    own = head.midlayer.self_attn
    values = own.kv_a_proj_with_mqa if attention is MLA else own.v_proj
    assert values.weight[:, :hidden].abs().max() > 1e-3


@pytest.mark.parametrize("q_lora_rank", [None, 24, 64, 160])
def test_closed_form_of_a_latent_head_is_the_regression(q_lora_rank: int | None) -> None:
    """Where the next state is linear in the token, attention gives that state: slots attend to themselves, with a score
    of about 9 in every head, and the norm of the latent changes no scale."""
    hidden, n = 64, 1500
    generator = torch.Generator().manual_seed(5)
    embedding = torch.randn(200, hidden, generator=generator)
    sizes = replace(head_sizes(LatentSizes(q_lora_rank, 64, 128, 8, 16), hidden), vocab_size=200)
    torch.manual_seed(0)
    head = DraftHead(sizes, embedding, max_tokens=64)
    token_ids = torch.randint(0, 200, (n,), generator=generator)
    unit = torch.nn.functional.rms_norm(embedding, (hidden,))
    wanted = unit[token_ids] @ (torch.randn(hidden, hidden, generator=generator) * torch.linspace(1.0, 0.05, hidden))
    wanted = torch.nn.functional.rms_norm(wanted, (hidden,))
    captured = torch.randn(n, 2 * hidden, generator=generator)
    batch = Batch(token_ids, torch.ones(n).bool(), captured, wanted, [50] * (n // 50))
    closed_form_start(head, [batch], 0)
    slots = Slots(batch)
    with torch.no_grad():
        feature = head.fuse(captured[slots.row])
        projections = head.project(feature, token_ids[slots.row + 1], slots.position)
        scores = (projections.query * projections.key).sum(-1) * head.scale  # [slots, heads], with itself
        attended = causal_attention(slots, projections, slots.context(projections), head.scale)
        found = head.midlayer.self_attn.o_proj(attended)
    expected = wanted[slots.row + 1]
    similarity = torch.nn.functional.cosine_similarity(found, expected, dim=-1).mean()
    scale = (found * expected).sum() / expected.pow(2).sum()
    assert scores.mean(0).numpy() == pytest.approx(9.0, rel=0.1)
    assert similarity > 0.99 and 0.9 < scale < 1.1, (similarity, scale)


def test_closed_form_refuses_states_that_are_not_finite() -> None:
    batch = make_batch()
    batch.captured[3] = float("inf")
    with pytest.raises(CheckpointError, match="states are not finite"):
        closed_form_start(make_head(), [batch], 0)


def test_teacher_is_the_target(tmp_path: Path) -> None:
    """Softmax over the kept ids of the engine's own logits, from the last captured state."""
    spec = TargetSpec(num_layers=4, vocab_size=90)
    target = write_target(tmp_path / "target", spec).directory
    token_ids = np.random.default_rng(0).integers(0, 90, 40).tolist()
    logits, states = run_decoder(target, token_ids, capture_layers=[4])
    kept = torch.arange(3, 90, 2)
    tensors = TargetTensors.read(target)
    teacher = Teacher(tensors.folded_head(kept), TargetSizes.read(target).rms_norm_eps)
    expected = torch.softmax(torch.from_numpy(logits)[:, kept], -1)
    torch.testing.assert_close(teacher.probabilities(torch.from_numpy(states)), expected, rtol=1e-4, atol=1e-6)
