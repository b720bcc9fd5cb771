"""docs/limits.md is what the checks say, and each of them refuses by name."""

from __future__ import annotations

import re

from limits import DOCUMENT, render, sections


def test_every_refusal_names_what_it_refuses() -> None:
    with sections() as all_sections:
        assert all(all_sections.values())
        for title, refusals in all_sections.items():
            for refusal in refusals:
                message = refusal.message()
                name = re.split(r"[=( ]", refusal.what)[0].removeprefix("--")
                name = name.replace("-", "_") if refusal.what.startswith("--") else name
                if title != "Models" and name not in ("prompt", "message", "structured_outputs:"):
                    assert name in message, refusal.what


def test_the_document_is_up_to_date() -> None:
    assert DOCUMENT.read_text() == render(), "run python tests/limits.py"
