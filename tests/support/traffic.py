"""Random traffic over the constructed pair (support.successor): requests, engines for it, and the oracle's answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from eagle31rt import _core
from support.engine import Request, Result, make_config, make_engine, plain_outcome, serve
from support.successor import write_successor_draft, write_successor_target

MAX_MODEL_LEN = 96
MAX_DRAFTS = 8
DETERMINISTIC = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=500,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
_OFF_AND_ON = tuple((step, step % 3 * 2) for step in range(40))  # drafting is off in every third step
Traffic = tuple[list[Request], list[int], dict[str, Any]]


class Models:
    """The pair, the oracle, and engines that are kept: a later example runs in the memory that earlier ones left."""

    def __init__(
        self,
        folder: Path,
        dtype: str,
        make: Callable[[_core.EngineConfig], _core.Engine] = _core.Engine,
        **changes: Any,
    ) -> None:
        target = write_successor_target(folder / "target")
        draft = write_successor_draft(folder / "draft", target)
        self.pair = (target.directory, draft.directory)
        self.common = {"dtype": dtype, "max_model_len": MAX_MODEL_LEN}
        self.plain = make_engine(target.directory, **self.common)
        self.drafted = self.accepted = 0
        self.make = make
        self.changes = changes
        self._engines: dict[tuple[Any, ...], _core.Engine] = {}

    def engine(self, sequences: int, **changes: Any) -> _core.Engine:
        """An engine with KV pages for so many full sequences."""
        key = (sequences, *sorted((name, str(value)) for name, value in changes.items()))
        if key not in self._engines:
            config = {**self.common, "num_speculative_tokens": MAX_DRAFTS, **self.changes, **changes}
            info = make_engine(*self.pair, **{**config, "kv_cache_memory_bytes": 1 << 20}).info
            bytes_per_page = info["kv_cache_bytes"] // info["num_pages"]
            pages = -(-MAX_MODEL_LEN // config["page_size"])
            config["kv_cache_memory_bytes"] = pages * sequences * bytes_per_page
            self._engines[key] = self.make(make_config(*self.pair, **config))
        return self._engines[key]

    def serve(self, traffic: Traffic, **changes: Any) -> None:
        """All requests in one engine: the ids of each are those of plain decoding, alone."""
        requests, stops, engine = traffic
        requests = self.with_stops(requests, stops)
        for request, result in zip(requests, serve(self.engine(**engine, **changes), requests), strict=True):
            self.compare(request, result)

    def with_stops(self, requests: list[Request], stops: list[int]) -> list[Request]:
        return [self._with_stop(request, place) for request, place in zip(requests, stops, strict=True)]

    def _with_stop(self, request: Request, place: int) -> Request:
        """A request that ends inside its own plain output, if it is long enough."""
        if place < 0:
            return request
        output = plain_outcome(self.plain, plain(request)).token_ids
        if place >= len(output):
            return request
        return replace(request, params={**request.params, "stop_token_ids": [output[place], 5]})

    def compare(self, request: Request, result: Result) -> None:
        """Its ids are those of plain decoding, alone."""
        self.drafted += result.num_draft_tokens
        self.accepted += result.num_accepted_tokens
        expected = plain_outcome(self.plain, plain(request))
        if request.cancel_at is not None and result.finish_reason in ("", "abort"):
            assert result.token_ids == expected.token_ids[: len(result.token_ids)], request
            return
        assert result.outcome == expected.outcome, request
        assert result.num_accepted_tokens + result.num_drafts <= len(result.token_ids), request


def plain(request: Request) -> Request:
    """Without what an engine without a draft refuses."""
    return replace(request, params={k: v for k, v in request.params.items() if k != "num_speculative_tokens"})


@st.composite
def _requests(draw: st.DrawFn, max_drafts: int) -> Request:
    """Half of the requests are greedy; prompts are short or near a page edge, sometimes close to max_model_len."""
    length = draw(st.sampled_from([1, 2, 5, 15, 16, 17, 31, 33, 70]))
    prompt = np.random.default_rng(draw(st.integers(0, 7))).integers(0, 96, length).tolist()  # a prefix of 70 ids
    params: dict[str, Any] = {
        "max_tokens": draw(st.sampled_from([1, 2, 3, 7, 16, 24, 40])),
        "num_speculative_tokens": draw(st.integers(-1, max_drafts)),
        "seed": draw(st.sampled_from([0, 1, 2, 2**63, 2**64 - 1])),
        "ignore_eos": draw(st.booleans()),
    }
    if draw(st.booleans()):
        params["temperature"] = draw(st.sampled_from([0.3, 0.7, 1.0, 1.5]))
        params["top_k"] = draw(st.sampled_from([0, 0, 1, 5]))
        params["top_p"] = draw(st.sampled_from([1.0, 1.0, 0.8]))
        params["min_p"] = draw(st.sampled_from([0.0, 0.0, 0.1]))
    if draw(st.integers(0, 3)) == 0:
        params["min_tokens"] = draw(st.integers(0, params["max_tokens"]))
    cancel = draw(st.integers(0, 12)) if draw(st.integers(0, 9)) == 0 else None
    arrival = draw(st.sampled_from([0, 0, 0, 1, 2, 5, 9]))
    priority = draw(st.sampled_from([0, 0, 0, -3, 7]))
    preempt_at = draw(st.sampled_from([(), (), (2,), (1, 4, 6), tuple(range(3, 40, 3))]))
    limits = draw(st.sampled_from([(), (), ((0, 0), (9, 8)), ((4, 0), (12, 8), (15, 0), (22, 3)), _OFF_AND_ON]))
    return Request(prompt, params, arrival, cancel, priority, preempt_at, limits)


@st.composite
def traffic(draw: st.DrawFn, max_drafts: int = MAX_DRAFTS) -> Traffic:
    """(requests, for each the place in its plain output whose id becomes a stop id or -1, engine settings)."""
    requests = draw(st.lists(_requests(max_drafts), min_size=1, max_size=16))
    stops = [draw(st.sampled_from([-1, -1, 0, 1, 2, 4, 7])) for _ in requests]
    engine = {
        "page_size": draw(st.sampled_from([1, 16])),
        "max_num_seqs": draw(st.sampled_from([1, 2, 4, 16])),
        "max_num_batched_tokens": draw(st.sampled_from([1, 7, 16, 40, 64, 512])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
        "num_threads": draw(st.sampled_from([1, 1, 2])),
        "kept_features_memory_bytes": draw(st.sampled_from([-1, -1, 0, 20000])),
        "sequences": draw(st.sampled_from([1, 3, 16])),  # room in the KV pool
    }
    return requests, stops, engine
