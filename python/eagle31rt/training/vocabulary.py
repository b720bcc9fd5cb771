"""The draft vocabulary: the target's ids that its own texts use most."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from eagle31rt.training.conversations import ASSISTANT, Conversation

# A token in a prompt says less about answers than one in an answer.
_PROMPT_WEIGHT = 0.1


def count_tokens(conversations: Iterable[Conversation], vocab_size: int) -> npt.NDArray[np.float64]:
    """Weighted occurrences of every id, [vocab_size]."""
    counts = np.zeros(vocab_size)
    for conversation in conversations:
        answer = conversation.roles == ASSISTANT
        counts += np.bincount(conversation.token_ids[answer], minlength=vocab_size)
        counts += _PROMPT_WEIGHT * np.bincount(conversation.token_ids[~answer], minlength=vocab_size)
    return counts


def choose_vocabulary(counts: npt.NDArray[np.float64], size: int, always: Iterable[int] = ()) -> npt.NDArray[np.int64]:
    """Ascending ids of the `size` most frequent tokens, [size]. `always` are among them (ends of turns).

    Ties, above all between tokens never seen, go to the lower id: in vocabularies made by merging pairs the order of
    ids is that of merges, so lower ids are the more frequent ones of the text that the tokenizer was made from.
    """
    weights = counts.astype(np.float64).copy()
    weights[list(always)] = np.inf
    order = np.argsort(-weights, kind="stable")
    return np.sort(order[:size]).astype(np.int64)


def coverage(counts: npt.NDArray[np.float64], kept: npt.NDArray[np.int64]) -> float:
    """Share of the counted tokens that a draft of this vocabulary could propose."""
    total = counts.sum()
    return float(counts[kept].sum() / total) if total else 0.0
