"""Text <-> token ids, from a Hugging Face directory, by the `tokenizers` library."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as _FastTokenizer

from eagle31rt import tiktoken_file
from eagle31rt.chat_template import MAX_TEMPLATE_BYTES, ChatTemplate
from eagle31rt.detokenizer import IncrementalDetokenizer
from eagle31rt.errors import CheckpointError, InvalidArgumentError
from eagle31rt.token_table import TokenBytes, read_token_bytes

_TEMPLATE_FILE = "chat_template.jinja"
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_ARGUMENT_VARIABLES = ("messages", "add_generation_prompt", "tools", "chat_template")
_MAX_CONFIG_BYTES = 64 << 20


class Tokenizer:
    """tokenizer.json, or tiktoken.model of Kimi, with the chat template and special tokens of its directory."""

    def __init__(self, directory: Path) -> None:
        """Raises CheckpointError naming the file that is missing or broken, UnsupportedError for a tiktoken.model whose
        rule for words is not known."""
        config = _read_json_object(directory / "tokenizer_config.json")
        self._tokenizer: Any = _read_tokenizer(directory, config)
        self._tokenizer.no_truncation()  # saved settings of training runs; they would cut prompts silently
        self._tokenizer.no_padding()
        special_map = _read_json_object(directory / "special_tokens_map.json")
        self.special_tokens = _special_tokens({**special_map, **config})
        added: dict[int, Any] = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        vocabulary: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        self._max_token_bytes = max((len(token.encode()) for token in vocabulary), default=0)
        template = _template_source(directory, config)
        self._chat_template = None if template is None else ChatTemplate(template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`; beginning-of-sequence and the like come from the tokenizer's own post-processor."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text to tokenise must be str, got {type(text).__name__}")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            character = text[error.start]
            raise InvalidArgumentError(
                f"text is not valid Unicode: lone surrogate {character!r} at position {error.start}; "
                'decode the bytes with errors="replace"'
            ) from error
        # Of the library's functions for one text and for several, only the latter let other threads run meanwhile.
        ids: list[int] = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    @property
    def max_token_bytes(self) -> int:
        """No token says more than so many bytes."""
        return self._max_token_bytes

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of `token_ids`, the same as a detokenizer gives in pieces."""
        detokenizer = self.detokenizer(skip_special_tokens)
        return detokenizer.add(token_ids) + detokenizer.finish()

    def token_bytes(self) -> TokenBytes | None:
        """What the ids say; None if this kind of tokenizer cannot tell it token by token."""
        return read_token_bytes(self._tokenizer)

    def decode_token(self, token_id: int) -> str:
        """Text of one token, special or not; bytes that are no whole character come as replacement characters."""
        return self._decode_all([token_id])

    def to_json(self) -> str:
        """The tokenizer as tokenizer.json holds it."""
        text: str = self._tokenizer.to_str()
        return text

    def detokenizer(self, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        return IncrementalDetokenizer(self._decode_all, self._special_ids if skip_special_tokens else frozenset())

    def _decode_all(self, token_ids: list[int]) -> str:
        text: str = self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    @property
    def has_chat_template(self) -> bool:
        return self._chat_template is not None

    def render_chat(
        self,
        messages: list[dict[str, Any]],
        add_generation_prompt: bool = True,
        chat_template: str | None = None,
        tools: list[dict[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt text of a conversation; `variables` are further ones of the template.

        Raises InvalidArgumentError if the template refuses it or is unsafe, or for a variable that is an argument here.
        """
        reserved = [name for name in _ARGUMENT_VARIABLES if name in (variables or {})]
        if reserved:
            raise InvalidArgumentError(f"chat_template_kwargs may not hold {reserved[0]!r}: give it by itself")
        template = self._chat_template if chat_template is None else ChatTemplate(chat_template)
        if template is None:
            raise InvalidArgumentError(
                "no chat template in tokenizer_config.json or chat_template.jinja: pass chat_template=..., "
                "or use generate() with the text the model expects"
            )
        values = {**self.special_tokens, "tools": tools, "documents": None, **(variables or {})}
        return template.render({**values, "messages": messages, "add_generation_prompt": add_generation_prompt})


def chat_template_of(directory: Path) -> str | None:
    """The template as written, or None. Raises CheckpointError naming a broken file."""
    return _template_source(directory, _read_json_object(directory / "tokenizer_config.json"))


def _read_tokenizer(directory: Path, config: dict[str, Any]) -> Any:
    path = directory / "tokenizer.json"
    if not path.is_file():
        if (directory / tiktoken_file.FILE_NAME).is_file():
            return tiktoken_file.read_tiktoken(directory, config)
        raise CheckpointError(
            f"{directory} has no tokenizer.json (a fast tokenizer): convert it, give `tokenizer=` another "
            "directory, or pass token ids with skip_tokenizer_init=True"
        )
    try:
        return _FastTokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise CheckpointError(f"{path} is not a valid tokenizer: {error}") from error


def _read_json_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    if path.stat().st_size > _MAX_CONFIG_BYTES:
        raise CheckpointError(f"{path} is larger than {_MAX_CONFIG_BYTES} bytes: not a tokenizer's config")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} must hold a JSON object")
    return value


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """bos_token and so on as text; the files hold either strings or {"content": ...}."""
    result: dict[str, str] = {}
    for name in _NAMED_TOKENS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            result[name] = content
    return result


def _template_source(directory: Path, config: dict[str, Any]) -> str | None:
    """chat_template.jinja first, then tokenizer_config.json: a string, or a list with one named "default"."""
    path = directory / _TEMPLATE_FILE
    if path.is_file():
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise CheckpointError(f"{path} is larger than {MAX_TEMPLATE_BYTES} bytes")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{path} is not valid UTF-8: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError(
            f"chat_template in {directory / 'tokenizer_config.json'} must be text or a list of named ones"
        )
    return template
