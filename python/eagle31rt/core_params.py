"""SamplingParams as the core takes them: checked against the model, tokenised, structured outputs compiled."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.sampling_checks import MAX_LOGPROBS
from eagle31rt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from eagle31rt import _core
    from eagle31rt.grammars import GrammarCompiler, GrammarConstraint
    from eagle31rt.tokenizer import Tokenizer

DEFAULT_MAX_LOGPROBS = 20  # vLLM's


class CoreParamsMaker:
    """Prepares the parameters of requests to one engine. Any thread may use it."""

    def __init__(self, info: Mapping[str, Any], tokenizer: Tokenizer | None, max_logprobs: int | None = None) -> None:
        """`info`: of the engine. `max_logprobs`: the most that a request may ask for, 0 to 64; None = 20.

        Raises InvalidArgumentError naming the argument.
        """
        limit = DEFAULT_MAX_LOGPROBS if max_logprobs is None else max_logprobs
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= MAX_LOGPROBS:
            raise InvalidArgumentError(
                f"max_logprobs must be an integer from 0 to {MAX_LOGPROBS} (all ids at once, vLLM's -1, are not "
                f"supported), got {max_logprobs!r}"
            )
        self._info = info
        self._tokenizer = tokenizer
        self._max_logprobs = limit
        self._compiler: GrammarCompiler | None = None
        self._lock = threading.Lock()

    def prepare(self, params: SamplingParams) -> PreparedParams:
        """Raises InvalidArgumentError or UnsupportedError naming the field, before anything is submitted."""
        self._check_speculation(params)
        vocab_size: int = self._info["vocab_size"]
        _check_vocabulary("stop_token_ids", params.stop_token_ids or (), vocab_size)
        _check_vocabulary("allowed_token_ids", params.allowed_token_ids or (), vocab_size)
        _check_vocabulary("logit_bias", params.logit_bias or (), vocab_size)
        return PreparedParams(
            params,
            max_model_len=self._info["max_model_len"],
            num_logprobs=self._num_logprobs("logprobs", params.logprobs),
            num_prompt_logprobs=self._num_logprobs("prompt_logprobs", params.prompt_logprobs),
            bad_words=self._bad_word_ids(params.bad_words or []),
            make_constraint=self._constraint_maker(params),
            logits_processors=[_with_prompt(processor) for processor in params.logits_processors or ()],
        )

    def truncate_prompt(self, token_ids: list[int], params: SamplingParams) -> list[int]:
        """The last truncate_prompt_tokens of the prompt; -1: what leaves room for one token of output."""
        limit = params.truncate_prompt_tokens
        if limit is None:
            return token_ids
        return token_ids[-(self._info["max_model_len"] - 1 if limit == -1 else limit) :]

    def _check_speculation(self, params: SamplingParams) -> None:
        wanted, limit = params.num_speculative_tokens, self._info["num_speculative_tokens"]
        if wanted is not None and wanted > limit:
            raise InvalidArgumentError(
                f"SamplingParams.num_speculative_tokens ({wanted}) is more than the engine's ({limit}): "
                "raise it in speculative_config"
            )

    def _num_logprobs(self, name: str, value: int | None) -> int:
        """As the core counts: -1 = none."""
        if value is None:
            return -1
        wanted = self._info["vocab_size"] if value == -1 else value
        if wanted > self._max_logprobs:
            given = f"-1, all {wanted} ids of the vocabulary" if value == -1 else str(value)
            raise InvalidArgumentError(
                f"SamplingParams.{name} ({given}) is more than max_logprobs ({self._max_logprobs}), which the engine's "
                f"argument of that name can raise to {MAX_LOGPROBS}"
            )
        return wanted

    def _bad_word_ids(self, words: list[str]) -> list[list[int]]:
        """Each word as at the start of a text and, if that is one more spelling of the same length, after a space."""
        sequences: list[list[int]] = []
        for index, word in enumerate(words):
            bare = word.lstrip()
            if not bare:
                raise InvalidArgumentError(f"SamplingParams.bad_words[{index}] is only white space")
            tokenizer = self._tokenizer_for("bad_words")
            first = tokenizer.encode(bare, add_special_tokens=False)
            spaced = tokenizer.encode(" " + bare, add_special_tokens=False)
            if not first:
                raise InvalidArgumentError(f"SamplingParams.bad_words[{index}] has no tokens: {word!r}")
            sequences.append(first)
            if spaced and spaced[0] != first[0] and len(spaced) == len(first):
                sequences.append(spaced)
        return sequences

    def _constraint_maker(self, params: SamplingParams) -> Callable[[], GrammarConstraint] | None:
        if params.structured_outputs is None:
            return None
        from eagle31rt.grammars import GrammarCompiler
        from eagle31rt.structured_outputs import StructuredOutputsParams

        wanted = StructuredOutputsParams.parse(params.structured_outputs)
        with self._lock:
            if self._compiler is None:
                text = self._tokenizer_for("structured_outputs").to_json()
                self._compiler = GrammarCompiler(text, self._info["vocab_size"], self._info["eos_token_ids"])
        return self._compiler.compile(wanted)

    def _tokenizer_for(self, name: str) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidArgumentError(f"SamplingParams.{name} needs a tokenizer (skip_tokenizer_init=True)")
        return self._tokenizer


class PreparedParams:
    """One request's parameters, ready for any number of samples."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        max_model_len: int,
        num_logprobs: int,
        num_prompt_logprobs: int,
        bad_words: list[list[int]],
        make_constraint: Callable[[], GrammarConstraint] | None,
        logits_processors: list[Callable[..., Any]],
    ) -> None:
        self._params = params
        self._max_tokens = max_model_len if params.max_tokens is None else params.max_tokens
        self._num_logprobs = num_logprobs
        self._num_prompt_logprobs = num_prompt_logprobs
        self._bad_words = bad_words
        self._make_constraint = make_constraint
        self._logits_processors = logits_processors

    def make(self, seed: int, sample_index: int = 0) -> _core.SamplingParams:
        """For one sample; the first one also reports the prompt's log-probabilities."""
        from eagle31rt import _core

        params, result = self._params, _core.SamplingParams()
        result.temperature = params.temperature
        result.top_k = max(params.top_k, 0)
        result.top_p = params.top_p
        result.min_p = params.min_p
        result.seed = seed
        result.max_tokens = self._max_tokens
        result.min_tokens = params.min_tokens
        result.ignore_eos = params.ignore_eos
        result.stop_token_ids = list(params.stop_token_ids or ())
        result.stop = params.stop_strings
        result.include_stop_str_in_output = params.include_stop_str_in_output
        result.skip_special_tokens = params.skip_special_tokens
        result.detokenize = params.detokenize
        result.num_speculative_tokens = -1 if params.num_speculative_tokens is None else params.num_speculative_tokens
        result.repetition_penalty = params.repetition_penalty
        result.frequency_penalty = params.frequency_penalty
        result.presence_penalty = params.presence_penalty
        result.logit_bias = dict(params.logit_bias or {})
        result.allowed_token_ids = list(params.allowed_token_ids or ())
        result.bad_words = self._bad_words
        result.num_logprobs = self._num_logprobs
        result.num_prompt_logprobs = self._num_prompt_logprobs if sample_index == 0 else -1
        result.logits_processors = self._logits_processors
        if self._make_constraint is not None:
            result.constraint = self._make_constraint()
        return result


def _check_vocabulary(name: str, token_ids: Any, vocab_size: int) -> None:
    for token_id in token_ids:
        if token_id >= vocab_size:
            raise InvalidArgumentError(
                f"SamplingParams.{name} contains {token_id}, which is outside the vocabulary (0 to {vocab_size - 1})"
            )


def _with_prompt(processor: Callable[..., Any]) -> Callable[..., Any]:
    """`processor` as a function of (prompt, output, logits)."""
    try:
        count = len(inspect.signature(processor).parameters)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(
            f"SamplingParams.logits_processors: the parameters of {processor!r} cannot be found out; "
            "wrap it in a function of (output_token_ids, logits)"
        ) from error
    if count == 3:
        return processor
    if count != 2:
        raise InvalidArgumentError(
            "SamplingParams.logits_processors must take (output_token_ids, logits) or (prompt_token_ids, "
            f"output_token_ids, logits), got one with {count} parameters"
        )
    return lambda prompt, output, logits: processor(output, logits)
