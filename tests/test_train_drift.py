"""The bench of attention drift on a tiny pair: what it measures are the states and weights of the unrolled head."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.engine import run_decoder, run_draft

from eagle31rt import _testing

torch = pytest.importorskip("torch")
from eagle31rt.training.load import load_head  # noqa: E402
from eagle31rt.training.target import TargetSizes, TargetTensors  # noqa: E402
from eagle31rt.training.unroll import Batch, Slots, unroll  # noqa: E402

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "bench"))
import drift  # noqa: E402

pytestmark = pytest.mark.dev

DEPTH, FIRST = 5, 9


@pytest.mark.parametrize("updated", [False, True])
def test_drift_measures_the_unrolled_head(tmp_path: Path, updated: bool) -> None:
    target = write_target(tmp_path / "target", TargetSpec(num_layers=7, max_position_embeddings=128))
    spec = DraftSpec(head_dim=8, own_head=True, fc_norm=updated, norm_output=updated)
    spec = DraftSpec(**{**spec.__dict__, "config": {"max_position_embeddings": 128}})
    draft = write_draft(tmp_path / "draft", target, spec).directory
    head, _ = load_head(draft, TargetSizes.read(target.directory), TargetTensors.read(target.directory), 128)
    tokens = np.random.default_rng(1).integers(0, 96, 40).tolist()
    states = torch.from_numpy(run_decoder(target.directory, tokens, capture_layers=head.sizes.capture_layers)[1])
    batch = Batch(torch.tensor(tokens), torch.ones(40, dtype=torch.bool), states, states, [40])
    rows = drift.drift(head, batch, FIRST, DEPTH)

    slots = Slots(batch)
    anchors = torch.arange(FIRST, len(slots.row) - DEPTH)
    with torch.no_grad():
        steps = unroll(head, batch, slots, anchors, DEPTH)
    normed = [steps[0].normed[anchors], *(step.normed for step in steps[1:])]
    for depth, row in enumerate(rows):
        if updated:  # the fed-back state is the normed one
            expected = normed[depth].pow(2).mean(-1).sqrt().mean().item()
            assert row["magnitude"] == pytest.approx(expected, rel=1e-5)
        assert 0 < row["entropy"] < np.log(40) and 0 < row["sink"] < 1
        assert row["recent"] > row["drifted"] and (row["drifted"] == 0) == (depth == 0)
    magnitudes = [row["magnitude"] for row in rows]
    assert updated or magnitudes[-1] > magnitudes[0], "an unnormed residual stream grows"


def test_agreement_is_that_of_single_drafts(tmp_path: Path) -> None:
    """The known text follows the draft for 0, 1, 2 or 3 tokens, as drafting anew from every length finds."""
    target = write_target(tmp_path / "target", TargetSpec(num_layers=7, max_position_embeddings=128))
    draft = write_draft(tmp_path / "draft", target, DraftSpec(head_dim=8, own_head=True)).directory
    tokens = np.random.default_rng(1).integers(0, 96, 9).tolist()
    for follow in (3, 1, 2):
        tokens += run_draft(target.directory, draft, tokens, follow)[1] + [0]
    probe = _testing.DraftProbe(str(target.directory), str(draft), 64, 1)
    expected = []
    for length in range(9, len(tokens) + 1):
        drafted = run_draft(target.directory, draft, tokens[:length], 3)[1]
        equal = [a == b for a, b in zip(drafted, tokens[length:], strict=False)]
        expected.append(next((n for n, same in enumerate(equal) if not same), len(equal)))
    assert probe.agreement(tokens, 8, 3) == expected
    assert {0, 1, 2, 3} == set(expected)


def test_weights_are_those_of_a_hand_made_case() -> None:
    weights = torch.tensor([[[0.5, 0.125, 0.125, 0.25]]])  # one chain, one head: two context slots, two drafted
    row = drift.measure(weights, torch.tensor([[3.0, 4.0]]), torch.tensor([1]), drafted=2)
    assert row["sink"] == 0.5 and row["drifted"] == 0.375 and row["recent"] == 0.5
    assert row["entropy"] == pytest.approx(0.5 * np.log(2) + 0.25 * np.log(8) + 0.25 * np.log(4))
    assert row["magnitude"] == pytest.approx(12.5**0.5)


def test_conditional_acceptance() -> None:
    assert drift.conditional_acceptance([0, 2, 3, 1, 0, 3, 3, 3], 3) == [[5, 3], [3, 2], [2, 1]]
