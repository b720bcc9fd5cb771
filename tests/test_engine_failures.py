"""A request whose logits are not finite ends with "error" alone: its neighbours go on and pages come back."""

from __future__ import annotations

from pathlib import Path

from support.engine import Request, make_engine, serve
from support.successor import write_overflowing_target


def test_logits_that_overflow_end_their_request_only(tmp_path: Path) -> None:
    engine = make_engine(write_overflowing_target(tmp_path), max_model_len=64)
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
