"""Request bodies: the fields of OpenAI's API and of vLLM's that are honoured, and those that are refused by name.

Scalars are typed here, strictly: "1" is no number, true is no integer. Ranges, lists and objects are checked where they
are used (SamplingParams, inputs.py, parameters.py). null means the default, as everywhere in OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from eagle31rt.server.errors import ApiError, bad_request

# Accepted and without effect: they do not change what is generated.
_NO_EFFECT = frozenset(("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"))
# field -> the values that ask for nothing. Others are refused: this version does not do it.
UNSUPPORTED_FIELDS: dict[str, tuple[object, ...]] = {
    # OpenAI
    "best_of": (1,),
    "suffix": ("",),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": (),
    "moderation": (),
    "reasoning_effort": (),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),  # nothing is parsed into calls
    # vLLM
    "use_beam_search": (False,),
    "length_penalty": (1.0, 1),
    "early_stopping": (False,),
    "spaces_between_special_tokens": (True,),
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    "chat_template": (),  # templates are code; the operator chooses them
    "continue_final_message": (False,),
    "documents": ([],),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "prompt_embeds": (),
    "lora_request": (),
    "cache_salt": (),
    "kv_transfer_params": (),
    "vllm_xargs": ({},),
    "logits_processors": ([],),
    "include_reasoning": (True, False),
    "thinking_token_budget": (-1,),
    "logprob_token_ids": (),
    "prompt_logprob_token_ids": (),
    "repetition_detection": (),
}


def _printable(text: str) -> str:
    """A line break of an id could forge a line of a log."""
    if not text.isprintable():
        raise PydanticCustomError("printable", "must hold printable characters only")
    return text


class _Fields(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class GenerationRequest(_Fields):
    """What completions and chat completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    n: int | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: Any = None
    stop_token_ids: Any = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    detokenize: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Any = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    response_format: Any = None
    structured_outputs: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    num_speculative_tokens: int | None = None
    speculative: Any = None  # "off", "on" or at most so many tokens
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    request_id: Annotated[str, AfterValidator(_printable)] | None = Field(None, min_length=1, max_length=256)
    priority: int | None = Field(None, ge=-(2**31), lt=2**31)
    timeout_seconds: float | None = Field(None, ge=0, le=1e6)


class CompletionRequest(GenerationRequest):
    prompt: Any = None
    echo: bool | None = None
    logprobs: int | None = None


class ChatRequest(GenerationRequest):
    messages: Any = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: Any = None
    tool_choice: Any = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeRequest(_Fields):
    model: str | None = None
    prompt: str | None = None
    messages: Any = None
    tools: Any = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(_Fields):
    model: str | None = None
    tokens: Any = None
    skip_special_tokens: bool | None = None


class SwapDraftRequest(_Fields):
    model: str | None = None


Model = TypeVar("Model", bound=_Fields)


def parse_request(kind: type[Model], body: Mapping[str, Any]) -> Model:
    """Raises ApiError naming the first field that is unknown, unsupported or of the wrong type."""
    fields = {name: value for name, value in body.items() if value is not None and name not in _NO_EFFECT}
    for name in fields:
        if name not in kind.model_fields and name not in UNSUPPORTED_FIELDS:
            raise bad_request(name[:100], f"there is no field {name[:100]!r}; check its spelling", "unknown_field")
    for name in [name for name in fields if name in UNSUPPORTED_FIELDS and name not in kind.model_fields]:
        value = fields.pop(name)
        if not any(type(value) is type(one) and value == one for one in UNSUPPORTED_FIELDS[name]):
            raise bad_request(name, f"{name} is not supported by this version; leave it out", "unsupported")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _field_error(error) from error


def _field_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0])
    return bad_request(name, f"{name}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {first['input']!r:.100}")
