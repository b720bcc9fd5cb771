"""tiktoken.model, the tokenizer of Kimi models, as a tokenizer of the `tokenizers` library.

The file holds tokens and their ranks. How text is cut into words before that stands in a Python file beside it, which
is never run: the expression is known here for the one kind that is read.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from eagle31rt.errors import CheckpointError, UnsupportedError

FILE_NAME = "tiktoken.model"
_CODE_FILE = "tokenization_kimi"
_NUM_SPECIAL = 256  # the ids behind the ranks
_MAX_BYTES = 64 << 20
_MAX_TOKENS = 1 << 20
_MAX_TOKEN_BYTES = 1024

# What tokenization_kimi.py (moonshotai/Kimi-K2-Instruct and later) gives to tiktoken: a run of Han characters; a word
# of other letters, perhaps after one mark, with an English ending; up to three digits; marks; white space.
_LETTERS = r"\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}" + _LETTERS, r"[\p{Ll}" + _LETTERS
_ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORDS = "|".join(
    [
        r"[\p{Han}]+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_ENDING}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_ENDING}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)


def read_tiktoken(directory: Path, config: dict[str, Any]) -> Any:
    """`tokenizers.Tokenizer` of `directory`/tiktoken.model. config: that of tokenizer_config.json.

    Raises UnsupportedError if the file is not of a Kimi model, and CheckpointError if it is broken.
    """
    path = directory / FILE_NAME
    if not any(_CODE_FILE in str(value) for value in _flat(config.get("auto_map"))):
        raise UnsupportedError(
            f"{path} does not say how text is cut into words, and the code beside it is not run; it is read for Kimi "
            f"models ({_CODE_FILE} in the auto_map of tokenizer_config.json). Save a tokenizer.json with transformers "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(DIR)) and give tokenizer=DIR, or pass token ids with "
            "skip_tokenizer_init=True"
        )
    ranks = _read_ranks(path)
    alphabet = _byte_alphabet()
    spelled = {token: "".join([alphabet[byte] for byte in token]) for token in ranks}
    vocabulary = {spelled[token]: rank for token, rank in ranks.items()}
    merges = [(spelled[left], spelled[right]) for left, right in _merges(ranks)]
    # ignore_merges: a word that is a token is that token, as in tiktoken.
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = _special_tokens(len(ranks), config.get("added_tokens_decoder"), path)
    tokenizer.add_special_tokens([AddedToken(content, normalized=False, special=True) for content in special])
    if any(tokenizer.token_to_id(content) != len(ranks) + index for index, content in enumerate(special)):
        raise CheckpointError(f"added_tokens_decoder beside {path} names a token that has an id already")
    return tokenizer


def _flat(value: Any) -> list[Any]:
    """The leaves of lists and objects of JSON."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, list) else [value]


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Lines of a token in base64 and its rank; ranks count from 0."""
    if path.stat().st_size > _MAX_BYTES:
        raise CheckpointError(f"{path} is larger than {_MAX_BYTES} bytes: not a tokenizer")
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(path.read_bytes().splitlines()):
        try:
            encoded, rank = line.split()
            token = base64.b64decode(encoded, validate=True)
            in_order = int(rank) == number
        except (ValueError, binascii.Error) as error:
            raise CheckpointError(f"{path}, line {number + 1}: not a token in base64 and its rank") from error
        if not in_order or token in ranks or not 1 <= len(token) <= _MAX_TOKEN_BYTES or number >= _MAX_TOKENS:
            raise CheckpointError(f"{path}, line {number + 1}: ranks must count up from 0, each for another token")
        ranks[token] = number
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise CheckpointError(f"{path} lacks a token for some byte; the file is incomplete")
    return ranks


def _merges(ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """tiktoken joins any two neighbours that together are a token, the lowest rank first: so every way to cut a token.

    Of cuts of the same token the library takes the first listed, tiktoken the leftmost in the text. That differs only
    inside a run of one repeated piece.
    """
    return [
        (token[:cut], token[cut:])
        for token in ranks  # in the order of their ranks
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


def _byte_alphabet() -> list[str]:
    """The character by which byte-level tokenizers spell each byte: itself if printable, else one from U+0100 on."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


def _special_tokens(first: int, named: Any, path: Path) -> list[str]:
    """In the order of their ids, from `first` on; those without a name have the one that Kimi's code gives them."""
    names: dict[int, str] = {}
    for key, value in (named if isinstance(named, dict) else {}).items():
        content = value.get("content") if isinstance(value, dict) else None
        if not key.isdecimal() or not isinstance(content, str) or not content:
            raise CheckpointError(f"added_tokens_decoder beside {path} must map ids to tokens with a content")
        names[int(key)] = content
    return [names.get(token_id, f"<|reserved_token_{token_id}|>") for token_id in range(first, first + _NUM_SPECIAL)]
