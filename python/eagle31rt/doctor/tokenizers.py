"""Whether the tokenizer beside a draft is the target's. Most drafts come without one; then there is nothing to say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eagle31rt.errors import CheckpointError
from eagle31rt.tokenizer import chat_template_of


def compare_tokenizers(target: Path, draft: Path) -> str | None:
    """What differs, in words, or None. Reads tokenizer.json of both unless they are equal byte for byte."""
    try:
        return _compare_vocabularies(target, draft) or _compare_templates(target, draft)
    except (CheckpointError, OSError, ValueError, RecursionError) as error:
        return f"the tokenizers of target and draft cannot be compared: {error}"


def _compare_vocabularies(target: Path, draft: Path) -> str | None:
    paths = [folder / "tokenizer.json" for folder in (target, draft)]
    if not all(path.is_file() for path in paths):
        return None
    texts = [path.read_bytes() for path in paths]
    if texts[0] == texts[1]:
        return None
    own, other = (_vocabulary(json.loads(text)) for text in texts)
    moved = sum(own.get(token) != token_id for token, token_id in other.items())
    if moved == 0:
        return None
    return (
        f"{moved} of the {len(other)} tokens in the draft's tokenizer.json have another id in the target's; the draft "
        "was made for another vocabulary"
    )


def _compare_templates(target: Path, draft: Path) -> str | None:
    own, other = chat_template_of(target), chat_template_of(draft)
    if own is None or other is None or own == other:
        return None
    return (
        "the chat template beside the draft is not the target's; prompts that are rendered otherwise than in training "
        "(thinking or not, say) lower acceptance"
    )


def _vocabulary(tokenizer: Any) -> dict[str, int]:
    """Token -> id of a tokenizer.json; a unigram model lists [token, score] in the order of ids."""
    if not isinstance(tokenizer, dict) or "vocab" not in tokenizer.get("model", {}):
        raise ValueError("a tokenizer.json has no vocabulary")
    entries = tokenizer["model"]["vocab"]
    if isinstance(entries, list):
        entries = {entry[0]: index for index, entry in enumerate(entries)}
    added = {token["content"]: token["id"] for token in tokenizer.get("added_tokens") or []}
    return {**entries, **added}
