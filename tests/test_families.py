"""Every family of targets: logits of transformers, chunks that change no bit, speculation that changes no id."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from families import COLUMNS, DOCUMENT, render
from support.checkpoints import TinyCheckpoint, write_draft
from support.engine import Request, Result, make_engine, plain_outcome, run_decoder, serve
from support.families import FAMILIES, write_family
from support.transformers_logits import transformers_logits

# As in test_logits_transformers.py: both round in float32, an error in the model shows as 1e-1 or more.
LOGITS_TOLERANCE = 1e-4
# Past every window of FAMILIES, and past a split of attention (64).
PROMPT_LENGTH = 150
MAX_TOKENS = 12

SHAPES = [(name, shape) for name, family in FAMILIES.items() for shape in range(len(family.shapes))]


@pytest.fixture(params=SHAPES, ids=[f"{name}-{shape}" for name, shape in SHAPES])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> TinyCheckpoint:
    name, shape = request.param
    return write_family(tmp_path / "target", FAMILIES[name], seed=7, shape=shape)


def _prompt(length: int, seed: int = 5) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(3, 96, length).tolist()
    return ids


@pytest.mark.dev
def test_prefill_agrees_with_transformers(target: TinyCheckpoint) -> None:
    prompt = _prompt(PROMPT_LENGTH)
    logits, _ = run_decoder(target.directory, prompt)
    np.testing.assert_allclose(logits, transformers_logits(target.directory, prompt), atol=LOGITS_TOLERANCE, rtol=0)


@pytest.mark.dev
def test_decode_agrees_with_transformers(target: TinyCheckpoint) -> None:
    prompt = _prompt(PROMPT_LENGTH, seed=6)
    logits, _ = run_decoder(target.directory, prompt, chunks=[100, *[1] * 50])
    np.testing.assert_allclose(logits, transformers_logits(target.directory, prompt), atol=LOGITS_TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_change_no_bit(target: TinyCheckpoint, dtype: str) -> None:
    prompt = _prompt(PROMPT_LENGTH)
    whole, _ = run_decoder(target.directory, prompt, kv_cache_dtype=dtype)
    for chunks in ([1] * PROMPT_LENGTH, [7, 64, 1, 78], [149, 1]):
        chunked, _ = run_decoder(target.directory, prompt, chunks=chunks, kv_cache_dtype=dtype)
        np.testing.assert_array_equal(chunked.view(np.uint32), whole.view(np.uint32))


def _requests() -> list[Request]:
    """Eight of several lengths, greedy and sampled."""
    return [
        Request(
            _prompt(length, seed=length),
            {"max_tokens": MAX_TOKENS, "ignore_eos": True, "temperature": float(i % 2), "seed": i},
        )
        for i, length in enumerate((3, 70, 9, 64, 20, 5, 130, 12))
    ]


def _speculate(target: TinyCheckpoint, tmp_path: Path, batch: int) -> list[Result]:
    draft = write_draft(tmp_path / "draft", target, seed=8)
    engine = make_engine(target.directory, draft.directory, num_speculative_tokens=3, max_num_seqs=batch)
    return serve(engine, _requests()[:batch])


def test_speculation_changes_no_id(target: TinyCheckpoint, tmp_path: Path) -> None:
    plain = make_engine(target.directory)
    expected = [plain_outcome(plain, request).outcome for request in _requests()]
    for batch in range(1, len(expected) + 1):
        results = _speculate(target, tmp_path, batch)
        assert [result.outcome for result in results] == expected[:batch], f"at batch size {batch}"


def test_drafts_are_accepted(target: TinyCheckpoint, tmp_path: Path) -> None:
    if target.weights.get("lm_head.weight") is None:
        pytest.skip("nothing makes the draft of a tied head agree")
    results = _speculate(target, tmp_path, 8)
    assert sum(result.num_accepted_tokens for result in results) > 0


def test_the_document_is_up_to_date() -> None:
    for test in COLUMNS.values():
        assert callable(getattr(sys.modules[__name__], test))
    assert DOCUMENT.read_text() == render(), "run python tests/families.py"
