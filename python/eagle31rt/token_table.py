"""What each token id says, in bytes, read from a tokenizer's decoder: the table by which the engine makes text.

Two kinds of decoders can be told token by token: byte-level ones, and those in the style of SentencePiece. For the rest
text is made by `detokenizer` in Python, and stop strings are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle31rt import _core

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NUM_SAMPLED = 4096  # ids whose text is compared with the tokenizer's when it is loaded: a few milliseconds
_SAMPLE_LENGTH = 8  # ids of one comparison


@dataclass(frozen=True)
class _Decoder:
    to_bytes: Callable[[str], bytes]
    num_leading_spaces_dropped: int
    # Byte-fallback decoders give one U+FFFD for each byte of a broken run; the engine one for each broken character.
    is_exact_for_broken_text: bool


@dataclass(frozen=True)
class TokenBytes:
    """`token_bytes[id]` is what the id says; see csrc/include/eagle31rt/token_table.h."""

    token_bytes: list[bytes]
    special_ids: frozenset[int]
    num_leading_spaces_dropped: int

    def text(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """What the engine makes of these ids."""
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        data = b"".join([self.token_bytes[token_id] for token_id in token_ids if token_id not in skipped])
        for _ in range(self.num_leading_spaces_dropped):
            data = data.removeprefix(b" ")
        return data.decode(errors="replace")

    def to_core(self) -> _core.TokenTable:
        from eagle31rt import _core

        is_special = [token_id in self.special_ids for token_id in range(len(self.token_bytes))]
        return _core.TokenTable(self.token_bytes, is_special, self.num_leading_spaces_dropped)


def read_token_bytes(tokenizer: Any) -> TokenBytes | None:
    """From a `tokenizers.Tokenizer`; None if its decoder cannot be told token by token, or tells something else."""
    decoder = _read_decoder(tokenizer)
    if decoder is None:
        return None
    added: dict[int, Any] = tokenizer.get_added_tokens_decoder()
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}
    tokens.update({token_id: token.content for token_id, token in added.items()})
    token_bytes = [b""] * (max(tokens, default=-1) + 1)
    for token_id, token in tokens.items():
        token_bytes[token_id] = decoder.to_bytes(token)
    special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
    table = TokenBytes(token_bytes, special_ids, decoder.num_leading_spaces_dropped)
    return table if _agrees(table, tokenizer, decoder, sorted(added)) else None


def _read_decoder(tokenizer: Any) -> _Decoder | None:
    if tokenizer.decoder is None:
        return None
    config = json.loads(tokenizer.decoder.__getstate__())
    steps = config["decoders"] if config["type"] == "Sequence" else [config]
    if [step["type"] for step in steps] == ["ByteLevel"]:
        return _Decoder(_byte_level(), 0, is_exact_for_broken_text=True)
    return _sentencepiece(steps)


def _byte_level() -> Callable[[str], bytes]:
    """Printable characters stand for themselves, other bytes for characters from U+0100 on (GPT-2's alphabet).

    A token with a character outside the alphabet, which only added ones have, stands for its own UTF-8.
    """
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    latin_1 = {0x100 + index: byte for index, byte in enumerate(others)}
    latin_1.update(dict.fromkeys(others, 0xFFFF))  # these stand for nothing; not in Latin-1

    def to_bytes(token: str) -> bytes:
        try:
            return token.translate(latin_1).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return to_bytes


def _sentencepiece(steps: list[dict[str, Any]]) -> _Decoder | None:
    """Replacements and byte tokens, then all joined, then spaces dropped at the beginning. None for anything else."""
    replacements: list[tuple[str, str]] = []
    has_bytes = is_fused = False
    num_dropped = 0
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": pattern}, "content": content} if not (has_bytes or is_fused):
                replacements.append((pattern, content))
            case {"type": "ByteFallback"} if not (has_bytes or is_fused):
                has_bytes = True
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Strip", "content": " ", "start": start, "stop": 0} if is_fused and not num_dropped:
                num_dropped = start
            case _:
                return None
    if not is_fused:
        return None

    def to_bytes(token: str) -> bytes:
        for pattern, content in replacements:
            token = token.replace(pattern, content)
        byte = _BYTE_TOKEN.fullmatch(token) if has_bytes else None
        return token.encode() if byte is None else bytes([int(byte[1], 16)])

    return _Decoder(to_bytes, num_dropped, is_exact_for_broken_text=not has_bytes)


def _samples(num_ids: int, added: list[int]) -> Iterator[list[int]]:
    """Runs of ids from all over the vocabulary, and the added ones; neighbours in a run come from far apart."""
    stride = max(1, num_ids // _NUM_SAMPLED)
    ids = [*range(0, num_ids, stride), *added[:_NUM_SAMPLED]]
    num_runs = -(-len(ids) // _SAMPLE_LENGTH)
    return (ids[run::num_runs] for run in range(num_runs))


def _agrees(table: TokenBytes, tokenizer: Any, decoder: _Decoder, added: list[int]) -> bool:
    runs = list(_samples(len(table.token_bytes), added))
    if not decoder.is_exact_for_broken_text:
        runs = [[token_id for token_id in run if _is_text(table.token_bytes[token_id])] for run in runs]
    for skip in (False, True):
        texts: list[str] = tokenizer.decode_batch(runs, skip_special_tokens=skip)
        if texts != [table.text(run, skip) for run in runs]:
            return False
    return True


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
