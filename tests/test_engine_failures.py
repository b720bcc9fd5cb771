"""A request whose logits are not finite ends with "error" alone: its neighbours go on and pages come back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import target_config, target_weights
from support.engine import Request, make_engine, serve
from support.successor import TARGET
from support.tensors import stored, write_directory


@pytest.fixture
def overflowing_model(tmp_path: Path) -> Path:
    """Finite weights whose logits overflow: +inf or -inf for all ids, by the signs of the position's features."""
    spec = replace(TARGET, dtype="float32")
    weights = target_weights(spec, 0)
    weights["norm.weight"][:] = 1e38
    weights["lm_head.weight"] = np.where(np.arange(spec.hidden_size) % 2 == 0, 1e38, -1e38).astype(
        np.float32
    ) * np.ones((spec.vocab_size, 1), np.float32)
    tensors = {
        (name if name == "lm_head.weight" else spec.prefix + name): stored(values, spec.dtype)
        for name, values in weights.items()
    }
    write_directory(tmp_path, target_config(spec), tensors)
    return tmp_path


def test_logits_that_overflow_end_their_request_only(overflowing_model: Path) -> None:
    engine = make_engine(overflowing_model, max_model_len=64)
    requests = [Request([token, 5]) for token in range(3, 19)]
    together = serve(engine, requests)  # asserts that all pages come back
    failed = [result for result in together if result.finish_reason == "error"]
    # Both kinds are there: logits of -inf or NaN only end a request, a +inf among them can still be chosen.
    assert any(not result.token_ids for result in failed)
    assert any(len(result.token_ids) > 1 for result in together)
    assert all("no finite logit" in result.error for result in failed)
    for request, result in zip(requests, together, strict=True):
        alone = serve(engine, [request], simple=True)[0]
        assert (result.token_ids, result.finish_reason) == (alone.token_ids, alone.finish_reason)
