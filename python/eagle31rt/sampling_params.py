"""SamplingParams: how one request is decoded. Field names and defaults are vLLM's."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from eagle31rt.errors import InvalidArgumentError, UnsupportedError

MAX_SPECULATIVE_TOKENS = 16
_MAX_SEED = 2**64 - 1
_MAX_COUNT = 2**31 - 1

# Fields of vLLM that this version cannot honour, each with the values that ask for nothing.
_NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "presence_penalty": (0.0, 0),
    "frequency_penalty": (0.0, 0),
    "repetition_penalty": (1.0, 1),
    "stop": (None, [], ()),
    "include_stop_str_in_output": (False,),
    "bad_words": (None, [], ()),
    "logprobs": (None,),
    "prompt_logprobs": (None,),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "logits_processors": (None, [], ()),
    "structured_outputs": (None,),
    "guided_decoding": (None,),
    "truncate_prompt_tokens": (None,),
    "spaces_between_special_tokens": (True,),
    "extra_args": (None, {}),
}


@dataclass
class SamplingParams:
    """One request's parameters; checked when made and again when submitted.

    `temperature` 0 is greedy. `top_k` 0 or -1 and `min_p` 0 are off. `seed` None draws a fresh one per request; each
    sample of `n` derives its own from it. `max_tokens` None means up to the model's length. `num_speculative_tokens`
    None uses the engine's, 0 decodes plainly (the ids are the same with rejection_sample_method "equality").
    Raises InvalidArgumentError for a bad value and UnsupportedError for a field that is not implemented yet.
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
    # Not honoured yet: refused by name unless neutral.
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
    logits_processors: list[Any] | None = None
    structured_outputs: Any = None
    guided_decoding: Any = None
    truncate_prompt_tokens: int | None = None
    spaces_between_special_tokens: bool = True
    extra_args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.seed == -1:  # vLLM's other spelling of "no seed"
            self.seed = None
        self.validate()

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def validate(self) -> None:
        """Raises InvalidArgumentError or UnsupportedError naming the first field that cannot be honoured."""
        for name, neutral in _NEUTRAL_VALUES.items():
            value = getattr(self, name)
            if not any(value is one or (type(value) is type(one) and value == one) for one in neutral):
                raise UnsupportedError(
                    f"SamplingParams.{name} is not supported by this version; leave it at its default"
                )
        self._validate_sampling()
        self._validate_length()
        if self.num_speculative_tokens is not None:
            _check_integer("num_speculative_tokens", self.num_speculative_tokens, 0, MAX_SPECULATIVE_TOKENS)
        for name in ("ignore_eos", "detokenize", "skip_special_tokens"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidArgumentError(f"SamplingParams.{name} must be True or False, got {getattr(self, name)!r}")

    def _validate_sampling(self) -> None:
        _check_integer("n", self.n, 1, _MAX_COUNT)
        _check_number("temperature", self.temperature, 0.0, math.inf)
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise InvalidArgumentError(
                "SamplingParams.top_p must be above 0 and at most 1, got 0 (for greedy: temperature=0)"
            )
        _check_integer("top_k", self.top_k, -1, _MAX_COUNT)
        _check_number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _check_integer("seed", self.seed, 0, _MAX_SEED)
        if self.greedy and self.n > 1:
            raise InvalidArgumentError(
                f"SamplingParams.n must be 1 with temperature=0 (samples would be equal), got {self.n}"
            )

    def _validate_length(self) -> None:
        if self.max_tokens is not None:
            _check_integer("max_tokens", self.max_tokens, 1, _MAX_COUNT)
        _check_integer("min_tokens", self.min_tokens, 0, _MAX_COUNT)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidArgumentError(
                f"SamplingParams.min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens})"
            )
        ids = self.stop_token_ids
        if ids is not None and (isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable)):
            raise InvalidArgumentError(f"SamplingParams.stop_token_ids must be a list of token ids, got {ids!r}")
        for token_id in ids or ():
            _check_integer("stop_token_ids", token_id, 0, _MAX_COUNT)


# numpy's integers and floats count as numbers here, as everywhere in numerical Python.
def _check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not low <= int(value) <= high:
        raise InvalidArgumentError(f"SamplingParams.{name} must be an integer from {low} to {high}, got {value!r}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    if not low <= number <= high or math.isinf(number):
        limit = "a finite number of at least 0" if math.isinf(high) else f"a number from {low:g} to {high:g}"
        raise InvalidArgumentError(f"SamplingParams.{name} must be {limit}, got {value!r}")
