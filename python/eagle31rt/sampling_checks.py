"""Checks of single values of SamplingParams; each raises InvalidArgumentError naming the field."""

from __future__ import annotations

import math
import numbers
import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from eagle31rt.errors import InvalidArgumentError

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100
MAX_COUNT = 2**31 - 1
MAX_LOGPROBS = 64  # of the core (kMaxTopK)
MAX_STOP_STRINGS = 64  # of the core, with MAX_TEXT_BYTES each
MAX_TEXT_BYTES = 1024  # of one stop string or bad word
MAX_BAD_WORDS = 512  # each may become two token sequences, of which the core takes 1024
MAX_BIAS = 100.0  # OpenAI's and vLLM's limit


# numpy's integers and floats count as numbers here, as everywhere in numerical Python.
def check_integer(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or not low <= int(value) <= high:
        raise _wrong(name, f"an integer from {low} to {high}", value)


def check_number(name: str, value: object, low: float, high: float) -> None:
    try:
        number = float(value) if isinstance(value, numbers.Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer beyond the range of float
        number = math.inf
    if not low <= number <= high or math.isinf(number):
        limit = f"a finite number of at least {low:g}" if math.isinf(high) else f"a number from {low:g} to {high:g}"
        raise _wrong(name, limit, value)


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, "True or False", value)


def check_token_ids(name: str, value: object) -> None:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise _wrong(name, "a list of token ids", value)
    for token_id in value:
        check_integer(name, token_id, 0, MAX_COUNT)


def check_texts(name: str, value: object, max_count: int) -> None:
    """A list of non-empty texts that can be encoded as UTF-8."""
    if not isinstance(value, (list, tuple)) or not all(isinstance(text, str) for text in value):
        raise _wrong(name, "a list of str", value)
    if len(value) > max_count:
        raise InvalidArgumentError(f"SamplingParams.{name} has {len(value)} entries; give at most {max_count}")
    for index, text in enumerate(value):
        if not is_valid_unicode(text):
            raise InvalidArgumentError(f"SamplingParams.{name}[{index}] contains a lone surrogate: {text!r:.100}")
        size = len(text.encode())
        if not 1 <= size <= MAX_TEXT_BYTES:
            raise InvalidArgumentError(f"SamplingParams.{name}[{index}] has {size} bytes; give 1 to {MAX_TEXT_BYTES}")


def check_logit_bias(value: object) -> None:
    if not isinstance(value, Mapping):
        raise _wrong("logit_bias", "a dict from token id to bias", value)
    for token_id, bias in value.items():
        check_integer("logit_bias", token_id, 0, MAX_COUNT)
        check_number(f"logit_bias[{token_id}]", bias, -MAX_BIAS, MAX_BIAS)


def check_callables(name: str, value: object) -> None:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, Callable) for one in value):  # type: ignore[arg-type]
        raise _wrong(name, "a list of callables", value)


def shown(value: object) -> str:
    """`value` for a message: it may be as long as a request, and nested deeper than `repr` can go."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # an integer of more digits than Python writes
        return f"a value of type {type(value).__name__}"


def is_valid_unicode(text: str) -> bool:
    """False if `text` has lone surrogates, which no UTF-8 stands for."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _wrong(name: str, wanted: str, value: Any) -> InvalidArgumentError:
    return InvalidArgumentError(f"SamplingParams.{name} must be {wanted}, got {shown(value)}")
