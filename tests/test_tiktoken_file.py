"""tiktoken.model of Kimi models: the ids of tiktoken's own rule, words cut as Kimi cuts them, special tokens behind the
ranks, and no code that runs."""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.tokenizer import Tokenizer

AUTO_MAP = {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}
SAMPLE = "the theatre then gathered there, aaaa banana bandana; \u4e16\u754c\u4e16\u754c, \u00fcber-\u00fcbel " * 3


def train(text: str, count: int) -> dict[bytes, int]:
    """Ranks of all bytes and `count` merges, the most frequent pair each time, over words between spaces."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = [[bytes([byte]) for byte in (" " + word).encode()] for word in text.split()]
    for _ in range(count):
        pairs = Counter(pair for word in words for pair in itertools.pairwise(word))
        left, right = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks[left + right] = len(ranks)
        words = [_joined(word, left, right) for word in words]
    return ranks


def _joined(word: list[bytes], left: bytes, right: bytes) -> list[bytes]:
    result: list[bytes] = []
    for piece in word:
        if result and result[-1] == left and piece == right:
            result[-1] = left + right
        else:
            result.append(piece)
    return result


def tiktoken_ids(word: bytes, ranks: dict[bytes, int]) -> list[int]:
    """Join the neighbours whose joint token has the lowest rank, leftmost first, until none has one."""
    if word in ranks:
        return [ranks[word]]
    pieces = [bytes([byte]) for byte in word]
    while True:
        joint = [(ranks.get(a + b, len(ranks)), i) for i, (a, b) in enumerate(itertools.pairwise(pieces))]
        rank, index = min(joint, default=(len(ranks), 0))
        if rank == len(ranks):
            return [ranks[piece] for piece in pieces]
        pieces[index : index + 2] = [pieces[index] + pieces[index + 1]]


RANKS = train(SAMPLE, 40)


def write(directory: Path, config: dict[str, Any] | None = None, lines: list[bytes] | None = None) -> Path:
    if lines is None:
        lines = [base64.b64encode(token) + b" %d" % rank for token, rank in RANKS.items()]
    (directory / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    named = {str(len(RANKS)): {"content": "[BOS]"}, str(len(RANKS) + 2): {"content": "<|im_end|>"}}
    config = {"auto_map": AUTO_MAP, "added_tokens_decoder": named, "bos_token": "[BOS]", **(config or {})}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "tokenization_kimi.py").write_text("raise SystemExit('this must not run')")
    return directory


def test_ids_are_those_of_tiktoken(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(tmp_path))
    random = np.random.default_rng(3)
    letters = list("theranbdgbu")  # what the merges are made of
    for _ in range(300):
        word = "".join(random.choice(letters, random.integers(1, 14)))
        for text in (word, " " + word):
            assert tokenizer.encode(text) == tiktoken_ids(text.encode(), RANKS), text
    assert len(tokenizer.encode(" the")) == 1  # merges are used at all
    assert tokenizer.decode(tokenizer.encode(SAMPLE)) == SAMPLE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello World", ["Hello", " World"]),
        ("it's I'LL", ["it's", " I'LL"]),
        ("HTTPServer", ["HTTPServer"]),
        ("abc\u4e16\u754cdef", ["abc", "\u4e16\u754c", "def"]),
        ("12345", ["123", "45"]),
        ("a, b;\n\n c", ["a", ",", " b", ";\n\n", " c"]),
        ("x   y \n z", ["x", "  ", " y", " \n", " z"]),
        ("\u00fcber (\u00e4)", ["\u00fcber", " (", "\u00e4", ")"]),
    ],
)
def test_words_are_cut_as_kimi_cuts_them(tmp_path: Path, text: str, words: list[str]) -> None:
    tokenizer = Tokenizer(write(tmp_path))
    assert tokenizer.encode(text) == [i for word in words for i in tiktoken_ids(word.encode(), RANKS)]


def test_special_tokens_follow_the_ranks(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write(tmp_path))
    first = len(RANKS)
    assert tokenizer.encode(f"[BOS]<|im_end|><|reserved_token_{first + 255}|>") == [first, first + 2, first + 255]
    assert tokenizer.decode([first, first + 2]) == ""
    assert tokenizer.special_tokens == {"bos_token": "[BOS]"}
    table = tokenizer.token_bytes()
    assert table is not None and len(table.token_bytes) == first + 256
    assert table.token_bytes[:first] == list(RANKS)


def test_a_fast_tokenizer_beside_it_is_preferred(tmp_path: Path) -> None:
    (write(tmp_path) / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer.json is not a valid tokenizer"):
        Tokenizer(tmp_path)


def test_another_model_s_file_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write(tmp_path, {"auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}})
    with pytest.raises(UnsupportedError, match=r"code beside it is not run.*save_pretrained.*skip_tokenizer_init"):
        Tokenizer(tmp_path)


def _lines(count: int = 256) -> list[bytes]:
    return [base64.b64encode(bytes([byte])) + b" %d" % byte for byte in range(count)]


@pytest.mark.parametrize(
    ("lines", "config", "message"),
    [
        ([*_lines()[:9], b"!!! 9"], {}, r"line 10: not a token in base64"),
        ([*_lines()[:9], b"YQ=="], {}, r"line 10: not a token in base64"),
        ([*_lines()[:9], b"YWE= 11"], {}, r"line 10: ranks must count up"),
        ([*_lines(), b"AA== 256"], {}, r"line 257: ranks must count up from 0, each for another token"),
        (_lines(255), {}, r"lacks a token for some byte"),
        (_lines(), {"added_tokens_decoder": {"x": {"content": "a"}}}, r"must map ids to tokens"),
        (_lines(), {"added_tokens_decoder": {"256": {"content": "a"}}}, r"a token that has an id already"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, lines: list[bytes], config: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Tokenizer(write(tmp_path, config, lines))
