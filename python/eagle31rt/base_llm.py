"""What LLM and AsyncLLM share: loading, tokenising, checking and submitting; they differ in who runs the engine."""

from __future__ import annotations

import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from eagle31rt.core_params import CoreParamsMaker
from eagle31rt.engine_config import apply_device, make_engine_config
from eagle31rt.errors import Eagle31rtError, InvalidArgumentError
from eagle31rt.inputs import Message, Prompt, at_index, params_per_prompt, priority_per_prompt
from eagle31rt.model_source import model_directory
from eagle31rt.request import Request, Sample
from eagle31rt.sampling_params import SamplingParams
from eagle31rt.seeds import derive_seed
from eagle31rt.vllm_arguments import refuse_other_arguments

if TYPE_CHECKING:
    from eagle31rt import _core
    from eagle31rt.tokenizer import Tokenizer


class BaseLLM(ABC):
    """A model, optionally with its EAGLE draft, and its tokenizer."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        revision: str | None = None,
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
        max_logprobs: int | None = None,
        enable_prefix_caching: bool | None = None,
        **others: Any,
    ) -> None:
        """Loads the model. Numbers left None take the engine's defaults (csrc/include/eagle31rt/config.h).

        `model` (and `tokenizer`, and the draft's) is a directory, a llama GGUF file, or an id on the Hugging Face hub,
        of which `revision` names a branch, tag or commit.

        `device` is "cpu", "cuda" or "cuda:N"; a GPU is used only if it is asked for, and never replaced by the CPU.
        `gpu_memory_utilization` and `enforce_eager` are vLLM's: the share of GPU memory that may be in use once the KV
        cache is there, and no CUDA graphs. `seed` makes requests without a seed repeatable: they draw theirs from it in
        order of submission. `max_logprobs` (default 20, up to 64) bounds what a request may ask for. `others` are
        arguments of vLLM that are refused by name unless they ask for nothing (docs/limits.md).
        Raises CheckpointError, InvalidArgumentError, UnsupportedError, ResourceError or DeviceError.
        """
        refuse_other_arguments(others)
        directory = model_directory(model, "model", revision)
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
        if enable_prefix_caching is not None:
            if not isinstance(enable_prefix_caching, bool):
                raise InvalidArgumentError(f"enable_prefix_caching must be a bool, got {enable_prefix_caching!r:.100}")
            config.enable_prefix_caching = enable_prefix_caching
        apply_device(config, device, gpu_memory_utilization, enforce_eager)
        self._tokenizer: Tokenizer | None = None
        if not skip_tokenizer_init:
            from eagle31rt.tokenizer import Tokenizer

            self._tokenizer = Tokenizer(directory if tokenizer is None else model_directory(tokenizer, "tokenizer"))
        # None: the engine makes no text, and stop strings are refused.
        self._token_bytes = None if self._tokenizer is None else self._tokenizer.token_bytes()
        self._info: dict[str, Any] = self._open_engine(config)
        self._params_maker = CoreParamsMaker(self._info, self._tokenizer, max_logprobs)
        self._seed = seed
        self._num_seeds_drawn = 0
        self._next_id = 0
        self._lock = threading.RLock()  # of everything that submitting changes
        self._process = os.getpid()

    @abstractmethod
    def _open_engine(self, config: _core.EngineConfig) -> dict[str, Any]:
        """Makes the engine, with `self._core_token_table()`, and returns its info."""

    @abstractmethod
    def _add_request(self, engine_id: int, request: Request, params: _core.SamplingParams) -> None:
        """Hands one sample of `request` to the engine. Raises what the engine refuses it for."""

    def _core_token_table(self) -> _core.TokenTable | None:
        return None if self._token_bytes is None else self._token_bytes.to_core()

    def get_tokenizer(self) -> Tokenizer:
        """Raises InvalidArgumentError with skip_tokenizer_init."""
        if self._tokenizer is None:
            raise InvalidArgumentError("there is no tokenizer (skip_tokenizer_init=True): give prompts as token ids")
        return self._tokenizer

    def _chat_prompt(
        self,
        conversation: list[Message],
        chat_template: str | None,
        add_generation_prompt: bool,
        tools: list[dict[str, Any]] | None,
        variables: dict[str, Any],
    ) -> Prompt:
        text = self.get_tokenizer().render_chat(conversation, add_generation_prompt, chat_template, tools, variables)
        return Prompt(text, None, add_special_tokens=False, what="conversation")  # the template writes them itself

    def _make_requests(
        self,
        prompts: list[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None,
        priority: int | Sequence[int] | None = None,
    ) -> list[Request]:
        """Tokenises and checks everything; raises naming the index of what is wrong."""
        self._check_process()
        params = params_per_prompt(sampling_params, len(prompts))
        priorities = priority_per_prompt(priority, len(prompts))
        requests: list[Request] = []
        for index, prompt in enumerate(prompts):
            try:
                token_ids = self._params_maker.truncate_prompt(
                    self.prompt_ids(prompt, any_length=params[index].truncate_prompt_tokens is not None), params[index]
                )
                prepared = self._params_maker.prepare(params[index])
            except Eagle31rtError as error:
                raise at_index(error, prompt.what, index) from error
            requests.append(Request(prompt.text, token_ids, params[index], prepared, priorities[index]))
        return requests

    def prompt_ids(self, prompt: Prompt, any_length: bool = False) -> list[int]:
        """Ids of one prompt. Text that max_model_len tokens cannot say is refused unread, unless `any_length`."""
        if prompt.token_ids is None:
            tokenizer, text = self.get_tokenizer(), prompt.text or ""
            length: int = self._info["max_model_len"]
            if not any_length and len(text) > length * tokenizer.max_token_bytes:
                raise InvalidArgumentError(
                    f"the prompt has {len(text)} characters, more than max_model_len ({length}) tokens can say; "
                    "shorten it"
                )
            return tokenizer.encode(text, prompt.add_special_tokens)
        vocab_size: int = self._info["vocab_size"]
        for token_id in prompt.token_ids:
            if not 0 <= token_id < vocab_size:
                raise InvalidArgumentError(f"token id {token_id} is outside the vocabulary (0 to {vocab_size - 1})")
        return prompt.token_ids

    def _submit(self, request: Request) -> None:
        params = request.params
        request.request_id = self._next_id
        request.submitted_at = time.monotonic()
        seed = self._fresh_seed() if params.seed is None else int(params.seed)
        silent_stops = frozenset(self._info["eos_token_ids"]) - frozenset(params.stop_token_ids or ())
        for index in range(params.n):
            detokenizer = None
            whole_text = None
            if self._token_bytes is not None and params.detokenize:
                whole_text = partial(self._token_bytes.text, skip_special_tokens=params.skip_special_tokens)
            elif self._tokenizer is not None and params.detokenize:
                detokenizer = self._tokenizer.detokenizer(params.skip_special_tokens)
            decode = None if self._tokenizer is None else self._tokenizer.decode_token
            sample = Sample(
                self._next_id,
                index,
                detokenizer,
                silent_stops,
                decode,
                wants_logprobs=params.logprobs is not None,
                whole_text=whole_text,
            )
            self._next_id += 1
            request.samples.append(sample)
            core_params = request.prepared.make(derive_seed(seed, index), index)
            self._add_request(sample.engine_id, request, core_params)

    def _fresh_seed(self) -> int:
        if self._seed is None:
            return secrets.randbits(64)
        self._num_seeds_drawn += 1
        return derive_seed(self._seed, self._num_seeds_drawn)

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise InvalidArgumentError(
                f"this {type(self).__name__} belongs to the process that made it: make one in the child after fork"
            )
