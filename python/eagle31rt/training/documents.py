"""Texts of the user, cut into passages: long prompts, and words that the target's own answers rarely use."""

from __future__ import annotations

import re
from pathlib import Path

from eagle31rt.errors import InvalidArgumentError

_SUFFIXES = (".txt", ".md", ".rst")
_SHORTEST, _LONGEST = 200, 2400  # characters of a passage: about 50 to 600 tokens


def read_documents(path: Path) -> list[str]:
    """Passages of a UTF-8 text file, or of all .txt, .md and .rst files under a folder, in the order of their names.

    Paragraphs (divided by blank lines) are joined until they make a passage; a longer one is cut between words.
    Raises InvalidArgumentError naming the file.
    """
    if not path.exists():
        raise InvalidArgumentError(f"--documents: there is no file or folder {path}")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.suffix in _SUFFIXES and p.is_file())
    passages: list[str] = []
    for file in files:
        try:
            passages += _passages(file.read_text(encoding="utf-8-sig"))
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"{file} is not valid UTF-8: {error}") from error
    if not passages:
        kinds = ", ".join(_SUFFIXES)
        wanted = f"give a text file, or a folder of {kinds} files"
        raise InvalidArgumentError(f"{path} holds no passages of at least {_SHORTEST} characters: {wanted}")
    return passages


def _passages(text: str) -> list[str]:
    passages: list[str] = []
    passage = ""
    for paragraph in re.split(r"\n\s*\n", text):
        for piece in _pieces(paragraph.strip("\n")):
            if passage and len(passage) + len(piece) + 2 > _LONGEST:
                passages.append(passage)
                passage = ""
            passage = f"{passage}\n\n{piece}" if passage else piece
    return [kept for kept in (*passages, passage) if len(kept) >= _SHORTEST]


def _pieces(paragraph: str) -> list[str]:
    """At most _LONGEST characters each; cut before a space where there is one."""
    pieces: list[str] = []
    while len(paragraph) > _LONGEST:
        cut = paragraph.rfind(" ", 1, _LONGEST + 1)
        cut = _LONGEST if cut < 0 else cut
        pieces.append(paragraph[:cut])
        paragraph = paragraph[cut:].lstrip(" ")
    return [*pieces, paragraph] if paragraph else pieces
