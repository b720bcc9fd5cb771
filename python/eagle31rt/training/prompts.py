"""Prompts that the trainer writes itself, and prompt files. None comes from an evaluation set."""

from __future__ import annotations

import codecs
import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

from eagle31rt.errors import InvalidArgumentError

Messages = list[dict[str, str]]
_LONGEST_LINE = 4_000_000  # bytes; half of --max-tokens is read of a prompt, whatever its length
_DOCUMENT_SHARE = 0.5  # of the prompts, where there are documents


class PromptWriter:
    """Draws user prompts from the word lists of prompts.json and, if there are any, from the user's documents."""

    def __init__(self, documents: Sequence[str] = ()) -> None:
        text = (files("eagle31rt.training") / "prompts.json").read_text(encoding="utf-8")
        lists: dict[str, list[str]] = json.loads(text)
        self._lists = lists
        self._documents = documents

    def prompt(self, random: Random, passages: Sequence[str]) -> str:
        """`passages`: the target's earlier answers."""
        if self._documents and random.random() < _DOCUMENT_SHARE:
            template = random.choice(self._lists["passage_tasks"])
            return template.replace("{passage}", random.choice(self._documents))
        kind = random.random()
        if kind < 0.38:
            return self._filled(random, "tasks")
        if kind < 0.50:
            return self._filled(random, "calculations")
        if kind < 0.68:
            return self._filled(random, "code_tasks")
        if kind < 0.90 and passages:
            template = random.choice(self._lists["passage_tasks"])
            count = min(len(passages), random.choice((1, 1, 2, 3)))  # several make an article
            return template.replace("{passage}", "\n\n".join(random.sample(list(passages), count)))
        return self._filled(random, "questions")

    def follow_up(self, random: Random) -> str:
        return random.choice(self._lists["follow_ups"])

    def _filled(self, random: Random, kind: str) -> str:
        text = random.choice(self._lists[kind])
        for slot in ("topic", "other", "name", "friend", "thing", "word", "code", "audience", "form"):
            if "{" + slot + "}" in text:
                source = {"other": "topic", "friend": "name"}.get(slot, slot)
                text = text.replace("{" + slot + "}", random.choice(self._lists[source]))
        for slot, (low, high) in _NUMBERS.items():
            while "{" + slot + "}" in text:
                text = text.replace("{" + slot + "}", str(random.randint(low, high)), 1)
        return text


_NUMBERS = {"a": (12, 95), "b": (5, 40), "c": (2, 12), "d": (60, 990), "e": (2, 20)}


def read_prompt_file(path: Path) -> list[Messages]:
    """JSON lines: a string, {"prompt": text}, or {"messages": [{"role": .., "content": ..}, ...]} ending with a user.

    A byte order mark is passed over. Raises InvalidArgumentError naming the line.
    """
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    result = [_parse(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not result:
        raise InvalidArgumentError(f"{path} holds no prompts; give JSON lines with 'prompt' or 'messages'")
    return result


def _parse(line: bytes, place: str) -> Messages:
    if len(line) > _LONGEST_LINE:
        raise InvalidArgumentError(f"{place}: has {len(line)} bytes; give at most {_LONGEST_LINE}")
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{place}: is not valid UTF-8: {error}") from error
    messages = _messages(text, place)
    for value in (value for message in messages for value in message.values()):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidArgumentError(f"{place}: holds half of a surrogate pair, which is no character") from error
    return messages


def _messages(line: str, place: str) -> Messages:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{place}: not valid JSON: {error}") from error
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        value = value["prompt"]
    if isinstance(value, str):
        if not value.strip():
            raise InvalidArgumentError(f"{place}: the prompt is empty")
        return [{"role": "user", "content": value}]
    messages = value.get("messages") if isinstance(value, dict) else None
    if not isinstance(messages, list) or not messages or not all(_is_message(message) for message in messages):
        raise InvalidArgumentError(f"{place}: must be a string, or an object with 'prompt' or 'messages'")
    if messages[-1]["role"] != "user":
        raise InvalidArgumentError(f"{place}: the last message must be the user's; the target writes the answer")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict) and isinstance(message.get("role"), str) and isinstance(message.get("content"), str)
    )
