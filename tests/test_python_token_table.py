"""The token table says of any ids what the tokenizer's own decoder says, or there is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.successor import write_successor_target
from support.tiny_tokenizer import SPECIAL, VOCAB_SIZE, write_tiny_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from eagle31rt import LLM, SamplingParams, token_table
from eagle31rt.token_table import TokenBytes, read_token_bytes

SPACE = "\u2581"
# Byte tokens come as whole characters here: broken ones are the one thing in which the two may differ.
PIECES = ["<unk>", "</s>", f"{SPACE}Hello", f"{SPACE}big", "ger", SPACE, SPACE * 2, f"a{SPACE}b", "<0x41>", "<0x0A>"]
PIECES += ["\u00e9", "\U0001f600", "<0xZZ>", "<0xE2>", "<0x82>", "<0xAC>"]
EURO = [13, 14, 15]
REPLACE, STRIP = decoders.Replace(SPACE, " "), decoders.Strip(" ", 1, 0)


def sentencepiece(*steps: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(PIECES)}, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(list(steps))
    tokenizer.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("</s>", special=True)])
    tokenizer.add_tokens([AddedToken(f" added{SPACE}one ", special=False)])
    return tokenizer


LLAMA = sentencepiece(REPLACE, decoders.ByteFallback(), decoders.Fuse(), STRIP)
GEMMA = sentencepiece(REPLACE, decoders.ByteFallback(), decoders.Fuse())
THREE_SPACES = sentencepiece(REPLACE, decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 3, 0))


def byte_level() -> Tokenizer:
    """All bytes, a merge, and added tokens with characters inside and outside the byte alphabet."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={token: i for i, token in enumerate([*alphabet, "th"])}, merges=[("t", "h")])
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True)])
    tokenizer.add_tokens(["  ", "a b", "\u00e9", "\u0120x", "\u4e2d", "\xad"])
    return tokenizer


BYTE_LEVEL = byte_level()


def table_of(tokenizer: Tokenizer) -> TokenBytes:
    table = read_token_bytes(tokenizer)
    assert table is not None
    return table


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, BYTE_LEVEL.get_vocab_size() - 1), max_size=12), skip=st.booleans())
def test_byte_level_ids(ids: list[int], skip: bool) -> None:
    assert table_of(BYTE_LEVEL).text(ids, skip) == BYTE_LEVEL.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(
    pieces=st.lists(st.sampled_from([[i] for i in [*range(13), 16]] + [EURO]), max_size=10),
    skip=st.booleans(),
    tokenizer=st.sampled_from([LLAMA, GEMMA, THREE_SPACES]),
)
def test_sentencepiece_ids(pieces: list[list[int]], skip: bool, tokenizer: Tokenizer) -> None:
    ids = [token_id for piece in pieces for token_id in piece]
    assert table_of(tokenizer).text(ids, skip) == tokenizer.decode(ids, skip_special_tokens=skip)


def test_ids_without_a_token_say_nothing() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0, "b": 5}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    assert table_of(tokenizer).token_bytes == [b"a", b"", b"", b"", b"", b"b"]


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.BPEDecoder(),
        decoders.Sequence([REPLACE]),  # not fused
        decoders.Sequence([REPLACE, STRIP, decoders.Fuse()]),  # strips every token
        decoders.Sequence([decoders.Fuse(), REPLACE]),  # replaces over the seams
        decoders.Sequence([REPLACE, decoders.Fuse(), decoders.Strip(" ", 1, 1)]),  # the end of a text is not known
    ],
)
def test_other_decoders_have_no_table(decoder: Any) -> None:
    tokenizer = sentencepiece(REPLACE)
    tokenizer.decoder = decoder
    assert read_token_bytes(tokenizer) is None


def test_a_table_that_says_something_else_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        token_table, "_byte_level", lambda: lambda token: token.replace("h", "H").encode("latin-1", "replace")
    )
    assert read_token_bytes(BYTE_LEVEL) is None


def test_llm_takes_text_and_stop_strings_from_the_engine(tmp_path: Path) -> None:
    directory = write_successor_target(tmp_path / "target").directory
    tokenizer = write_tiny_tokenizer(directory)
    greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, skip_special_tokens=False)
    output = LLM(directory).generate("abc", greedy)[0].outputs[0]
    assert output.text == tokenizer.decode(output.token_ids, skip_special_tokens=False)


def test_without_a_table_text_is_made_in_python(tmp_path: Path) -> None:
    """A WordPiece decoder cannot be told token by token."""
    directory = write_successor_target(tmp_path / "target").directory
    write_tiny_tokenizer(directory)
    config = json.loads((directory / "tokenizer.json").read_text())
    config["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    (directory / "tokenizer.json").write_text(json.dumps(config))
    llm = LLM(directory)
    assert llm.get_tokenizer().token_bytes() is None
    output = llm.generate("abc", SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))[0].outputs[0]
    assert output.text == llm.get_tokenizer().decode(output.token_ids)
    assert len(SPECIAL) < VOCAB_SIZE and output.text.count(" ") >= 7
