"""From a request's fields to SamplingParams. Ranges are checked there; here, what is particular to the HTTP API."""

from __future__ import annotations

from typing import Any

from eagle31rt.errors import Eagle31rtError
from eagle31rt.sampling_params import MAX_SPECULATIVE_TOKENS, RequestOutputKind, SamplingParams
from eagle31rt.server.errors import bad_request, from_runtime_error
from eagle31rt.server.options import Limits
from eagle31rt.server.protocol import ChatRequest, CompletionRequest, GenerationRequest

# Fields that mean what SamplingParams means by them.
_SAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "seed", "max_tokens", "min_tokens", "ignore_eos", "stop",
    "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "detokenize", "presence_penalty",
    "frequency_penalty", "repetition_penalty", "allowed_token_ids", "bad_words", "prompt_logprobs",
    "truncate_prompt_tokens",
)  # fmt: skip
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")
_MAX_TOP_LOGPROBS = 20  # OpenAI's


def sampling_params(
    request: CompletionRequest | ChatRequest, limits: Limits, engine_speculative_tokens: int
) -> SamplingParams:
    """Raises ApiError naming the field. `engine_speculative_tokens`: what the engine drafts at most."""
    values: dict[str, Any] = {name: getattr(request, name) for name in _SAME if getattr(request, name) is not None}
    _check_limits(values, limits)
    if isinstance(request, ChatRequest):
        _set_chat_length(request, values)
    values["logprobs"] = _num_logprobs(request)
    values["logit_bias"] = _logit_bias(request.logit_bias)
    values["structured_outputs"] = _structured_outputs(request)
    values["num_speculative_tokens"] = _num_speculative_tokens(request, engine_speculative_tokens)
    values["output_kind"] = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    try:
        return SamplingParams(**values)
    except Eagle31rtError as error:
        raise refused(error, request) from error


def refused(error: Eagle31rtError, request: GenerationRequest) -> Exception:
    """The answer to a request that the runtime refuses; `param` is the field as the client wrote it."""
    given = [name for name in type(request).model_fields if getattr(request, name) is not None]
    answer = from_runtime_error(error, type(request).model_fields, None)
    source = next((name for name in ("response_format", *_GUIDED, "structured_outputs") if name in given), None)
    if answer.param == "structured_outputs" and source is not None:
        answer.param = source
    if answer.param is None or answer.param not in given:
        prompts = [name for name in ("prompt", "messages") if name in type(request).model_fields]
        answer.param = answer.param if answer.param is not None else prompts[0]
    return answer


def _check_limits(values: dict[str, Any], limits: Limits) -> None:
    if values.get("n", 1) > limits.max_n:
        raise bad_request("n", f"n must be at most {limits.max_n} (--max-n), got {values['n']}")
    stop = values.get("stop")
    if isinstance(stop, list) and len(stop) > limits.max_stop_strings:
        raise bad_request("stop", f"stop has {len(stop)} strings; give at most {limits.max_stop_strings}")


def _set_chat_length(request: ChatRequest, values: dict[str, Any]) -> None:
    """A conversation without a limit may go on to the length of the model, as in OpenAI's API."""
    if request.max_completion_tokens is not None:
        if request.max_tokens not in (None, request.max_completion_tokens):
            raise bad_request("max_tokens", "max_tokens and max_completion_tokens differ; give only one")
        values["max_tokens"] = request.max_completion_tokens
    values.setdefault("max_tokens", None)


def _num_logprobs(request: CompletionRequest | ChatRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return request.logprobs
    if not request.logprobs:
        if request.top_logprobs:
            raise bad_request("top_logprobs", "top_logprobs needs logprobs: true")
        return None
    count = request.top_logprobs or 0
    if not 0 <= count <= _MAX_TOP_LOGPROBS:
        raise bad_request("top_logprobs", f"top_logprobs must be from 0 to {_MAX_TOP_LOGPROBS}, got {count}")
    return count


def _logit_bias(value: Any) -> dict[int, float] | None:
    """JSON has no integer keys."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise bad_request("logit_bias", "logit_bias must be an object of token ids and numbers")
    result: dict[int, float] = {}
    for key, bias in value.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 10:
            raise bad_request("logit_bias", f"logit_bias: {key!r:.50} is not a token id")
        result[int(key)] = bias
    return result


def _structured_outputs(request: GenerationRequest) -> dict[str, Any] | None:
    given = [name for name in (*_GUIDED, "structured_outputs") if getattr(request, name) is not None]
    formatted = _response_format(request.response_format)
    if formatted is not None:
        given.append("response_format")
    if len(given) > 1:
        raise bad_request(given[0], f"give only one of {' and '.join(given)}")
    if formatted is not None or not given:
        return formatted
    value = getattr(request, given[0])
    if given[0] in _GUIDED:
        return {given[0].removeprefix("guided_"): value}
    if not isinstance(value, dict):
        raise bad_request("structured_outputs", "structured_outputs must be an object")
    return value


def _response_format(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        raise bad_request("response_format", "response_format.type must be text, json_object or json_schema")
    outer = value.get("json_schema")
    schema = outer.get("schema") if isinstance(outer, dict) else None
    if not isinstance(schema, dict):
        raise bad_request("response_format", "response_format.json_schema.schema must be an object")
    return {"json": schema}


def _num_speculative_tokens(request: GenerationRequest, engine_limit: int) -> int | None:
    """`speculative`: "off", "on" (as the server is set) or at most so many; or exactly `num_speculative_tokens`."""
    value, count = request.speculative, request.num_speculative_tokens
    if value is None or value == "on":
        return count
    if value == "off":
        value = 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_SPECULATIVE_TOKENS:
        wanted = f'"off", "on" or a number from 0 to {MAX_SPECULATIVE_TOKENS}'
        raise bad_request("speculative", f"speculative must be {wanted}, got {value!r:.100}")
    if count not in (None, value):
        raise bad_request("speculative", "speculative and num_speculative_tokens differ; give only one")
    return min(value, engine_limit)
