"""The prompt fields of requests: their forms, checked before the runtime looks inside."""

from __future__ import annotations

from typing import Any

from eagle31rt.server.errors import bad_request

_MAX_TOOLS = 1024


def prompt_list(prompt: Any, max_prompts: int) -> list[Any]:
    """Texts or lists of token ids, from one or several."""
    if isinstance(prompt, str) or (isinstance(prompt, list) and prompt and not isinstance(prompt[0], (str, list))):
        prompt = [prompt]
    if isinstance(prompt, list) and len(prompt) > max_prompts:
        raise bad_request("prompt", f"prompt holds {len(prompt)} prompts; give at most {max_prompts}")
    if not isinstance(prompt, list) or not all(isinstance(one, (str, list)) for one in prompt):
        raise bad_request("prompt", "prompt must be text, a list of token ids, or a list of these")
    if not prompt or not all(prompt):
        raise bad_request("prompt", "prompt is empty: give text or token ids")
    return prompt


def conversation(messages: Any, max_messages: int) -> list[dict[str, Any]]:
    """One conversation; the runtime checks each message."""
    if isinstance(messages, list) and len(messages) > max_messages:
        raise bad_request("messages", f"messages holds {len(messages)} messages; give at most {max_messages}")
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise bad_request("messages", "messages must be a list of at least one object with role and content")
    return messages


def tools_of(tools: Any, choice: Any) -> list[dict[str, Any]] | None:
    """Tools for the template. The model's text comes back as it is: calls in it are not parsed."""
    if choice not in (None, "auto", "none"):
        raise bad_request("tool_choice", "tool_choice must be auto or none: calls are not parsed here", "unsupported")
    if tools is None or choice == "none":
        return None
    if isinstance(tools, list) and len(tools) > _MAX_TOOLS:
        raise bad_request("tools", f"tools holds {len(tools)} tools; give at most {_MAX_TOOLS}")
    if not isinstance(tools, list) or not all(isinstance(one, dict) for one in tools):
        raise bad_request("tools", "tools must be a list of objects")
    return tools or None
