"""The forms in which prompts and conversations may be given, brought to one."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.sampling_checks import shown
from eagle31rt.sampling_params import SamplingParams

Message = dict[str, Any]
_PROMPT_KEYS = ("prompt", "prompt_token_ids")
UNSUPPORTED_PROMPT_KEYS = (
    "multi_modal_data",
    "multi_modal_uuids",
    "mm_processor_kwargs",
    "prompt_embeds",
    "encoder_prompt",
    "decoder_prompt",
    "cache_salt",
    "negative_prompt",
)


@dataclass
class Prompt:
    """Text, token ids or both (then the ids count and the text is for display)."""

    text: str | None
    token_ids: list[int] | None
    add_special_tokens: bool = True  # when the text is tokenised
    what: str = "prompt"  # in errors


def parse_prompts(prompts: Any) -> list[Prompt]:
    """A str, a list of token ids, a dict, or a list of any of these. Raises InvalidArgumentError naming the index."""
    prompts = _as_list(prompts)
    if isinstance(prompts, (str, Mapping)) or _is_token_ids(prompts):
        prompts = [prompts]
    if isinstance(prompts, (bytes, bytearray)) or not isinstance(prompts, Sequence):
        raise InvalidArgumentError(
            f"prompts must be text, token ids, a dict or a list of these, got {_type_name(prompts)}"
        )
    result: list[Prompt] = []
    for index, prompt in enumerate(prompts):
        try:
            result.append(_parse_prompt(prompt))
        except (InvalidArgumentError, UnsupportedError) as error:
            raise at_index(error, "prompt", index) from error
    return result


def at_index(error: Exception, what: str, index: int) -> Exception:
    """The same kind of error, saying which element of a list it is about."""
    return type(error)(f"{what} {index}: {error}")


def _is_token_ids(value: object) -> bool:
    return (
        isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) > 0 and _is_integer(value[0])
    )


def _is_integer(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)  # also numpy's integers


def _as_list(value: Any) -> Any:
    """Arrays and tensors as lists."""
    return value.tolist() if hasattr(value, "tolist") and hasattr(value, "shape") else value


def _parse_prompt(prompt: Any) -> Prompt:
    prompt = _as_list(prompt)
    if isinstance(prompt, str):
        return Prompt(prompt, None)
    if isinstance(prompt, Mapping):
        return _parse_prompt_dict(prompt)
    if isinstance(prompt, Sequence) and not isinstance(prompt, (bytes, bytearray)):
        return Prompt(None, _parse_token_ids(prompt))
    raise InvalidArgumentError(f"must be text, token ids or a dict, got {_type_name(prompt)}")


def _parse_prompt_dict(prompt: Mapping[str, Any]) -> Prompt:
    for key, value in prompt.items():
        if key in UNSUPPORTED_PROMPT_KEYS and value is not None:
            raise UnsupportedError(f"key {key!r} is not supported by this version")
        if key not in _PROMPT_KEYS and key not in UNSUPPORTED_PROMPT_KEYS:
            raise InvalidArgumentError(f"unknown key {key!r}; known: {', '.join(_PROMPT_KEYS)}")
    text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and token_ids is None:
        raise InvalidArgumentError("needs a key 'prompt' or 'prompt_token_ids'")
    if text is not None and not isinstance(text, str):
        raise InvalidArgumentError(f"'prompt' must be text, got {_type_name(text)}")
    return Prompt(text, None if token_ids is None else _parse_token_ids(token_ids))


def _parse_token_ids(values: Any) -> list[int]:
    values = _as_list(values)
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Sequence):
        raise InvalidArgumentError(f"token ids must be a list of integers, got {_type_name(values)}")
    if not all(_is_integer(value) for value in values):
        raise InvalidArgumentError("token ids must be integers")
    return [operator.index(value) for value in values]


def _type_name(value: object) -> str:
    return type(value).__name__


def params_per_prompt(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    """One SamplingParams for each prompt, checked again since fields can be changed after construction."""
    if params is None:
        params = SamplingParams()
    if isinstance(params, SamplingParams):
        params.validate()
        return [params] * count
    if isinstance(params, (str, Mapping)) or not isinstance(params, Sequence):
        raise InvalidArgumentError(
            f"sampling_params must be SamplingParams or a list of them, got {_type_name(params)}"
        )
    if len(params) != count:
        raise InvalidArgumentError(
            f"got {len(params)} sampling_params for {count} prompts: give one, or one per prompt"
        )
    for index, one in enumerate(params):
        if not isinstance(one, SamplingParams):
            raise InvalidArgumentError(f"sampling_params {index}: must be SamplingParams, got {_type_name(one)}")
        try:
            one.validate()
        except (InvalidArgumentError, UnsupportedError) as error:
            raise at_index(error, "sampling_params", index) from error
    return list(params)


def priority_per_prompt(priority: int | Sequence[int] | None, count: int) -> list[int]:
    """One priority for each prompt; a lower one runs first. None is 0."""
    values: Any = [priority or 0] * count if priority is None or _is_integer(priority) else _as_list(priority)
    if isinstance(values, (str, bytes)) or not isinstance(values, Sequence) or len(values) != count:
        raise InvalidArgumentError(
            f"priority must be an integer or one for each of {count} prompts, got {shown(priority)}"
        )
    for index, value in enumerate(values):
        if not _is_integer(value) or not -(2**31) <= value < 2**31:
            raise InvalidArgumentError(f"priority {index}: must be an integer of 32 bits, got {shown(value)}")
    return [int(value) for value in values]


def parse_conversations(messages: Any) -> list[list[Message]]:
    """One conversation (a list of messages) or a list of them; contents become plain text."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise InvalidArgumentError(
            f"messages must be a list of dicts with role and content, got {_type_name(messages)}"
        )
    if messages and isinstance(messages[0], Mapping):
        return [_parse_conversation(messages)]
    result: list[list[Message]] = []
    for index, conversation in enumerate(messages):
        try:
            result.append(_parse_conversation(conversation))
        except (InvalidArgumentError, UnsupportedError) as error:
            raise at_index(error, "conversation", index) from error
    return result


def _parse_conversation(messages: Any) -> list[Message]:
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)) or not messages:
        raise InvalidArgumentError("a conversation must be a list of at least one message")
    result: list[Message] = []
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InvalidArgumentError(f"a message must be a dict with 'role' and 'content', got {message!r:.200}")
        content = _plain_content(message.get("content"))
        # OpenAI's null beside calls; many templates would write "None".
        result.append({**message, "content": "" if content is None and message.get("tool_calls") else content})
    return result


def _plain_content(content: Any) -> str | None:
    """Text as it is; a list of OpenAI text parts joined by newlines. None is for messages that only call tools."""
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise InvalidArgumentError(
            f"a message's content must be text or a list of text parts, got {_type_name(content)}"
        )
    texts: list[str] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise UnsupportedError(f"message content of type {kind!r} is not supported by this version, only 'text'")
        if not isinstance(part.get("text"), str):
            raise InvalidArgumentError("a text part of a message needs a 'text'")
        texts.append(part["text"])
    return "\n".join(texts)
