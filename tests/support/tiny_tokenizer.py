"""A byte-level tokenizer of 96 tokens for the tiny targets: one token a byte, so that characters are cut everywhere."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

SPECIAL = ("<unk>", "<s>", "</s>")
VOCAB_SIZE = 96
# Letters and the bytes of the characters below; the rest of the vocabulary are more bytes.
TEXT = "abcdefghijklmnopqrstuvwxyz .,:\n\u00e9\u00fc\u20ac\u4e2d\U0001f600"
JSON_TEXT = 'abcdefghijklmnopqrstuvwxyz0123456789{}[]":,.-+ \n\u00e9\u20ac'  # what JSON is written with
CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}{{ message['role'] }}:{{ message['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}bot:{% endif %}"
)


def byte_tokens(text: str = TEXT) -> list[str]:
    """The byte-level spelling of every byte of `text`, then of others until the vocabulary is full."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelled = "".join(piece for piece, _ in level.pre_tokenize_str(text))
    others = sorted(pre_tokenizers.ByteLevel.alphabet())
    return list(dict.fromkeys([*spelled, *others]))[: VOCAB_SIZE - len(SPECIAL)]


def write_tiny_tokenizer(directory: Path, add_bos: bool = True, text: str = TEXT) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *byte_tokens(text)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer
