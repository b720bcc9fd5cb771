"""Text in pieces: however the ids are cut, the pieces are the text of all ids, and no piece shows half a character."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from eagle31rt.detokenizer import IncrementalDetokenizer
from eagle31rt.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(directory)
    return Tokenizer(directory)


def in_pieces(detokenizer: IncrementalDetokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [detokenizer.add(ids[left:right]) for left, right in pairwise(bounds)]
    return [*pieces, detokenizer.finish()]


@settings(max_examples=300, deadline=None)
@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40), cuts=st.lists(st.integers(0, 40), max_size=10))
def test_any_ids_cut_anywhere(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> None:
    """Random bytes: most are not valid UTF-8, so this is about replacement characters as well."""
    for skip in (True, False):
        whole = tokenizer._tokenizer.decode(ids, skip_special_tokens=skip)
        assert "".join(in_pieces(tokenizer.detokenizer(skip), ids, cuts)) == whole == tokenizer.decode(ids, skip)


@settings(max_examples=200, deadline=None)
@given(
    text=st.text(st.sampled_from("ab \n\u00e9\u00fc\u20ac\u4e2d\U0001f600"), max_size=30),
    cuts=st.lists(st.integers(0, 99), max_size=12),
)
def test_valid_text_never_shows_half_a_character(tokenizer: Tokenizer, text: str, cuts: list[int]) -> None:
    pieces = in_pieces(tokenizer.detokenizer(), tokenizer.encode(text), cuts)
    assert "".join(pieces) == text
    assert not any(REPLACEMENT in piece for piece in pieces)


def test_text_comes_as_soon_as_it_is_certain(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a\U0001f600b", add_special_tokens=False)
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.add([token_id]) for token_id in ids] == ["a", "", "", "", "\U0001f600", "b"]
    cut_short = tokenizer.detokenizer()
    assert [cut_short.add(ids[:3]), cut_short.finish()] == ["a", REPLACEMENT]


def test_special_tokens_are_skipped_or_shown(tokenizer: Tokenizer) -> None:
    ids = [1, *tokenizer.encode("ab", add_special_tokens=False), 2]
    assert tokenizer.decode(ids) == "ab"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<s>ab</s>"


def test_sentencepiece_style_spaces_and_byte_fallback() -> None:
    """Such decoders drop the space of the first word; a piece in the middle must keep it."""
    tokens = ["<unk>", "\u2581Hello", "\u2581big", "ger", "<0xE2>", "<0x82>", "<0xAC>", "</s>"]
    fast = FastTokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[], byte_fallback=True))
    replace, strip = decoders.Replace("\u2581", " "), decoders.Strip(" ", 1, 0)
    fast.decoder = decoders.Sequence([replace, decoders.ByteFallback(), decoders.Fuse(), strip])
    detokenizer = IncrementalDetokenizer(lambda ids: fast.decode(ids, skip_special_tokens=False), frozenset({7}))
    pieces = [detokenizer.add([token_id]) for token_id in (1, 7, 2, 3, 4, 5, 6, 1)]
    assert pieces == ["Hello", "", " big", "ger", "", "", "\u20ac", " Hello"]


def test_long_runs_of_broken_bytes_stream(tokenizer: Tokenizer) -> None:
    """Only the last few characters may be held back, not everything since the last whole one."""
    broken = tokenizer.encode("\u20ac", add_special_tokens=False)[1]
    detokenizer = tokenizer.detokenizer()
    pieces = [detokenizer.add([broken]) for _ in range(50)]
    assert len("".join(pieces)) >= 45
    assert "".join(pieces) + detokenizer.finish() == tokenizer.decode([broken] * 50)


def test_the_decoded_window_stays_short(tokenizer: Tokenizer) -> None:
    """Otherwise a text costs the square of its length."""
    longest = 0

    def decode(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return tokenizer._decode_all(ids)

    detokenizer = IncrementalDetokenizer(decode)
    ids = tokenizer.encode("ab \u20ac\U0001f600" * 50)
    assert detokenizer.add(ids) + detokenizer.finish() == "<s>" + "ab \u20ac\U0001f600" * 50
    assert longest <= 8  # two characters


def test_tokenizer_refuses_lone_surrogates_and_other_types(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"lone surrogate .* at position 2"):
        tokenizer.encode("ab\ud800c")
    with pytest.raises(ValueError, match="must be str, got bytes"):
        tokenizer.encode(b"ab")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "has no tokenizer.json"),
        ("tokenizer.json", "{", "not a valid tokenizer"),
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[" * 100_000, "not valid JSON"),
        ("tokenizer_config.json", "[]", "must hold a JSON object"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat_template in .* must be text"),
        ("chat_template.jinja", "x" * 2_000_000, "larger than"),
    ],
)
def test_broken_files_are_named(tmp_path: Path, name: str, content: str | None, message: str) -> None:
    write_tiny_tokenizer(tmp_path)
    (tmp_path / name).unlink(missing_ok=True)
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        Tokenizer(tmp_path)


def test_places_of_the_chat_template(tmp_path: Path) -> None:
    write_tiny_tokenizer(tmp_path)
    message = [{"role": "user", "content": "a"}]
    assert Tokenizer(tmp_path).render_chat(message) == "<s>user:a</s>bot:"
    assert Tokenizer(tmp_path).render_chat(message, chat_template="{{ x }}", variables={"x": "given"}) == "given"
    (tmp_path / "tokenizer_config.json").write_text(
        '{"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}'
    )
    assert Tokenizer(tmp_path).render_chat(message) == "D"
    (tmp_path / "chat_template.jinja").write_text("file")
    assert Tokenizer(tmp_path).render_chat(message) == "file"
    (tmp_path / "chat_template.jinja").unlink()
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer(tmp_path).render_chat(message)
