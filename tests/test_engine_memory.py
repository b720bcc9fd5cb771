"""A step that runs out of memory, wherever it does, leaves every other request with the ids that it would have had."""

from __future__ import annotations

import resource
from dataclasses import replace
from pathlib import Path

import pytest
from support.engine import Request, endless, make_engine, sampling, serve
from support.successor import TARGET, write_successor_draft, write_successor_target

from eagle31rt import _core
from eagle31rt.errors import ResourceError

LONG_PROMPT = 8000  # its activations need about 30 MB, allocated buffer by buffer as the step goes on
NEIGHBOURS = [Request([i + 3, 7, 8], endless(60, temperature=0.7, seed=i)) for i in range(4)]


def _step(engine: _core.Engine, ids: dict[int, list[int]]) -> None:
    for output in engine.step():
        ids.setdefault(output.request_id, []).extend(output.new_token_ids)


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("memory")
    target = write_successor_target(folder / "target", replace(TARGET, max_position_embeddings=16384))
    return target.directory, write_successor_draft(folder / "draft", target).directory


def test_a_step_without_memory_harms_nobody(paths: tuple[Path, Path]) -> None:
    fields = {"num_speculative_tokens": 4, "max_num_batched_tokens": 8192, "kv_cache_memory_bytes": 64 << 20}
    expected = [result.token_ids for result in serve(make_engine(*paths, **fields), NEIGHBOURS)]
    failures = 0
    for megabytes in (1, 6, 14, 20, 25, 30, 35, 45):
        engine = make_engine(*paths, **fields)
        ids: dict[int, list[int]] = {}
        for index, request in enumerate(NEIGHBOURS):
            engine.add_request(index, request.prompt, sampling(**request.params))
        for _ in range(4):
            _step(engine, ids)
        engine.add_request(99, [5] * LONG_PROMPT, sampling(max_tokens=2))
        before = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + (megabytes << 20), before[1]))
        try:
            _step(engine, ids)
        except (ResourceError, MemoryError):
            failures += 1
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)
        engine.check()
        engine.cancel(99)
        while engine.has_unfinished_requests():
            _step(engine, ids)
            engine.check()
        assert [ids[index] for index in range(len(NEIGHBOURS))] == expected
    assert failures > 2
