"""Log-probabilities as vLLM gives them: a dict from token id to Logprob for each token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle31rt._core import TokenLogprobs


@dataclass
class Logprob:
    """`rank`: 1 for the most probable id of the vocabulary. `decoded_token`: None without a tokenizer.

    The logprob is that of the model's own logits, at temperature 1 and before any penalty, bias or mask.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


TokenDecoder = Callable[[int], str]


def logprob_dict(entry: TokenLogprobs, decode: TokenDecoder | None) -> dict[int, Logprob]:
    """The token itself first, then the most probable ids, in descending order."""
    text = {token_id: None if decode is None else decode(token_id) for token_id in (entry.token_id, *entry.top_ids)}
    result = {entry.token_id: Logprob(entry.logprob, entry.rank, text[entry.token_id])}
    for rank, (token_id, logprob) in enumerate(zip(entry.top_ids, entry.top_logprobs, strict=True), start=1):
        result.setdefault(token_id, Logprob(logprob, rank, text[token_id]))
    return result


def prompt_logprob_list(entries: list[TokenLogprobs], decode: TokenDecoder | None) -> list[dict[int, Logprob] | None]:
    """One entry for each token of the prompt; None for the first, which nothing predicts."""
    return [None if index == 0 else logprob_dict(entry, decode) for index, entry in enumerate(entries)]
