"""Outputs of submitted requests as an asynchronous iterator. Everything here happens in the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from eagle31rt.outputs import CompletionOutput, RequestOutput
from eagle31rt.sampling_params import RequestOutputKind

if TYPE_CHECKING:
    from eagle31rt.request import Request, Sample


@dataclass
class _Taken:
    """How much of a sample has been given out."""

    num_characters: int = 0
    num_ids: int = 0
    num_logprobs: int = 0
    finished: bool = False


class RequestStream:
    """What one or several requests give, one RequestOutput per request and engine step at most.

    A reader that is slower than the engine gets several steps in one output, so nothing piles up. `output_kind` of the
    request's SamplingParams says what an output holds: all so far, what is new (then `outputs` lists only the samples
    that have something new), or everything once at the end. Closing cancels what still runs.
    """

    def __init__(self, requests: list[Request], cancel: Callable[[RequestStream], None]) -> None:
        """`cancel` is called once, when a stream is closed before its requests have finished."""
        self.requests = requests
        self._cancel = cancel
        self._changed: dict[int, Request] = {}  # by position in `requests`, in order of change
        self._positions = {id(request): position for position, request in enumerate(requests)}
        self._num_unfinished = len(requests)
        self._taken = [[_Taken() for _ in request.samples] for request in requests]
        self._wake = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> RequestOutput:
        return (await self.next_output())[1]

    async def next_output(self) -> tuple[int, RequestOutput]:
        """The position of a request in `requests`, and its output. Raises StopAsyncIteration after the last."""
        while True:
            while self._changed:
                position = next(iter(self._changed))
                request = self._changed.pop(position)
                if request.finished or request.params.output_kind is not RequestOutputKind.FINAL_ONLY:
                    return position, self._output(position, request)
            if self._closed or not self._num_unfinished:
                raise StopAsyncIteration
            self._wake.clear()
            await self._wake.wait()

    def changed(self, request: Request, finished: bool) -> None:
        """A sample of `request` has more; `finished`: it was the last one that ran."""
        self._changed[self._positions[id(request)]] = request
        self._num_unfinished -= finished
        self._wake.set()

    def close(self) -> None:
        """Cancels what has not finished; the iteration ends without further outputs."""
        if self._closed:
            return
        self._closed = True
        self._changed.clear()
        self._wake.set()
        if self._num_unfinished:
            self._cancel(self)

    def _output(self, position: int, request: Request) -> RequestOutput:
        output = request.output()
        if request.params.output_kind is RequestOutputKind.DELTA:
            taken = self._taken[position]
            news = [_news(sample, taken[sample.output.index]) for sample in request.samples]
            output.outputs = [one for one in news if one is not None]
        else:
            output.outputs = [_copy(sample.output) for sample in request.samples]
        return output


def _copy(output: CompletionOutput) -> CompletionOutput:
    logprobs = None if output.logprobs is None else list(output.logprobs)
    return replace(output, token_ids=list(output.token_ids), logprobs=logprobs)


def _news(sample: Sample, taken: _Taken) -> CompletionOutput | None:
    """What came since the last call; None if nothing did. The rest of the fields are as of now."""
    output = sample.output
    if taken.finished or (len(output.token_ids) == taken.num_ids and not sample.finished):
        return None
    logprobs = None if output.logprobs is None else output.logprobs[taken.num_logprobs :]
    news = replace(
        output,
        text=output.text[taken.num_characters :],
        token_ids=output.token_ids[taken.num_ids :],
        logprobs=logprobs,
    )
    taken.num_characters, taken.num_ids = len(output.text), len(output.token_ids)
    taken.num_logprobs += len(logprobs or ())
    taken.finished = sample.finished
    return news
