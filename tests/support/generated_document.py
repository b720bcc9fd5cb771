"""Command line of the scripts that write a page of docs/ from what the tests or checks say."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def write_or_check(document: Path, text: str, script: str, description: str | None) -> None:
    """Writes the page, or with --check ends with an error if that would change it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        document.write_text(text)
    elif not document.is_file() or document.read_text() != text:
        sys.exit(f"docs/{document.name} is out of date; run python tests/{script}")
