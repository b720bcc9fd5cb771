"""AsyncLLM: generation for asyncio programs, shaped like vLLM's class of the same name."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import uuid
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from eagle31rt.base_llm import BaseLLM
from eagle31rt.draft_source import draft_directory
from eagle31rt.errors import InvalidArgumentError
from eagle31rt.inputs import Message, Prompt, parse_conversations, parse_prompts
from eagle31rt.outputs import RequestOutput
from eagle31rt.request import Request, Sample
from eagle31rt.request_stream import RequestStream
from eagle31rt.sampling_params import SamplingParams

if TYPE_CHECKING:
    from eagle31rt import _core
    from eagle31rt.llm import PromptInput


class RequestObserver(Protocol):
    """Told what happens to requests, in the event loop's thread."""

    def on_submit(self, request: Request) -> None: ...

    def on_output(self, request: Request, sample: Sample, step: _core.StepOutput) -> None:
        """`step` has been applied to `sample`."""

    def on_cancel(self, request: Request, sample: Sample) -> None:
        """By its caller: no further output comes."""


class AsyncLLM(BaseLLM):
    """Takes the arguments of LLM. The engine runs in a thread of its own, without the GIL.

    One event loop at a time: while requests of one loop run, another loop is refused. Requests of all callers share
    the engine's batches, which changes no token id.
    """

    def __init__(self, model: str | os.PathLike[str], **arguments: Any) -> None:
        """Raises what LLM raises."""
        super().__init__(model, **arguments)
        self.observer: RequestObserver | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: dict[int, tuple[RequestStream, Request, Sample]] = {}  # by the engine's request id
        self._streams: dict[str, RequestStream] = {}  # by the caller's request id
        self._stop = weakref.finalize(self, self._engine.shutdown)
        self._thread = threading.Thread(
            target=_dispatch, args=(self._engine, weakref.ref(self)), name="eagle31rt-outputs", daemon=True
        )
        self._thread.start()

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the engine: instruction set, sizes, capture layers, KV pages (see _core.pyi)."""
        return self._engine.info

    @property
    def stats(self) -> dict[str, int]:
        """Requests running and waiting, KV pages, totals of preemptions and of the prefix cache (see _core.pyi)."""
        return self._engine.stats

    @property
    def num_unfinished(self) -> int:
        """Samples that were submitted and have not ended."""
        return len(self._running)

    @property
    def is_running(self) -> bool:
        """False after shutdown() or a failure of the engine: nothing can be submitted any more."""
        return self._engine.is_running

    async def generate(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        timeout_seconds: float = 0.0,
    ) -> AsyncIterator[RequestOutput]:
        """Completes one prompt; `sampling_params.output_kind` says what each output holds.

        Closing the iterator cancels the request. One that fails while it runs ends with finish_reason "error" and the
        message as stop_reason, one that outlives `timeout_seconds` (0 = none) or is aborted with "abort".
        Raises InvalidArgumentError, UnsupportedError or what ended the engine, at the first step of the iterator.
        """
        stream = await self.add_request(
            prompt, sampling_params, request_id, priority=priority, timeout_seconds=timeout_seconds
        )
        try:
            async for output in stream:
                yield output
        finally:
            stream.close()

    async def add_request(
        self,
        prompt: PromptInput,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        timeout_seconds: float = 0.0,
    ) -> RequestStream:
        """Submits one prompt; the stream must be read to its end or closed. Raises what `generate` does."""
        requests = await asyncio.to_thread(self.prepare, [prompt], sampling_params, priority)
        return self.submit(requests, request_id, timeout_seconds)

    async def abort(self, request_id: str) -> bool:
        """Ends a request with finish_reason "abort"; False if it is not running."""
        stream = self._streams.get(request_id)
        if stream is None:
            return False
        self._check_loop()
        self._abort(stream)
        return True

    def abort_all(self) -> None:
        """Ends every request with finish_reason "abort"."""
        for stream in list(self._streams.values()):
            self._abort(stream)

    def prepare(
        self,
        prompts: Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int = 0,
    ) -> list[Request]:
        """Tokenises and checks; for `submit`. Any thread: long prompts and schemas take their time."""
        return self._make_requests(parse_prompts(prompts), sampling_params, priority)

    def prepare_chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None,
        priority: int = 0,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[Request]:
        """One conversation through the chat template, otherwise like `prepare`."""
        return self._make_requests(
            [self.chat_prompt(messages, chat_template, add_generation_prompt, tools, chat_template_kwargs)],
            sampling_params,
            priority,
        )

    def chat_prompt(
        self,
        messages: Sequence[Message],
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> Prompt:
        """The text of a conversation, not yet tokenised."""
        conversation = parse_conversations([messages])[0]
        return self._chat_prompt(
            conversation, chat_template, add_generation_prompt, tools, dict(chat_template_kwargs or {})
        )

    def submit(
        self,
        requests: list[Request],
        request_id: str | None = None,
        timeout_seconds: float = 0.0,
    ) -> RequestStream:
        """Hands prepared requests to the engine, all or none, as one stream under one id."""
        with self._lock:
            self._check_loop()
            name = uuid.uuid4().hex if request_id is None else str(request_id)
            if name in self._streams:
                raise InvalidArgumentError(f"request_id {name!r} is in use: give each request its own")
            try:
                for request in requests:
                    request.timeout_seconds = timeout_seconds
                    self._submit(request)
                    request.request_id = name
            except BaseException:
                for sample in (sample for request in requests for sample in request.samples):
                    self._engine.cancel(sample.engine_id)
                raise
            stream = self._streams[name] = RequestStream(requests, self._forget)
            for request in requests:
                for sample in request.samples:
                    self._running[sample.engine_id] = (stream, request, sample)
                if self.observer is not None:
                    self.observer.on_submit(request)
        return stream

    async def swap_draft(self, directory: str | os.PathLike[str]) -> None:
        """Replaces the draft between two steps; no token id changes. Raises what loading it does."""
        path = str(await asyncio.to_thread(draft_directory, directory, "draft"))  # may fetch it
        await asyncio.to_thread(self._engine.run_between_steps, lambda engine: engine.swap_draft(path))

    def shutdown(self) -> None:
        """Ends the engine; requests that still run finish with "abort"."""
        self._stop()
        self._thread.join()

    def _open_engine(self, config: _core.EngineConfig) -> dict[str, Any]:
        from eagle31rt import _core

        self._core = _core
        self._engine = _core.AsyncEngine(config, self._core_token_table())
        self.max_num_seqs = config.max_num_seqs
        return self._engine.info

    def _add_request(self, engine_id: int, request: Request, params: _core.SamplingParams) -> None:
        options = self._core.RequestOptions()
        options.priority, options.timeout_seconds = request.priority, request.timeout_seconds
        self._engine.submit(engine_id, request.token_ids, params, options)

    def _check_loop(self) -> None:
        """Makes the running loop the one that outputs go to, or refuses it."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise InvalidArgumentError("AsyncLLM is for coroutines: call it from a running event loop") from error
        if loop is self._loop:
            return
        if self._streams and self._loop is not None:
            if not self._loop.is_closed():
                raise InvalidArgumentError(
                    "requests of another event loop are running: use one loop, or one AsyncLLM for each"
                )
            for stream in list(self._streams.values()):  # nobody can read them any more
                self._forget(stream)
        self._loop = loop

    def _hand_over(self, outputs: list[_core.StepOutput]) -> None:
        """From the dispatching thread to the loop."""
        loop = self._loop
        try:
            if loop is not None:
                loop.call_soon_threadsafe(self._deliver, outputs)
        except RuntimeError:  # the loop was closed with requests in it
            for output in outputs:
                self._engine.cancel(output.request_id)

    def _deliver(self, outputs: list[_core.StepOutput]) -> None:
        for step in outputs:
            entry = self._running.get(step.request_id)
            if entry is None:  # cancelled while the output was on its way
                continue
            stream, request, sample = entry
            sample.apply(step)
            if self.observer is not None:
                self.observer.on_output(request, sample, step)
            if sample.finished:
                del self._running[step.request_id]
            self._notify(stream, request)

    def _notify(self, stream: RequestStream, request: Request) -> None:
        stream.changed(request, request.finished)
        if all(one.finished for one in stream.requests):
            self._streams.pop(str(request.request_id), None)

    def _abort(self, stream: RequestStream) -> None:
        for request in stream.requests:
            if request.finished:
                continue
            for sample in request.samples:
                if not sample.finished:
                    sample.abort()
                    self._cancel(request, sample)
            self._notify(stream, request)

    def _forget(self, stream: RequestStream) -> None:
        """Cancels what still runs of a stream that nobody reads."""
        for request in stream.requests:
            self._streams.pop(str(request.request_id), None)
            for sample in request.samples:
                if sample.engine_id in self._running:
                    self._cancel(request, sample)

    def _cancel(self, request: Request, sample: Sample) -> None:
        del self._running[sample.engine_id]
        self._engine.cancel(sample.engine_id)
        if self.observer is not None:
            self.observer.on_cancel(request, sample)


def _dispatch(engine: _core.AsyncEngine, owner: weakref.ref[AsyncLLM]) -> None:
    """Moves outputs from the engine to the event loop until the engine ends or its AsyncLLM is gone."""
    while engine.is_running:
        outputs = engine.wait_outputs(math.inf)
        llm = owner()
        if llm is not None and outputs:
            llm._hand_over(outputs)
        del llm
