"""Log-probabilities as OpenAI shows them: lists beside the text of a completion, objects per token of a chat."""

from __future__ import annotations

from typing import Any

from eagle31rt.logprobs import Logprob
from eagle31rt.outputs import CompletionOutput, RequestOutput

_MIN_LOGPROB = -9999.0  # JSON has no -inf; vLLM's stand-in


def _number(logprob: float) -> float:
    return max(logprob, _MIN_LOGPROB)


def _text(entry: Logprob) -> str:
    return entry.decoded_token or ""


def _by_rank(entries: dict[int, Logprob]) -> list[Logprob]:
    return sorted(entries.values(), key=lambda entry: entry.rank or 0)


class CompletionLogprobs:
    """One choice's lists; text offsets go on from chunk to chunk."""

    def __init__(self) -> None:
        self._offset = 0

    def render(self, sample: CompletionOutput, num_echoed: int) -> dict[str, Any] | None:
        """`num_echoed`: characters of the prompt before the sample's text."""
        if sample.logprobs is None:
            return None
        result: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        self._offset += num_echoed
        for token_id, entries in zip(sample.token_ids, sample.logprobs, strict=False):
            text = _text(entries[token_id])
            result["tokens"].append(text)
            result["token_logprobs"].append(_number(entries[token_id].logprob))
            result["top_logprobs"].append({_text(one): _number(one.logprob) for one in _by_rank(entries)})
            result["text_offset"].append(self._offset)
            self._offset += len(text)
        return result


def chat_logprobs(sample: CompletionOutput, num_alternatives: int) -> dict[str, Any] | None:
    """One object a token, each with at most `num_alternatives` of the most probable ids."""
    if sample.logprobs is None:
        return None
    content: list[dict[str, Any]] = []
    for token_id, entries in zip(sample.token_ids, sample.logprobs, strict=False):
        alternatives = [_entry(one) for one in _by_rank(entries) if (one.rank or 0) <= num_alternatives]
        content.append({**_entry(entries[token_id]), "top_logprobs": alternatives[:num_alternatives]})
    return {"content": content, "refusal": None}


def _entry(entry: Logprob) -> dict[str, Any]:
    text = _text(entry)
    return {"token": text, "logprob": _number(entry.logprob), "bytes": list(text.encode("utf-8", "replace"))}


def prompt_logprobs(output: RequestOutput) -> list[dict[str, Any] | None] | None:
    """One entry a prompt token: null for the first, then by token id, as vLLM shows them."""
    if output.prompt_logprobs is None:
        return None
    return [
        None
        if entries is None
        else {
            str(token_id): {"logprob": _number(one.logprob), "rank": one.rank, "decoded_token": one.decoded_token}
            for token_id, one in entries.items()
        }
        for entries in output.prompt_logprobs
    ]
