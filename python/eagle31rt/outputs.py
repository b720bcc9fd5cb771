"""What LLM.generate and LLM.chat return. Names are vLLM's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle31rt.logprobs import Logprob


@dataclass
class RequestMetrics:
    """Speculation counters of one request (all its samples). Derived figures count as vLLM does."""

    num_drafts: int = 0  # verifications that had drafts
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0  # accepted draft tokens, bonus tokens excluded
    num_accepted_tokens_per_position: list[int] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        """Mean tokens a verification, bonus included: 1 + accepted / drafts; 1.0 if nothing was drafted."""
        return 1.0 + (self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0)

    @property
    def acceptance_per_position(self) -> list[float]:
        """Unconditional: how many of the drafts were accepted up to and including each position."""
        return [count / max(self.num_drafts, 1) for count in self.num_accepted_tokens_per_position]

    def to_dict(self) -> dict[str, object]:
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "acceptance_length": self.acceptance_length,
            "acceptance_per_position": self.acceptance_per_position,
        }

    @staticmethod
    def total(parts: Iterable[RequestMetrics]) -> RequestMetrics:
        """The counters of several requests or samples, added."""
        result = RequestMetrics()
        for part in parts:
            result.num_drafts += part.num_drafts
            result.num_draft_tokens += part.num_draft_tokens
            result.num_accepted_tokens += part.num_accepted_tokens
            counts = result.num_accepted_tokens_per_position
            counts.extend([0] * (len(part.num_accepted_tokens_per_position) - len(counts)))
            for position, count in enumerate(part.num_accepted_tokens_per_position):
                counts[position] += count
        return result


@dataclass
class CompletionOutput:
    """One sample. `finish_reason` is stop, length, abort or error; `stop_reason` is the stop string or token id that
    ended it, or the error. `logprobs` has one dict for each token id if they were asked for, else None.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None  # of the tokens themselves; None without logprobs

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """One prompt's result. `prompt` is None if token ids were given.

    `prompt_logprobs` has one dict for each token of the prompt (None for the first) if they were asked for.
    `num_cached_tokens`: tokens of the prompt that the prefix cache had.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0


@dataclass
class StreamPiece:
    """What one engine step added to a streamed request; `output` is set on the last piece only."""

    text: str
    token_ids: list[int]
    output: RequestOutput | None = None
