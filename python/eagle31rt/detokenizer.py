"""Token ids to text, piece by piece, without ever showing half of a character."""

from __future__ import annotations

from collections.abc import Callable, Iterable

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A UTF-8 character has at most 4 bytes, so at most 3 replacement characters can still turn into something else.
_MAX_HELD_BACK = 3


class IncrementalDetokenizer:
    """Decodes a growing list of ids. Pieces concatenate to the same text however the ids are cut into calls.

    A token may hold part of a character, and some decoders treat the first token of a text specially. So each id is
    decoded together with the ids of the last whole character and after, and what that prefix alone gives is taken off.
    """

    def __init__(self, decode: Callable[[list[int]], str], skipped_ids: frozenset[int] = frozenset()) -> None:
        """`decode` maps ids to text; ids in `skipped_ids` (special tokens) leave no text."""
        self._decode = decode
        self._skipped_ids = skipped_ids
        self._ids: list[int] = []  # context, then pending ids
        self._num_context = 0
        self._context_text = ""
        self._num_emitted = 0  # characters of the pending text already given out

    def add(self, token_ids: Iterable[int]) -> str:
        """The text that `token_ids` complete. What could still change stays back."""
        return "".join([self._add_one(token_id) for token_id in token_ids if token_id not in self._skipped_ids])

    def finish(self) -> str:
        """What was held back; an unfinished character comes as replacement characters."""
        text = self._pending_text()[self._num_emitted :]
        self._advance()
        return text

    def _add_one(self, token_id: int) -> str:
        self._ids.append(token_id)
        text = self._pending_text()
        num_held_back = min(len(text) - len(text.rstrip(_REPLACEMENT)), _MAX_HELD_BACK)
        piece = text[self._num_emitted : len(text) - num_held_back]
        self._num_emitted += len(piece)
        if text and not num_held_back:
            self._advance()
        return piece

    def _pending_text(self) -> str:
        return self._decode(self._ids)[len(self._context_text) :]

    def _advance(self) -> None:
        self._ids = self._ids[self._num_context :]
        self._num_context = len(self._ids)
        self._context_text = self._decode(self._ids)
        self._num_emitted = 0
