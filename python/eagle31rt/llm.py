"""LLM: offline generation, shaped like vLLM's class of the same name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console
from rich.progress import Progress

from eagle31rt.base_llm import BaseLLM
from eagle31rt.errors import Eagle31rtError, InternalError, InvalidArgumentError, UnsupportedError
from eagle31rt.explain import StepExplainer
from eagle31rt.inputs import Message, Prompt, at_index, parse_conversations, parse_prompts
from eagle31rt.outputs import RequestOutput, StreamPiece
from eagle31rt.request import Request
from eagle31rt.sampling_params import SamplingParams
from eagle31rt.vllm_arguments import CALL_ARGUMENTS, refuse_other_arguments

if TYPE_CHECKING:
    from eagle31rt import _core

PromptInput = str | Sequence[int] | Mapping[str, Any]


class LLM(BaseLLM):
    """A model, optionally with its EAGLE draft, and its tokenizer.

    Calls may come from several threads and while a stream is open: requests then share the engine's batches, which
    changes no token id.
    """

    def _open_engine(self, config: _core.EngineConfig) -> dict[str, Any]:
        from eagle31rt import _core

        self._core = _core
        self._engine = _core.Engine(config)
        table = self._core_token_table()
        if table is not None:
            self._engine.set_token_table(table)
        # By the engine's request id, until their caller takes them.
        self._outbox: dict[int, list[_core.StepOutput]] = {}
        self._explainer: StepExplainer | None = None
        return self._engine.info

    def explain_steps(self, stream: TextIO) -> None:
        """From now on writes a line to `stream` for each engine step: its time by part, and why its drafts."""
        self._explainer = StepExplainer(stream, self._engine.stats)

    def _add_request(self, engine_id: int, request: Request, params: _core.SamplingParams) -> None:
        options = self._core.RequestOptions()
        options.priority = request.priority
        self._engine.add_request(engine_id, request.token_ids, params, options)

    @property
    def info(self) -> dict[str, Any]:
        """Facts about the engine: instruction set, sizes, capture layers, KV pages (see _core.pyi)."""
        with self._lock:
            return self._engine.info

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        *,
        priority: int | Sequence[int] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Completes the prompts, in their order. `use_tqdm` shows a progress bar on a terminal's standard error.

        `priority`: requests with a lower one run first, and preempt others if the KV cache is full. `others` are
        arguments of vLLM that are refused by name (docs/limits.md), as in `chat`.
        One bad prompt or parameter raises, naming its index, before anything runs. A request that fails while it runs
        has finish_reason "error" and the message as stop_reason; the others are not affected.
        """
        refuse_other_arguments(others, CALL_ARGUMENTS)
        return self._run(self._make_requests(parse_prompts(prompts), sampling_params, priority), use_tqdm)

    def beam_search(self, *arguments: object, **others: object) -> list[RequestOutput]:
        """vLLM's method; raises UnsupportedError."""
        raise UnsupportedError("beam_search is not supported by this version: ask for n samples with logprobs instead")

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        **others: Any,
    ) -> list[RequestOutput]:
        """Answers one conversation or a list of them through the chat template, otherwise like `generate`."""
        refuse_other_arguments(others, CALL_ARGUMENTS)
        prompts: list[Prompt] = []
        for index, conversation in enumerate(parse_conversations(messages)):
            try:
                prompts.append(
                    self._chat_prompt(
                        conversation, chat_template, add_generation_prompt, tools, dict(chat_template_kwargs or {})
                    )
                )
            except Eagle31rtError as error:
                raise at_index(error, "conversation", index) from error
        return self._run(self._make_requests(prompts, sampling_params), use_tqdm)

    def stream(self, prompt: PromptInput, sampling_params: SamplingParams | None = None) -> Iterator[StreamPiece]:
        """Completes one prompt (n = 1) and yields what each step adds; closing the iterator cancels the request."""
        return self._stream(parse_prompts([prompt]), sampling_params)

    def stream_chat(
        self, messages: Sequence[Message], sampling_params: SamplingParams | None = None
    ) -> Iterator[StreamPiece]:
        """Answers one conversation like `stream`."""
        conversation = parse_conversations([messages])[0]
        return self._stream([self._chat_prompt(conversation, None, True, None, {})], sampling_params)

    def _stream(self, prompts: list[Prompt], params: SamplingParams | None) -> Iterator[StreamPiece]:
        requests = self._make_requests(prompts, params)
        if requests[0].params.n != 1:
            raise InvalidArgumentError(f"streaming needs n = 1, got {requests[0].params.n}")
        return self._stream_pieces(requests[0])

    def _stream_pieces(self, request: Request) -> Iterator[StreamPiece]:
        with self._submitted([request]):
            sample = request.samples[0]
            num_characters = num_ids = 0
            output: RequestOutput | None = None
            while output is None:
                self._make_outputs_for(request)
                self._collect(request)
                text, ids = sample.output.text, list(sample.output.token_ids)
                output = request.output() if request.finished else None
                if len(ids) > num_ids or output is not None:
                    yield StreamPiece(text[num_characters:], ids[num_ids:], output)
                    num_characters, num_ids = len(text), len(ids)

    def _run(self, requests: list[Request], show_progress: bool) -> list[RequestOutput]:
        console = Console(stderr=True)
        with (
            Progress(console=console, transient=True, disable=not (show_progress and console.is_terminal)) as progress,
            self._submitted(requests),
        ):
            task = progress.add_task("Generating", total=len(requests))
            owners = {sample.engine_id: request for request in requests for sample in request.samples}
            for request in requests:
                while not request.finished:
                    self._make_outputs_for(request)
                    progress.advance(task, self._collect_all(owners))
        return [request.output() for request in requests]

    @contextmanager
    def _submitted(self, requests: list[Request]) -> Iterator[None]:
        """Hands the requests to the engine; on the way out cancels what has not finished, so nothing runs on unseen."""
        try:
            with self._lock:
                for index, request in enumerate(requests):
                    try:
                        self._submit(request)
                    except Eagle31rtError as error:
                        raise at_index(error, "prompt", index) from error
            yield
        finally:
            with self._lock:
                for sample in (sample for request in requests for sample in request.samples):
                    self._engine.cancel(sample.engine_id)
                    self._outbox.pop(sample.engine_id, None)

    def _make_outputs_for(self, request: Request) -> None:
        """Steps the engine, unless another caller's step has left outputs for `request`.

        Outputs go through the outbox, which the engine's binding fills before an interrupt can be seen. So Ctrl-C, or a
        signal handler that raises, loses at most outputs of the call that it ends, never those of other callers.
        """
        self._check_process()
        with self._lock:
            if not self._has_outputs(request):
                self._engine.step_into(self._outbox)
                if self._explainer is not None:
                    self._explainer(self._engine.stats)
                if not self._has_outputs(request) and not self._engine.has_unfinished_requests():
                    raise InternalError(f"the engine lost request {request.request_id}")

    def _collect_all(self, owners: dict[int, Request]) -> int:
        """Takes what there is for the requests of a call, given by engine id, and counts those that it ended.

        A step makes outputs for those that run, however many wait, so it goes by outputs and not by requests.
        """
        with self._lock:
            ready = {id(owners[engine_id]): owners[engine_id] for engine_id in self._outbox if engine_id in owners}
        for request in ready.values():
            self._collect(request)
        return sum(request.finished for request in ready.values())

    def _has_outputs(self, request: Request) -> bool:
        return any(sample.engine_id in self._outbox for sample in request.samples)

    def _collect(self, request: Request) -> None:
        for sample in request.samples:
            for output in self._outbox.pop(sample.engine_id, ()):
                sample.apply(output)
