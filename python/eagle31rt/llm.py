"""LLM: offline generation, shaped like vLLM's class of the same name."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from eagle31rt.engine_config import apply_device, make_engine_config, model_directory
from eagle31rt.errors import Eagle31rtError, InternalError, InvalidArgumentError
from eagle31rt.inputs import Message, Prompt, at_index, params_per_prompt, parse_conversations, parse_prompts
from eagle31rt.outputs import RequestOutput, StreamPiece
from eagle31rt.request import Request, Sample
from eagle31rt.sampling_params import SamplingParams
from eagle31rt.seeds import derive_seed

if TYPE_CHECKING:
    from eagle31rt import _core
    from eagle31rt.tokenizer import Tokenizer

PromptInput = str | Sequence[int] | Mapping[str, Any]


class LLM:
    """A model, optionally with its EAGLE draft, and its tokenizer.

    Calls may come from several threads and while a stream is open: requests then share the engine's batches, which
    changes no token id.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        skip_tokenizer_init: bool = False,
        speculative_config: Mapping[str, Any] | None = None,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        block_size: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        num_threads: int | None = None,
        device: str = "cpu",
        gpu_memory_utilization: float | None = None,
        enforce_eager: bool = False,
        seed: int | None = None,
    ) -> None:
        """Loads the model. Numbers left None take the engine's defaults (csrc/include/eagle31rt/config.h).

        `device` is "cpu", "cuda" or "cuda:N"; a GPU is used only if it is asked for, and never replaced by the CPU.
        `gpu_memory_utilization` and `enforce_eager` are vLLM's: the share of GPU memory that may be in use once the KV
        cache is there, and no CUDA graphs. `seed` makes requests without a seed repeatable: they draw theirs from it in
        order of submission.
        Raises CheckpointError, InvalidArgumentError, UnsupportedError, ResourceError or DeviceError.
        """
        directory = model_directory(model, "model")
        if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64):
            raise InvalidArgumentError(f"seed must be an integer from 0 to {2**64 - 1} or None, got {seed!r}")
        integers = {
            "max_model_len": max_model_len,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "block_size": block_size,
            "kv_cache_memory_bytes": kv_cache_memory_bytes,
            "num_threads": num_threads,
        }
        config = make_engine_config(
            directory, speculative_config, dtype=dtype, kv_cache_dtype=kv_cache_dtype, integers=integers
        )
        apply_device(config, device, gpu_memory_utilization, enforce_eager)
        self._tokenizer: Tokenizer | None = None
        if not skip_tokenizer_init:
            from eagle31rt.tokenizer import Tokenizer

            self._tokenizer = Tokenizer(directory if tokenizer is None else model_directory(tokenizer, "tokenizer"))
        from eagle31rt import _core

        self._core = _core
        self._engine: _core.Engine = _core.Engine(config)
        self._info: dict[str, Any] = self._engine.info
        self._seed = seed
        self._num_seeds_drawn = 0
        self._next_id = 0
        self._outbox: dict[
            int, list[_core.StepOutput]
        ] = {}  # by the engine's request id, until their caller takes them
        self._lock = threading.RLock()
        self._process = os.getpid()

    @property
    def info(self) -> dict[str, object]:
        """Facts about the engine: instruction set, sizes, capture layers, KV pages (see _core.pyi)."""
        with self._lock:
            return self._engine.info

    def get_tokenizer(self) -> Tokenizer:
        """Raises InvalidArgumentError with skip_tokenizer_init."""
        if self._tokenizer is None:
            raise InvalidArgumentError("there is no tokenizer (skip_tokenizer_init=True): give prompts as token ids")
        return self._tokenizer

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Completes the prompts, in their order. `use_tqdm` shows a progress bar on a terminal's standard error.

        One bad prompt or parameter raises, naming its index, before anything runs. A request that fails while it runs
        has finish_reason "error" and the message as stop_reason; the others are not affected.
        """
        return self._run(self._make_requests(parse_prompts(prompts), sampling_params), use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answers one conversation or a list of them through the chat template, otherwise like `generate`."""
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

    def _chat_prompt(
        self,
        conversation: list[Message],
        chat_template: str | None,
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
    ) -> Prompt:
        tokenizer = self.get_tokenizer()
        text = tokenizer.render_chat(conversation, add_generation_prompt, chat_template, tools, **variables)
        return Prompt(text, tokenizer.encode(text, add_special_tokens=False))  # the template writes them itself

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
                self._step_for(request)
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
            for request in requests:
                while not request.finished:
                    self._step_for(request)
                    for other in requests:
                        self._collect(other)
                    progress.update(task, completed=sum(one.finished for one in requests))
        return [request.output() for request in requests]

    def _make_requests(
        self, prompts: list[Prompt], sampling_params: SamplingParams | Sequence[SamplingParams] | None
    ) -> list[Request]:
        """Tokenises and checks everything; raises naming the index of what is wrong."""
        self._check_process()
        params = params_per_prompt(sampling_params, len(prompts))
        requests: list[Request] = []
        for index, prompt in enumerate(prompts):
            try:
                token_ids = self._prompt_ids(prompt)
                self._check_speculation(params[index])
            except Eagle31rtError as error:
                raise at_index(error, "prompt", index) from error
            requests.append(Request(prompt.text, token_ids, params[index]))
        return requests

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        if prompt.token_ids is None:
            return self.get_tokenizer().encode(prompt.text or "")
        vocab_size: int = self._info["vocab_size"]
        for token_id in prompt.token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidArgumentError(f"token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})")
        return prompt.token_ids

    def _check_speculation(self, params: SamplingParams) -> None:
        wanted, limit = params.num_speculative_tokens, self._info["num_speculative_tokens"]
        if wanted is not None and wanted > limit:
            raise InvalidArgumentError(
                f"SamplingParams.num_speculative_tokens ({wanted}) is more than the engine's ({limit}): "
                "raise it in speculative_config"
            )

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

    def _submit(self, request: Request) -> None:
        params = request.params
        request.request_id = self._next_id
        seed = self._fresh_seed() if params.seed is None else int(params.seed)
        silent_stops = frozenset(self._info["eos_token_ids"]) - frozenset(params.stop_token_ids or ())
        for index in range(params.n):
            detokenizer = None
            if self._tokenizer is not None and params.detokenize:
                detokenizer = self._tokenizer.detokenizer(params.skip_special_tokens)
            sample = Sample(self._next_id, index, detokenizer, silent_stops)
            self._next_id += 1
            request.samples.append(sample)
            core_params = self._core_params(params, derive_seed(seed, index))
            self._engine.add_request(sample.engine_id, request.token_ids, core_params)

    def _fresh_seed(self) -> int:
        if self._seed is None:
            return secrets.randbits(64)
        self._num_seeds_drawn += 1
        return derive_seed(self._seed, self._num_seeds_drawn)

    def _core_params(self, params: SamplingParams, seed: int) -> _core.SamplingParams:
        result = self._core.SamplingParams()
        result.temperature = params.temperature
        result.top_k = max(params.top_k, 0)
        result.top_p = params.top_p
        result.min_p = params.min_p
        result.seed = seed
        result.max_tokens = self._info["max_model_len"] if params.max_tokens is None else params.max_tokens
        result.min_tokens = params.min_tokens
        result.ignore_eos = params.ignore_eos
        result.stop_token_ids = list(params.stop_token_ids or ())
        result.num_speculative_tokens = -1 if params.num_speculative_tokens is None else params.num_speculative_tokens
        return result

    def _step_for(self, request: Request) -> None:
        """Brings `request` on: by outputs that another caller's step left for it, or else by a step.

        Outputs go through the outbox, which the engine's binding fills before an interrupt can be seen. So Ctrl-C, or a
        signal handler that raises, loses at most outputs of the call that it ends, never those of other callers.
        """
        self._check_process()
        self._collect(request)
        if request.finished:
            return
        with self._lock:
            if not self._has_outputs(request):
                self._engine.step_into(self._outbox)
                if not self._has_outputs(request) and not self._engine.has_unfinished_requests():
                    raise InternalError(f"the engine lost request {request.request_id}")
        self._collect(request)

    def _has_outputs(self, request: Request) -> bool:
        return any(sample.engine_id in self._outbox for sample in request.samples)

    def _collect(self, request: Request) -> None:
        for sample in request.samples:
            for output in self._outbox.pop(sample.engine_id, ()):
                sample.apply(output)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgumentError("this LLM belongs to the process that made it: make one in the child after fork")
