"""The trainer's unrolled head against the engine's drafting: same shift, positions, feedback and attention."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, write_draft, write_target
from support.deepseek import DeepseekSizes
from support.engine import run_decoder, run_draft

torch = pytest.importorskip("torch")
from eagle31rt.training.export import export_head  # noqa: E402
from eagle31rt.training.load import load_head  # noqa: E402
from eagle31rt.training.target import TargetSizes, TargetTensors  # noqa: E402
from eagle31rt.training.unroll import Batch, Slots, unroll  # noqa: E402

pytestmark = pytest.mark.dev

TARGET = TargetSpec(num_layers=7, max_position_embeddings=256)
NUM_STEPS = 6
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0}
# As Kimi K2's: cosine and sine stay, scores grow by (0.1 ln 64 + 1)^2.
_KIMI_YARN = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 8, "mscale": 1, "mscale_all_dim": 1}
DRAFTS = {
    "eagle3": DraftSpec(draft_vocab_size=70, head_dim=8),
    "eagle3.1": DraftSpec(draft_vocab_size=70, head_dim=8, fc_norm=True, norm_output=True),
    "whole-vocabulary": DraftSpec(head_dim=8, own_head=True, fc_norm=True, norm_output=True),
    "wide-heads": DraftSpec(draft_vocab_size=50, head_dim=24, num_heads=4, num_kv_heads=1, norm_output=True),
    "small-epsilon": DraftSpec(draft_vocab_size=70, head_dim=8, rms_norm_eps=0.03, rope_theta=70.0),
    "yarn": DraftSpec(draft_vocab_size=70, head_dim=8, rope_theta=70.0, rope_scaling=_YARN),
    "yarn-not-truncated": DraftSpec(
        draft_vocab_size=70, head_dim=8, rope_theta=70.0, rope_scaling={**_YARN, "truncate": False}
    ),
    "mla": DraftSpec(draft_vocab_size=70, graph="deepseek", fc_norm=True, norm_output=True, rms_norm_eps=0.03),
    "mla-one-query-projection": DraftSpec(
        draft_vocab_size=70, graph="deepseek", latent=DeepseekSizes(q_lora_rank=None, kv_lora_rank=16, value=24)
    ),
    "mla-yarn": DraftSpec(draft_vocab_size=70, graph="deepseek", rope_theta=70.0, rope_scaling=_KIMI_YARN),
    "mla-halves": DraftSpec(draft_vocab_size=70, graph="deepseek", config={"rope_interleave": False}),
}
_KEYS = {"max_position_embeddings": 256}
# Engine and trainer both compute in float32, in different orders; the largest logits are about 10.
_TOLERANCE = 2e-4


def _pair(tmp_path: Path, spec: DraftSpec) -> tuple[Path, Path]:
    target = write_target(tmp_path / "target", TARGET, seed=3)
    spec = replace(spec, config={**_KEYS, **spec.config})
    return target.directory, write_draft(tmp_path / "draft", target, spec, seed=4).directory


def _batch(target: Path, sequences: list[list[int]], capture_layers: tuple[int, ...]) -> Batch:
    captured = [run_decoder(target, ids, capture_layers=[*capture_layers, TARGET.num_layers])[1] for ids in sequences]
    states = torch.from_numpy(np.concatenate(captured))
    hidden = TARGET.hidden_size
    token_ids = torch.tensor([i for ids in sequences for i in ids])
    counted = torch.ones(len(token_ids), dtype=torch.bool)
    return Batch(token_ids, counted, states[:, :-hidden], states[:, -hidden:], [len(ids) for ids in sequences])


def _tokens(count: int, seed: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, TARGET.vocab_size, count).tolist()
    return ids


@pytest.mark.parametrize("name", DRAFTS)
def test_every_step_is_the_engines(tmp_path: Path, name: str) -> None:
    """Several conversations and anchors at once, so that packing, masks and rectangles are judged as well."""
    target, draft = _pair(tmp_path, DRAFTS[name])
    sizes = TargetSizes.read(target)
    head, _ = load_head(draft, sizes, TargetTensors.read(target), max_tokens=256)
    wanted: list[np.ndarray] = []
    sequences: list[list[int]] = []
    for seed, length in enumerate((23, 5, 70, 2)):
        tokens = _tokens(length, seed)
        logits, drafted = run_draft(target, draft, tokens, NUM_STEPS)
        wanted.append(logits)
        sequences.append(tokens + drafted)
    batch = _batch(target, sequences, head.sizes.capture_layers)
    slots = Slots(batch)
    # The engine drafts after the last of the `length` tokens: its newest feature is that of position length - 2.
    ends = np.cumsum([0, *(len(ids) - 1 for ids in sequences)])[:-1]
    own = [int(end) + len(ids) - NUM_STEPS - 2 for end, ids in zip(ends, sequences, strict=True)]
    others = [int(ends[2]) + 7, int(ends[2]) + 31, int(ends[0]) + 3]
    anchors = torch.tensor(sorted({*own, *others}))
    with torch.no_grad():
        steps = unroll(head, batch, slots, anchors, NUM_STEPS)
        logits_of = [head.lm_head(step.normed).numpy() for step in steps]
    assert all(np.array_equal(step.slot, anchors) for step in steps[1:])
    for index, slot in enumerate(own):
        place = int((anchors == slot).nonzero())
        for k in range(NUM_STEPS):
            row = logits_of[k][slot if k == 0 else place]
            np.testing.assert_allclose(row, wanted[index][k], rtol=0, atol=_TOLERANCE, err_msg=f"{index} step {k}")


@pytest.mark.parametrize("name", ["eagle3", "eagle3.1"])
def test_wrong_feedback_would_show(tmp_path: Path, name: str) -> None:
    target, draft = _pair(tmp_path, DRAFTS[name])
    head, _ = load_head(draft, TargetSizes.read(target), TargetTensors.read(target), max_tokens=256)
    head.sizes = replace(head.sizes, norm_output=not head.sizes.norm_output)
    tokens = _tokens(20, 9)
    logits, drafted = run_draft(target, draft, tokens, NUM_STEPS)
    batch = _batch(target, [tokens + drafted], head.sizes.capture_layers)
    with torch.no_grad():
        steps = unroll(head, batch, Slots(batch), torch.tensor([18]), NUM_STEPS)
        errors = [np.abs(head.lm_head(s.normed).numpy()[18 if k == 0 else 0] - logits[k]) for k, s in enumerate(steps)]
    assert errors[0].max() < _TOLERANCE
    assert all(error.max() > 100 * _TOLERANCE for error in errors[1:])


def test_exported_head_is_the_head(tmp_path: Path) -> None:
    """bfloat16 weights go through export and engine unchanged, including a scale that is folded into fc."""
    target, draft = _pair(tmp_path, replace(DRAFTS["eagle3"], dtype="bfloat16"))
    sizes = TargetSizes.read(target)
    head, kept = load_head(draft, sizes, TargetTensors.read(target), max_tokens=256)
    with torch.no_grad():
        head.fc_scale.mul_(4.0)
        head.fc.weight.div_(4.0)
    export_head(tmp_path / "exported", head, kept, sizes)
    tokens = _tokens(30, 5)
    logits, ids = run_draft(target, tmp_path / "exported", tokens, NUM_STEPS)
    expected, expected_ids = run_draft(target, draft, tokens, NUM_STEPS)
    assert logits.tobytes() == expected.tobytes() and ids == expected_ids
