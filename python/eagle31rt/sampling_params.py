"""SamplingParams: how one request is decoded. Field names, defaults and meanings are vLLM's.

docs/sampling.md says in which order they act and what speculation does to them: nothing.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.sampling_checks import (
    MAX_BAD_WORDS,
    MAX_COUNT,
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
    check_callables,
    check_flag,
    check_integer,
    check_logit_bias,
    check_number,
    check_texts,
    check_token_ids,
    shown,
)
from eagle31rt.structured_outputs import StructuredOutputsParams

MAX_SPECULATIVE_TOKENS = 64  # of draft trees
MAX_CHAIN_TOKENS = 16
MAX_SAMPLES = 16384  # of one request, as vLLM
_MAX_SEED = 2**64 - 1

# Fields of vLLM that this version cannot honour, each with the values that ask for nothing.
NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "best_of": (None,),
    "use_beam_search": (False,),
    "guided_decoding": (None,),
    "flat_logprobs": (False,),
    "logprob_token_ids": (None,),
    "prompt_logprob_token_ids": (None,),
    "prompt_logprob_start": (None,),
    "spaces_between_special_tokens": (True,),
    "stream_interval": (None,),
    "skip_reading_prefix_cache": (None, False),
    "thinking_token_budget": (None, -1),
    "repetition_detection": (None,),
    "trace_decode_token_ids": (None,),
    "extra_args": (None, {}),
}
_INSTEAD = {
    "guided_decoding": "use structured_outputs",
    "best_of": "ask for n samples and choose among them by cumulative_logprob",
}


class RequestOutputKind(enum.Enum):
    """What AsyncLLM yields: all so far, what is new, or the end only."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass
class SamplingParams:
    """One request's parameters; checked when made and again when submitted.

    `temperature` 0 is greedy. `top_k` 0 or -1 and `min_p` 0 are off. `seed` None draws a fresh one per request; each
    sample of `n` derives its own from it. `max_tokens` None means up to the model's length. `num_speculative_tokens`
    None uses the engine's, 0 decodes plainly (the ids are the same with rejection_sample_method "equality").
    `logprobs` and `prompt_logprobs`: None, or how many of the most probable ids (up to the engine's max_logprobs)
    beside the token itself. `logits_processors`: callables `(output_token_ids, logits)` or
    `(prompt_token_ids, output_token_ids, logits)` that change the float32 array in place or return another.
    `truncate_prompt_tokens` keeps the last so many of the prompt; -1: as many as the model takes.
    Raises InvalidArgumentError for a bad value and UnsupportedError for a field that is not implemented.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: list[int] | None = field(default_factory=list)
    num_speculative_tokens: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    stop: str | list[str] | None = None
    include_stop_str_in_output: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logit_bias: dict[int, float] | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logits_processors: list[Callable[..., Any]] | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    # Not honoured: refused by name unless neutral.
    best_of: int | None = None
    use_beam_search: bool = False
    guided_decoding: Any = None
    flat_logprobs: bool = False
    logprob_token_ids: list[int] | None = None
    prompt_logprob_token_ids: list[int] | None = None
    prompt_logprob_start: int | None = None
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = None
    skip_reading_prefix_cache: bool | None = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    trace_decode_token_ids: list[int] | None = None
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.seed == -1:  # vLLM's other spelling of "no seed"
            self.seed = None
        self.validate()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def stop_strings(self) -> list[str]:
        """`stop` as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def validate(self) -> None:
        """Raises InvalidArgumentError or UnsupportedError naming the first field that cannot be honoured."""
        for name, neutral in NEUTRAL_VALUES.items():
            value = getattr(self, name)
            if not any(value is one or (type(value) is type(one) and value == one) for one in neutral):
                instead = _INSTEAD.get(name, "leave it at its default")
                raise UnsupportedError(f"SamplingParams.{name} is not supported by this version; {instead}")
        self._validate_sampling()
        self._validate_processors()
        self._validate_length()
        self._validate_output()
        if self.num_speculative_tokens is not None:
            check_integer("num_speculative_tokens", self.num_speculative_tokens, 0, MAX_SPECULATIVE_TOKENS)

    def _validate_sampling(self) -> None:
        check_integer("n", self.n, 1, MAX_SAMPLES)
        check_number("temperature", self.temperature, 0.0, math.inf)
        check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidArgumentError(
                "SamplingParams.top_p must be above 0 and at most 1, got 0 (for greedy: temperature=0)"
            )
        check_integer("top_k", self.top_k, -1, MAX_COUNT)
        check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            check_integer("seed", self.seed, 0, _MAX_SEED)
        if self.greedy and self.n > 1:
            raise InvalidArgumentError(
                f"SamplingParams.n must be 1 with temperature=0 (samples would be equal), got {self.n}"
            )

    def _validate_processors(self) -> None:
        check_number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        check_number("repetition_penalty", self.repetition_penalty, 0.0, math.inf)
        if self.repetition_penalty == 0.0:
            raise InvalidArgumentError("SamplingParams.repetition_penalty must be above 0, got 0 (1 = off)")
        if self.logit_bias is not None:
            check_logit_bias(self.logit_bias)
        if self.bad_words is not None:
            check_texts("bad_words", self.bad_words, MAX_BAD_WORDS)
        if self.allowed_token_ids is not None:
            check_token_ids("allowed_token_ids", self.allowed_token_ids)
            if len(self.allowed_token_ids) == 0:
                raise InvalidArgumentError("SamplingParams.allowed_token_ids must not be empty (None = all ids)")
        if self.logits_processors is not None:
            check_callables("logits_processors", self.logits_processors)
        if self.structured_outputs is not None:
            self.structured_outputs = StructuredOutputsParams.parse(self.structured_outputs)

    def _validate_length(self) -> None:
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 1, MAX_COUNT)
        check_integer("min_tokens", self.min_tokens, 0, MAX_COUNT)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidArgumentError(
                f"SamplingParams.min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})"
            )
        if self.stop_token_ids is not None:
            check_token_ids("stop_token_ids", self.stop_token_ids)
        if self.truncate_prompt_tokens is not None and self.truncate_prompt_tokens != -1:
            check_integer("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, MAX_COUNT)

    def _validate_output(self) -> None:
        for name in ("ignore_eos", "detokenize", "skip_special_tokens", "include_stop_str_in_output"):
            check_flag(name, getattr(self, name))
        if self.stop is not None:
            check_texts("stop", [self.stop] if isinstance(self.stop, str) else self.stop, MAX_STOP_STRINGS)
            if self.stop and not self.detokenize:
                raise InvalidArgumentError(
                    "SamplingParams.stop needs detokenize=True: stop strings are matched on text"
                )
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), -1, MAX_LOGPROBS)
        if not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidArgumentError(
                f"SamplingParams.output_kind must be a RequestOutputKind, got {shown(self.output_kind)}"
            )
