"""Runs the engine from tests: requests in, ids, finish reasons and metrics out, with every invariant checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eagle31rt import _core, _testing

_MAX_IDLE_STEPS = 200  # steps without any output before a run counts as stuck


@dataclass(frozen=True)
class Request:
    prompt: list[int]
    params: dict[str, Any] = field(default_factory=dict)  # of SamplingParams; constraint: a function that makes one
    arrival: int = 0  # the step before which it is added
    cancel_at: int | None = None  # the step before which it is cancelled
    priority: int = 0  # lower runs first
    preempt_at: tuple[int, ...] = ()  # the steps before which it is preempted, if it runs
    limits: tuple[tuple[int, int], ...] = ()  # (step, most drafts a step from then on); 0: drafting is off


Logprobs = tuple[int, float, int, list[int], list[float]]  # id, log-probability, rank; most probable ids and theirs


@dataclass
class Result:
    token_ids: list[int] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)  # tokens emitted by each step that emitted some
    finish_reason: str = ""
    stop_token_id: int = -1
    text: str = ""
    stop_string: str = ""
    error: str = ""
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_position: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)
    prompt_logprobs: list[Logprobs] = field(default_factory=list)
    num_cached_tokens: int = field(default=0, compare=False)  # depends on who ran before

    @property
    def outcome(self) -> tuple[list[int], str, int]:
        """What plain decoding promises."""
        return self.token_ids, self.finish_reason, self.stop_token_id

    @property
    def outcome_with_text(self) -> tuple[list[int], str, int, str, str]:
        return *self.outcome, self.text, self.stop_string


def make_config(model: str | Path, draft: str | Path = "", **changes: Any) -> _core.EngineConfig:
    config = _core.EngineConfig()
    settings = {"model": str(model), "draft": str(draft), "num_threads": 1, "max_num_seqs": 16, **changes}
    settings.setdefault("kv_cache_memory_bytes", 16 << 20)
    for name, value in settings.items():
        assert hasattr(config, name), f"EngineConfig has no field {name}"
        setattr(config, name, value)
    return config


def make_engine(model: str | Path, draft: str | Path = "", **changes: Any) -> _core.Engine:
    return _core.Engine(make_config(model, draft, **changes))


def sampling(**changes: Any) -> _core.SamplingParams:
    params = _core.SamplingParams()
    for name, value in {"temperature": 0.0, "seed": 0, "max_tokens": 16, **changes}.items():
        assert hasattr(params, name), f"SamplingParams has no field {name}"
        setattr(params, name, value() if name == "constraint" else value)
    return params


def options(**changes: Any) -> _core.RequestOptions:
    result = _core.RequestOptions()
    for name, value in changes.items():
        assert hasattr(result, name), f"RequestOptions has no field {name}"
        setattr(result, name, value)
    return result


def random_prompt(length: int, seed: int = 3) -> list[int]:
    """Ids of the constructed pair's vocabulary (support.successor), without its special ones."""
    ids: list[int] = np.random.default_rng(seed).integers(3, 96, length).tolist()
    return ids


def endless(max_tokens: int, **params: Any) -> dict[str, Any]:
    """Parameters of a request that ends by length only."""
    return {"max_tokens": max_tokens, "ignore_eos": True, **params}


def _logprobs(entry: _core.TokenLogprobs) -> Logprobs:
    return entry.token_id, entry.logprob, entry.rank, list(entry.top_ids), list(entry.top_logprobs)


