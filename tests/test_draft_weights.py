"""Weights of a draft: spellings, switches, d2t, sharing, and a refusal by name of what would be ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.checkpoints import DraftSpec, TargetSpec, TinyCheckpoint, draft_name, write_draft, write_target
from support.loading import TINY, assert_layer, matrix, rewrite
from support.tensors import Array, stored, write_directory

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor

DRAFT = DraftSpec(capture_layers=(0, 1, 2), intermediate_size=40)  # A * Ht = 72


def test_draft_given_as_target(tmp_path: Path) -> None:
    draft = write_draft(tmp_path / "d", write_target(tmp_path / "t", TINY), DRAFT)
    with pytest.raises(CheckpointError, match="it is a draft; give it as the speculative model"):
        _testing.load_decoder_weights(draft.path)


def pair(tmp_path: Path, spec: DraftSpec = DRAFT, target: TargetSpec = TINY) -> tuple[TinyCheckpoint, TinyCheckpoint]:
    written = write_target(tmp_path / "target", target)
    return written, write_draft(tmp_path / "draft", written, spec)


def load(target: TinyCheckpoint, draft: TinyCheckpoint, **options: Any) -> dict[str, Any]:
    return _testing.load_draft_weights(draft.path, target.path, **options)


DRAFTS: dict[str, DraftSpec] = {
    "plain": DraftSpec(capture_layers=(0, 1, 2)),
    "one state": DraftSpec(num_captured=1),
    "two states, fc_norm": DraftSpec(num_captured=2, fc_norm=True),
    "fc_norm": DraftSpec(capture_layers=(0, 1, 2), fc_norm=True, norm_output=True),
    "norm_before_fc": DraftSpec(capture_layers=(0, 1, 2), norm_before_fc=True),
    "biases": DraftSpec(capture_layers=(0, 1, 2), fc_bias=True, attention_bias=True, mlp_bias=True),
    "own width": DraftSpec(capture_layers=(0, 1, 2), hidden_size=40, num_heads=5, fc_norm=True),
    "own head_dim": DraftSpec(capture_layers=(0, 1, 2), head_dim=16, num_heads=2),
    "own vocabulary": DraftSpec(capture_layers=(0, 1, 2), draft_vocab_size=11),
    "own embedding": DraftSpec(capture_layers=(0, 1, 2), own_embedding=True),
    "own head": DraftSpec(capture_layers=(0, 1, 2), own_head=True),
    "layers spelling": DraftSpec(capture_layers=(0, 1, 2), spelling="layers", fc_norm=True, own_embedding=True),
    "model spelling": DraftSpec(capture_layers=(0, 1, 2), spelling="model", norm_before_fc=True, own_head=True),
    "speculators": DraftSpec(capture_layers=(0, 1, 2), spelling="layers", form="speculators", draft_vocab_size=11),
    "other dtype": DraftSpec(capture_layers=(0, 1, 2), dtype="bfloat16"),
}


@pytest.mark.parametrize("case", DRAFTS)
def test_draft(case: str, tmp_path: Path) -> None:
    target, draft = pair(tmp_path, DRAFTS[case])
    loaded, weights = load(target, draft), draft.weights
    none = np.empty(0)
    assert_layer(loaded["layer"], weights, 0)
    np.testing.assert_array_equal(loaded["fc"], weights["fc.weight"])
    np.testing.assert_array_equal(loaded["fc_bias"], weights.get("fc.bias", none))
    np.testing.assert_array_equal(loaded["final_norm"], weights["norm.weight"])
    chunks = [weights[f"fc_norm.{i}.weight"] for i in range(3) if f"fc_norm.{i}.weight" in weights]
    norm = weights.get("input_norm.weight", np.concatenate(chunks) if chunks else none)
    np.testing.assert_array_equal(loaded["fc_norm"], norm)
    for field, name in (("embedding", "embed_tokens.weight"), ("head", "lm_head.weight")):
        if name in weights:
            np.testing.assert_array_equal(loaded[field], weights[name])
        else:
            assert loaded[field] is None
    kept = np.arange(weights["d2t"].size) + weights["d2t"] if "d2t" in weights else none
    assert loaded["draft_to_target"] == kept.tolist()


def test_older_names_of_the_chunk_norms(tmp_path: Path) -> None:
    target, draft = pair(tmp_path, DraftSpec(capture_layers=(0, 1, 2), fc_norm=True))
    chunks = [draft.weights[f"fc_norm.{i}.weight"] for i in range(3)]
    named = {f"aux_norm_{place}.weight": chunk for place, chunk in zip(("low", "mid", "high"), chunks, strict=True)}
    rewrite(
        draft, {**{f"fc_norm.{i}.weight": None for i in range(3)}, **named}, {"fc_norm": None, "use_aux_norm": True}
    )
    np.testing.assert_array_equal(load(target, draft)["fc_norm"], np.concatenate(chunks))


VOCAB = DraftSpec(capture_layers=(0, 1, 2), draft_vocab_size=5)


def offsets(*targets: int) -> Array:
    return np.array(targets, dtype=np.int64) - np.arange(len(targets), dtype=np.int64)


def test_d2t_of_int32(tmp_path: Path) -> None:
    target, draft = pair(tmp_path, VOCAB)
    values = offsets(0, 1, 7, 35, 36).astype(np.int32)
    rewrite(draft, {"d2t": RawTensor("I32", (5,), values.tobytes()), "t2d": None})
    assert load(target, draft)["draft_to_target"] == [0, 1, 7, 35, 36]


def test_identity_d2t_of_a_whole_vocabulary(tmp_path: Path) -> None:
    target, draft = pair(tmp_path)
    rewrite(draft, {"d2t": np.zeros(37, dtype=np.int64), "t2d": np.ones(37, dtype=np.bool_)})
    assert load(target, draft)["draft_to_target"] == []


def flags(*kept: int) -> Array:
    return np.isin(np.arange(37), kept)


D2T_WRONG: dict[str, tuple[dict[str, RawTensor | Array | None], str]] = {
    "missing": ({"d2t": None}, 'lacks tensor "d2t": the draft has 5 of 37'),
    "float": ({"d2t": np.zeros(5, dtype=np.float32)}, '"d2t" has dtype F32; it must be I64 or I32'),
    "short": ({"d2t": np.zeros(4, dtype=np.int64)}, r'"d2t" has shape \[4\], but the draft vocabulary has 5'),
    "repeated": ({"d2t": offsets(0, 1, 1, 3, 4), "t2d": None}, r'"d2t"\[2\] gives target id 1 after 1'),
    "descending": ({"d2t": offsets(0, 9, 8, 10, 11), "t2d": None}, r'"d2t"\[2\] gives target id 8 after 9'),
    "past the vocabulary": (
        {"d2t": offsets(0, 1, 2, 3, 37), "t2d": None},
        r'"d2t"\[4\] is the offset 33, which leaves',
    ),
    "negative": ({"d2t": offsets(-1, 1, 2, 3, 4), "t2d": None}, r'"d2t"\[0\] is the offset -1'),
    "huge": ({"d2t": np.full(5, 2**63 - 1, dtype=np.int64)}, "offset 9223372036854775807"),
    "lowest": ({"d2t": np.full(5, -(2**63), dtype=np.int64)}, "offset -9223372036854775808"),
    "t2d sum": (
        {"d2t": offsets(0, 1, 2, 3, 4), "t2d": flags(0, 1, 2, 3)},
        '"t2d" keeps 4 tokens, but the draft .* has 5',
    ),
    "t2d of others": ({"d2t": offsets(0, 1, 2, 3, 4), "t2d": flags(0, 1, 2, 3, 9)}, "target id 4, which .* leaves out"),
    "absolute ids": (
        {"d2t": np.array([0, 3, 5, 9, 20]), "t2d": flags(0, 3, 5, 9, 20)},
        "absolute ids instead of offsets",
    ),
    "t2d shape": ({"t2d": np.ones(36, dtype=np.bool_)}, r'"t2d" is BOOL \[36\]; it must be BOOL \[37\]'),
    "t2d dtype": ({"t2d": np.ones(37, dtype=np.float32)}, '"t2d" is F32'),
}


@pytest.mark.parametrize("case", D2T_WRONG)
def test_wrong_d2t(case: str, tmp_path: Path) -> None:
    tensors, message = D2T_WRONG[case]
    target, draft = pair(tmp_path, VOCAB)
    rewrite(draft, tensors)
    with pytest.raises(CheckpointError, match=message):
        load(target, draft)


ONES = np.ones(24)
# changes to the tensors, changes to config.json, message
DRAFT_WRONG: dict[str, tuple[dict[str, RawTensor | Array | None], dict[str, Any], str]] = {
    "fc_norm without switch": (
        {"fc_norm.0.weight": ONES},
        {},
        '"fc_norm.0.weight" is present, but fc_norm is not true',
    ),
    "aux_norm without switch": ({"aux_norm_low.weight": ONES}, {}, '"aux_norm_low.weight" is present, but fc_norm'),
    "switch without fc_norm": ({}, {"fc_norm": True}, "fc_norm is true in config.json, but there is no tensor fc_norm"),
    "input_norm without switch": ({"input_norm.weight": np.ones(72)}, {}, "but norm_before_fc is not true"),
    "switch without input_norm": ({}, {"norm_before_fc": True}, "norm_before_fc is true .* no tensor input_norm"),
    "fc.bias without switch": ({"fc.bias": ONES}, {}, '"fc.bias" is present, but bias is not true'),
    "switch without fc.bias": ({}, {"bias": True}, "bias is true .* no tensor fc.bias"),
    "fc width": ({"fc.weight": np.ones((24, 48))}, {}, '"fc.weight" has 48 columns, but 3 captured .* 24 make 72'),
    "fc rank": ({"fc.weight": np.ones(72)}, {}, r"has shape \[72\]; it must have two dimensions"),
    "no fc": ({"fc.weight": None}, {}, "is not an EAGLE draft: it has no fc.weight"),
    "no hidden_norm": ({"midlayer.hidden_norm.weight": None}, {}, 'lacks .* "layers.0.hidden_norm.weight"'),
    "unused": ({"enorm.weight": ONES}, {}, 'does not ask for: "enorm.weight"'),
    "NaN": ({"fc.weight": matrix(np.nan, 24, 72)}, {}, '"fc.weight" .F32. has 1 values that are NaN'),
    "embedding shape": (
        {"embed_tokens.weight": np.ones((36, 24))},
        {},
        r"\[36, 24\], but config.json asks for \[37, 24\]",
    ),
    "head shape": ({"lm_head.weight": np.ones((36, 24))}, {}, r"\[36, 24\], but config.json asks for \[37, 24\]"),
    "qwen3": ({"midlayer.self_attn.q_norm.weight": np.ones(8)}, {}, "q_norm.weight. belongs to .*qwen3"),
    "MLA": ({"midlayer.self_attn.kv_a_proj_with_mqa.weight": np.ones((4, 48))}, {}, "latent attention"),
    "two layers": ({"layers.1.mlp.x": ONES}, {}, "layer 1 counted from 0, but num_hidden_layers is 1"),
    "two spellings": ({"layers.0.hidden_norm.weight": ONES}, {}, "are the same weight"),
}


@pytest.mark.parametrize("case", DRAFT_WRONG)
def test_wrong_draft(case: str, tmp_path: Path) -> None:
    tensors, config, message = DRAFT_WRONG[case]
    target, draft = pair(tmp_path)
    rewrite(draft, tensors, config)
    with pytest.raises(CheckpointError, match=message):
        load(target, draft)


DRAFT_UNSUPPORTED: dict[str, tuple[dict[str, RawTensor | Array | None], str]] = {
    "P-EAGLE": ({"mask_hidden": np.ones((1, 1, 72))}, '"mask_hidden" belongs to P-EAGLE'),
    "quantised": ({"fc.weight_scale": np.ones(1)}, "quantised"),
    "EAGLE-1": ({"fc.weight": np.ones((24, 48)), "midlayer.self_attn.q_proj.weight": matrix()}, "is an EAGLE-1 head"),
}


@pytest.mark.parametrize("case", DRAFT_UNSUPPORTED)
def test_unsupported_draft(case: str, tmp_path: Path) -> None:
    tensors, message = DRAFT_UNSUPPORTED[case]
    target, draft = pair(tmp_path)
    rewrite(draft, tensors)
    with pytest.raises(UnsupportedError, match=message):
        load(target, draft)


def test_sharing_needs_equal_widths_and_vocabularies(tmp_path: Path) -> None:
    wide = DraftSpec(capture_layers=(0, 1, 2), hidden_size=40, num_heads=5)
    target, draft = pair(tmp_path, wide)
    rewrite(draft, {"embed_tokens.weight": None})
    with pytest.raises(CheckpointError, match=r'"embed_tokens.weight": the draft.s hidden size 40 differs from .* 24'):
        load(target, draft)
    draft = write_draft(tmp_path / "draft", target, wide)
    rewrite(draft, {"lm_head.weight": None})
    with pytest.raises(CheckpointError, match=r'lacks tensor "lm_head.weight"'):
        load(target, draft)
    draft = write_draft(tmp_path / "draft", target, VOCAB)
    rewrite(draft, {"lm_head.weight": None})
    with pytest.raises(CheckpointError, match=r"its vocabulary \(37, the draft has 5\)"):
        load(target, draft)


def test_head_tied_to_an_own_embedding_is_refused(tmp_path: Path) -> None:
    target, draft = pair(tmp_path, DraftSpec(capture_layers=(0, 1, 2), own_embedding=True, own_head=False))
    assert load(target, draft)["head"] is None
    rewrite(draft, {}, {"tie_word_embeddings": True})
    with pytest.raises(UnsupportedError, match="tied to the draft's own embedding"):
        load(target, draft)


def test_whole_model_given_as_draft(tmp_path: Path) -> None:
    """Caught by its config, and by its tensors if the config claims to be a draft."""
    target = write_target(tmp_path / "target", TINY)
    with pytest.raises(CheckpointError, match="is not an EAGLE draft: it describes a whole model of 2 layers"):
        load(target, target)
    claim = write_draft(tmp_path / "draft", target, DRAFT)
    tensors = {draft_name(name, "model"): stored(values, "float32") for name, values in target.weights.items()}
    write_directory(claim.directory, claim.config, tensors)
    with pytest.raises(CheckpointError, match=r"no fc.weight and more than one layer, so it looks like a whole model"):
        load(target, claim)
