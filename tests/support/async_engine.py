"""Runs requests through an AsyncEngine from tests, with one consumer."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from eagle31rt import _core
from support.engine import Request, Result, make_config, record, sampling

_PATIENCE_SECONDS = 60.0  # far more than any run takes


def make_async_engine(model: str | Path, draft: str | Path = "", **changes: Any) -> _core.AsyncEngine:
    return _core.AsyncEngine(make_config(model, draft, **changes))


def submit(engine: _core.AsyncEngine, request_id: int, request: Request) -> None:
    engine.submit(request_id, request.prompt, sampling(**request.params))


def collect(engine: _core.AsyncEngine, request_ids: Collection[int]) -> dict[int, Result]:
    """Consumes until each of these requests has ended."""
    results = {request_id: Result() for request_id in request_ids}
    while not all(result.finish_reason for result in results.values()):
        outputs = engine.wait_outputs(_PATIENCE_SECONDS)
        assert outputs, "nothing came"
        for output in outputs:
            if output.request_id in results:
                record(results[output.request_id], output)
    return results
