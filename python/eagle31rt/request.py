"""What the Python side keeps of a running request: text so far, samples, finish reasons."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from eagle31rt.detokenizer import IncrementalDetokenizer
from eagle31rt.logprobs import Logprob, TokenDecoder, logprob_dict, prompt_logprob_list
from eagle31rt.outputs import CompletionOutput, RequestMetrics, RequestOutput
from eagle31rt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from eagle31rt._core import StepOutput
    from eagle31rt.core_params import PreparedParams


class Sample:
    """One of the n samples of a request; an engine request of its own."""

    def __init__(
        self,
        engine_id: int,
        index: int,
        detokenizer: IncrementalDetokenizer | None,
        silent_stop_ids: frozenset[int],
        decode_token: TokenDecoder | None = None,
        wants_logprobs: bool = False,
        whole_text: Callable[[list[int]], str] | None = None,
    ) -> None:
        """`detokenizer`: None if the engine makes the text, or nobody shall.

        `silent_stop_ids`: ends of sequence, which vLLM does not report as `stop_reason`. `decode_token` gives the
        texts of log-probabilities. `whole_text` gives the text of all ids, if the engine makes it.
        """
        self.engine_id = engine_id
        self.output = CompletionOutput(index=index, text="", token_ids=[])
        if wants_logprobs:
            self.output.logprobs, self.output.cumulative_logprob = [], 0.0
        self.num_cached_tokens = 0
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._decode_token = decode_token
        self.metrics = RequestMetrics()
        self._detokenizer = detokenizer
        self._silent_stop_ids = silent_stop_ids
        self._whole_text = whole_text

    @property
    def finished(self) -> bool:
        return self.output.finish_reason is not None

    def apply(self, step: StepOutput) -> None:
        """Adds what one engine step gave. The stop token counts among the ids but leaves no text."""
        self.output.token_ids.extend(step.new_token_ids)
        self.output.text += step.text
        if self._detokenizer is not None:
            shown = step.new_token_ids
            if step.finish_reason == "stop" and shown and shown[-1] == step.stop_token_id:
                shown = shown[:-1]
            self.output.text += self._detokenizer.add(shown)
        self._add_logprobs(step)
        self.num_cached_tokens = max(self.num_cached_tokens, step.num_cached_tokens)
        counters = step.metrics
        self.metrics = RequestMetrics(
            num_drafts=counters.num_drafts,
            num_draft_tokens=counters.num_draft_tokens,
            num_accepted_tokens=counters.num_accepted_tokens,
            num_accepted_tokens_per_position=list(counters.num_accepted_tokens_per_position),
        )
        if step.finish_reason:
            self._finish(step)

    def abort(self) -> None:
        """Ends it here: no further output comes."""
        self.output.finish_reason = "abort"
        self._complete_text()

    def _complete_text(self) -> None:
        """Adds what was held back as the possible beginning of a stop string or of a character."""
        if self._detokenizer is not None:
            self.output.text += self._detokenizer.finish()
        elif self._whole_text is not None and self.output.finish_reason == "abort":
            text = self._whole_text(self.output.token_ids)
            if text.startswith(self.output.text):
                self.output.text = text

    def _add_logprobs(self, step: StepOutput) -> None:
        if step.prompt_logprobs:
            self.prompt_logprobs = prompt_logprob_list(step.prompt_logprobs, self._decode_token)
        if self.output.logprobs is None or self.output.cumulative_logprob is None:
            return
        for entry in step.logprobs:
            self.output.logprobs.append(logprob_dict(entry, self._decode_token))
            self.output.cumulative_logprob += entry.logprob

    def _finish(self, step: StepOutput) -> None:
        self.output.finish_reason = step.finish_reason
        self._complete_text()
        if step.finish_reason == "error":
            self.output.stop_reason = step.error
        elif step.stop_string:
            self.output.stop_reason = step.stop_string
        elif step.stop_token_id >= 0 and step.stop_token_id not in self._silent_stop_ids:
            self.output.stop_reason = step.stop_token_id


class Request:
    """One prompt with its samples, before and while it runs."""

    def __init__(
        self,
        text: str | None,
        token_ids: list[int],
        params: SamplingParams,
        prepared: PreparedParams,
        priority: int = 0,
    ) -> None:
        """`priority`: a lower one runs first."""
        self.request_id: int | str = -1  # until it is submitted
        self.text = text
        self.token_ids = token_ids
        self.params = params
        self.prepared = prepared
        self.priority = priority
        self.timeout_seconds = 0.0
        self.submitted_at = 0.0  # seconds of time.monotonic(), before the engine may take it in
        self.samples: list[Sample] = []

    @property
    def finished(self) -> bool:
        return all(sample.finished for sample in self.samples)

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=str(self.request_id),
            prompt=self.text,
            prompt_token_ids=self.token_ids,
            outputs=[sample.output for sample in self.samples],
            finished=self.finished,
            metrics=RequestMetrics.total(sample.metrics for sample in self.samples),
            prompt_logprobs=self.samples[0].prompt_logprobs,
            num_cached_tokens=self.samples[0].num_cached_tokens,
        )