def record(result: Result, output: _core.StepOutput) -> None:
    assert result.finish_reason == "", f"request {output.request_id} goes on after {result.finish_reason}"
    result.token_ids += output.new_token_ids
    if output.new_token_ids:
        result.runs.append(len(output.new_token_ids))
    result.finish_reason, result.stop_token_id = output.finish_reason, output.stop_token_id
    result.text += output.text
    result.stop_string, result.error = output.stop_string, output.error
    result.logprobs += [_logprobs(entry) for entry in output.logprobs]
    if output.prompt_logprobs:
        assert not result.prompt_logprobs, f"request {output.request_id} has prompt_logprobs twice"
        result.prompt_logprobs = [_logprobs(entry) for entry in output.prompt_logprobs]
    result.num_cached_tokens = output.num_cached_tokens
    metrics = output.metrics
    assert metrics.num_drafts >= result.num_drafts and metrics.num_accepted_tokens >= result.num_accepted_tokens
    result.num_drafts, result.num_draft_tokens = metrics.num_drafts, metrics.num_draft_tokens
    result.num_accepted_tokens = metrics.num_accepted_tokens
    result.num_accepted_tokens_per_position = list(metrics.num_accepted_tokens_per_position)
    assert sum(result.num_accepted_tokens_per_position) == result.num_accepted_tokens <= result.num_draft_tokens


def serve(engine: _core.Engine, requests: Sequence[Request], simple: bool = False) -> list[Result]:
    """Runs all requests to their end, request i under id i; check() after each step; every page must come back."""
    free_pages = engine.info["num_free_pages"]
    results = [Result() for _ in requests]
    waiting = sorted(range(len(requests)), key=lambda i: requests[i].arrival)
    cancels = {i: request.cancel_at for i, request in enumerate(requests) if request.cancel_at is not None}
    step = idle = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and requests[waiting[0]].arrival <= step:
            index = waiting.pop(0)
            request = requests[index]
            engine.add_request(index, request.prompt, sampling(**request.params), options(priority=request.priority))
        for index in [i for i, at in cancels.items() if at <= step and i not in waiting]:
            del cancels[index]
            if engine.cancel(index):
                assert results[index].finish_reason == "", f"request {index} was cancelled after its end"
        for index, request in enumerate(requests):
            if step in request.preempt_at:
                _testing.preempt(engine, index)
            for at, max_drafts in request.limits:
                if step == at:
                    _testing.limit_drafts(engine, index, max_drafts)
        outputs = engine.step_simple() if simple else engine.step()
        engine.check()
        assert len({output.request_id for output in outputs}) == len(outputs), "two outputs of one request in a step"
        for output in outputs:
            record(results[output.request_id], output)
        idle = 0 if outputs or waiting else idle + 1
        assert idle < _MAX_IDLE_STEPS, "the engine makes no progress"
        step += 1
    assert engine.info["num_free_pages"] == free_pages, "KV pages leaked"
    return results


def plain_outcome(plain: _core.Engine, request: Request) -> Result:
    """The oracle: the request alone, one token at a time, by an engine without a draft."""
    return serve(plain, [Request(request.prompt, request.params)], simple=True)[0]


def plain_ids(model: str | Path, prompt: list[int], max_tokens: int, **changes: Any) -> list[int]:
    """Greedy ids past any EOS."""
    params = {"max_tokens": max_tokens, "ignore_eos": True}
    return plain_outcome(make_engine(model, **changes), Request(prompt, params)).token_ids


def run_decoder(
    model: str | Path,
    token_ids: list[int],
    chunks: Sequence[int] | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "float32",
    capture_layers: Sequence[int] = (),
    page_size: int = 16,
    num_threads: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """The target's forward pass: logits [n, V] and captured states [n, A * Ht]; `chunks` add up to n."""
    chunks = list(chunks or [len(token_ids)])
    logits, captured = _testing.run_decoder(
        str(model), token_ids, chunks, dtype, kv_cache_dtype, list(capture_layers), page_size, num_threads
    )
    return np.asarray(logits), np.asarray(captured)


def run_draft(
    model: str | Path,
    draft: str | Path,
    token_ids: list[int],
    num_steps: int,
    chunks: Sequence[int] | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "float32",
    **options: Any,
) -> tuple[np.ndarray, list[int]]:
    """Prefills token_ids[:-1] in `chunks`, then drafts after token_ids[-1]: logits [num_steps, Vd], target ids."""
    chunks = list(chunks or [len(token_ids) - 1])
    logits, ids = _testing.run_draft(
        str(model), str(draft), token_ids, num_steps, chunks, dtype, kv_cache_dtype, **options
    )
    return np.asarray(logits), [int(i) for i in ids]
