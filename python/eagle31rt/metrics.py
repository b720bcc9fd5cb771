"""Prometheus metrics of a server: vLLM's names and meanings with the prefix eagle31rt: (docs/serving.md lists them).

Needs the extra [server]. Each ServerMetrics has a registry of its own, so that several servers can live in one process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from eagle31rt._core import SpeculationMetrics, StepOutput
    from eagle31rt.request import Request, Sample

logger = logging.getLogger("eagle31rt.metrics")

_PREFIX = "eagle31rt:"
# Metrics that vLLM does not have; they get no name of its.
_OWN = frozenset(
    ("spec_decode_draft_acceptance_rate", "http_requests", "prefix_cache_pages", "step_seconds", "decode_steps")
)
_STEP_PARTS = ("draft", "verify", "sample", "host")
_STEP_REASONS = ("fixed", "no_draft", "plain", "best", "probe", "back_off")

# vLLM's, in seconds
_FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
_TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_SAMPLES_BUCKETS = (1, 2, 5, 10, 20)

LOW_ACCEPTANCE_RATE = 0.7
_DRAFTS_PER_WINDOW = 500
_LOW_WINDOWS = 3


class EngineFacts(Protocol):
    """What of an AsyncLLM is shown at each scrape."""

    @property
    def stats(self) -> dict[str, int]: ...

    @property
    def info(self) -> dict[str, object]: ...


@dataclass
class _Progress:
    """One sample on its way. Times are of time.monotonic()."""

    submitted: float
    first_token: float | None = None
    last_token: float = 0.0
    first_run: float = 0.0  # when the engine took it in
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_per_position: Sequence[int] = ()


class AcceptanceWatch:
    """The acceptance rate of a draft, lately; says once in the log when it stays low."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """For a new draft."""
        self.rate: float | None = None  # of the last full window; None before the first
        self._num_drafts = self._num_draft_tokens = self._num_accepted = 0
        self._num_low_windows = 0
        self._warned = False

    def add(self, num_drafts: int, num_draft_tokens: int, num_accepted: int) -> None:
        self._num_drafts += num_drafts
        self._num_draft_tokens += num_draft_tokens
        self._num_accepted += num_accepted
        if self._num_drafts < _DRAFTS_PER_WINDOW:
            return
        self.rate = self._num_accepted / max(self._num_draft_tokens, 1)
        self._num_drafts = self._num_draft_tokens = self._num_accepted = 0
        self._num_low_windows = self._num_low_windows + 1 if self.rate < LOW_ACCEPTANCE_RATE else 0
        if self._num_low_windows >= _LOW_WINDOWS and not self._warned:
            self._warned = True
            logger.warning(
                "the draft's acceptance rate has stayed under %.2f (now %.2f) for %d drafts, so speculation may not "
                "pay: check that the draft was trained for this target and template (layer ids, norm_output, "
                "rope_theta in its config), retrain it on your own requests (docs/training.md), lower "
                'num_speculative_tokens, or switch it off ("speculative": "off" in a request, no --speculative-config)',
                LOW_ACCEPTANCE_RATE,
                self.rate,
                _LOW_WINDOWS * _DRAFTS_PER_WINDOW,
            )


class ServerMetrics:
    """Collects as the observer of an AsyncLLM; everything but `render` runs in the event loop's thread."""

    def __init__(self, engine: EngineFacts, model_name: str, expose_vllm_metric_names: bool = False) -> None:
        self.acceptance = AcceptanceWatch()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._samples: dict[int, _Progress] = {}
        self._own = CollectorRegistry()
        self._own.register(_EngineCollector(engine, self._labels, self.acceptance))
        self._make_counters()
        self._make_histograms(engine)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(_Renamed(self._own, expose_vllm_metric_names))

    def render(self, accept: str) -> tuple[bytes, str]:
        """The text for a scraper that sent this Accept header, and its media type."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry), media_type

    def on_submit(self, request: Request) -> None:
        self._params_n.observe(request.params.n)
        if request.params.max_tokens is not None:
            self._params_max_tokens.observe(request.params.max_tokens)
        for sample in request.samples:
            self._samples[sample.engine_id] = _Progress(request.submitted_at)

    def on_output(self, request: Request, sample: Sample, step: StepOutput) -> None:
        progress = self._samples[sample.engine_id]
        if step.new_token_ids:
            self._add_tokens(progress, request, step)
        if step.metrics.num_drafts > progress.num_drafts:
            self._add_speculation(progress, step.metrics)
        if step.finish_reason:
            self._finish(request, sample, step.finish_reason)

    def on_cancel(self, request: Request, sample: Sample) -> None:
        self._finish(request, sample, "abort")

    def on_response(self, status: int) -> None:
        """An HTTP request was answered, or began to be."""
        self._http_requests.labels(**self._labels, status=str(status)).inc()

    def _make_counters(self) -> None:
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests that have their first token.")
        self._generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._drafts = self._counter("spec_decode_num_drafts", "Verifications that had drafts.")
        self._draft_tokens = self._counter("spec_decode_num_draft_tokens", "Drafted tokens.")
        self._accepted_tokens = self._counter("spec_decode_num_accepted_tokens", "Accepted draft tokens.")
        labels = tuple(self._labels)
        self._accepted_per_position = Counter(
            f"{_PREFIX}spec_decode_num_accepted_tokens_per_pos",
            "Accepted draft tokens by position in the draft.",
            (*labels, "position"),
            registry=self._own,
        )
        self._success = Counter(
            f"{_PREFIX}request_success", "Ended samples.", (*labels, "finished_reason"), registry=self._own
        )
        self._http_requests = Counter(
            f"{_PREFIX}http_requests", "HTTP requests by status.", (*labels, "status"), registry=self._own
        )

    def _make_histograms(self, engine: EngineFacts) -> None:
        length = engine.info["max_model_len"]
        assert isinstance(length, int)
        tokens = _one_two_five(length)
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From submission to the first token.", _FIRST_TOKEN_BUCKETS
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "Between steps that gave tokens.", _TOKEN_BUCKETS
        )
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Mean time a token after the first, of a sample.", _TOKEN_BUCKETS
        )
        self._latency = self._histogram("e2e_request_latency_seconds", "From submission to the end.", _REQUEST_BUCKETS)
        self._queue = self._histogram(
            "request_queue_time_seconds", "From submission to the first step that took it in.", _REQUEST_BUCKETS
        )
        self._prefill = self._histogram(
            "request_prefill_time_seconds", "From that step to the first token.", _REQUEST_BUCKETS
        )
        self._inference = self._histogram(
            "request_inference_time_seconds", "From that step to the last token.", _REQUEST_BUCKETS
        )
        self._decode = self._histogram(
            "request_decode_time_seconds", "From the first token to the last.", _REQUEST_BUCKETS
        )
        self._request_prompt = self._histogram("request_prompt_tokens", "Prompt tokens of a sample.", tokens)
        self._request_generation = self._histogram("request_generation_tokens", "Generated tokens of a sample.", tokens)
        self._params_n = self._histogram("request_params_n", "Parameter n.", _SAMPLES_BUCKETS)
        self._params_max_tokens = self._histogram("request_params_max_tokens", "Parameter max_tokens.", tokens)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(_PREFIX + name, text, tuple(self._labels), registry=self._own).labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(_PREFIX + name, text, tuple(self._labels), buckets=buckets, registry=self._own)
        return family.labels(**self._labels)

    def _add_tokens(self, progress: _Progress, request: Request, step: StepOutput) -> None:
        now = time.monotonic()
        if progress.first_token is None:
            progress.first_token = now
            progress.first_run = step.first_run_at
            self._first_token.observe(now - progress.submitted)
            self._queue.observe(progress.first_run - progress.submitted)
            self._prefill.observe(now - progress.first_run)
            self._prompt_tokens.inc(len(request.token_ids))
        else:
            self._inter_token.observe(now - progress.last_token)
        progress.last_token = now
        self._generation_tokens.inc(len(step.new_token_ids))

    def _add_speculation(self, progress: _Progress, totals: SpeculationMetrics) -> None:
        drafts = totals.num_drafts - progress.num_drafts
        draft_tokens = totals.num_draft_tokens - progress.num_draft_tokens
        accepted = totals.num_accepted_tokens - progress.num_accepted_tokens
        self._drafts.inc(drafts)
        self._draft_tokens.inc(draft_tokens)
        self._accepted_tokens.inc(accepted)
        self.acceptance.add(drafts, draft_tokens, accepted)
        per_position = list(totals.num_accepted_tokens_per_position)
        before = progress.num_accepted_per_position or [0] * len(per_position)
        for position, (new, old) in enumerate(zip(per_position, before, strict=True)):
            if new > old:
                self._accepted_per_position.labels(**self._labels, position=str(position)).inc(new - old)
        progress.num_drafts, progress.num_draft_tokens = totals.num_drafts, totals.num_draft_tokens
        progress.num_accepted_tokens, progress.num_accepted_per_position = totals.num_accepted_tokens, per_position

    def _finish(self, request: Request, sample: Sample, reason: str) -> None:
        progress = self._samples.pop(sample.engine_id)
        self._success.labels(**self._labels, finished_reason=reason).inc()
        num_tokens = len(sample.output.token_ids)
        self._latency.observe(time.monotonic() - progress.submitted)
        self._request_prompt.observe(len(request.token_ids))
        self._request_generation.observe(num_tokens)
        if progress.first_token is not None:
            decode = progress.last_token - progress.first_token
            self._decode.observe(decode)
            self._inference.observe(progress.last_token - progress.first_run)
            if num_tokens > 1:
                self._per_token.observe(decode / (num_tokens - 1))


def _one_two_five(largest: int) -> list[float]:
    """1, 2, 5, 10, 20, ... up to `largest`."""
    values = (mantissa * 10**exponent for exponent in range(10) for mantissa in (1, 2, 5))
    return [float(value) for value in values if value <= largest] or [1.0]


class _EngineCollector(Collector):
    """Gauges and totals that the engine itself counts, read at each scrape."""

    def __init__(self, engine: EngineFacts, labels: dict[str, str], acceptance: AcceptanceWatch) -> None:
        self._engine = engine
        self._labels = labels
        self._acceptance = acceptance

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        pages = max(stats["num_pages"], 1)
        yield self._gauge("num_requests_running", "Requests in the running batch.", stats["num_running"])
        yield self._gauge("num_requests_waiting", "Requests that wait for a place.", stats["num_waiting"])
        usage = stats["num_used_pages"] / pages
        yield self._gauge("kv_cache_usage_perc", "KV pages that requests hold; 1 = all.", usage)
        cached = stats["num_cached_pages"]
        yield self._gauge("prefix_cache_pages", "KV pages kept for the prefix cache only.", cached)
        yield self._total("num_preemptions", "Preemptions.", stats["num_preemptions"])
        yield self._total("prefix_cache_queries", "Prompt tokens looked up.", stats["prefix_cache_queries"])
        yield self._total("prefix_cache_hits", "Of these, served by the cache.", stats["prefix_cache_hits"])
        seconds = {part: stats[f"{part}_nanoseconds"] / 1e9 for part in _STEP_PARTS}
        yield self._totals("step_seconds", "Time of engine steps by part.", "part", seconds)
        steps = {reason: stats[f"num_{reason}_steps"] for reason in _STEP_REASONS}
        yield self._totals("decode_steps", "Decoding steps by why they had their drafts.", "reason", steps)
        if self._acceptance.rate is not None:
            text = "Accepted of drafted tokens, in the last window of drafts."
            yield self._gauge("spec_decode_draft_acceptance_rate", text, self._acceptance.rate)
        info = self._engine.info
        facts = {name: str(info[name]) for name in ("num_pages", "page_size", "kv_cache_dtype")}
        config = InfoMetricFamily(f"{_PREFIX}cache_config", "Size of the KV cache.", labels=tuple(self._labels))
        config.add_metric(tuple(self._labels.values()), facts)
        yield config

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(_PREFIX + name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family

    def _totals(self, name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
        family = CounterMetricFamily(_PREFIX + name, text, labels=(*self._labels, label))
        for key, value in values.items():
            family.add_metric((*self._labels.values(), key), value)
        return family

    def _total(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(_PREFIX + name, text, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), value)
        return family


class _Renamed(Collector):
    """Another registry's metrics, on request a second time under vLLM's names."""

    def __init__(self, source: CollectorRegistry, with_vllm_names: bool) -> None:
        self._source = source
        self._with_vllm_names = with_vllm_names

    def collect(self) -> Iterable[Metric]:
        for family in self._source.collect():
            yield family
            name = family.name.removeprefix(_PREFIX)
            if self._with_vllm_names and name not in _OWN:
                renamed = Metric(f"vllm:{name}", family.documentation, family.type, family.unit)
                renamed.samples = [
                    sample._replace(name=f"vllm:{sample.name.removeprefix(_PREFIX)}") for sample in family.samples
                ]
                yield renamed
