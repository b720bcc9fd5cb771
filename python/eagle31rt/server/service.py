"""What the generating endpoints do, from a body to an answer."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from eagle31rt.async_llm import AsyncLLM
from eagle31rt.errors import Eagle31rtError
from eagle31rt.inputs import Prompt
from eagle31rt.request import Request
from eagle31rt.sampling_params import SamplingParams
from eagle31rt.server.answers import EventStream, whole_answer
from eagle31rt.server.body import read_body
from eagle31rt.server.errors import ApiError, JsonResponse, bad_request
from eagle31rt.server.formats import AnswerFormat, ChatFormat, CompletionFormat
from eagle31rt.server.options import ServerOptions
from eagle31rt.server.parameters import refused, sampling_params
from eagle31rt.server.prompts import conversation, prompt_list, tools_of
from eagle31rt.server.protocol import ChatRequest, CompletionRequest, GenerationRequest, parse_request

_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


@dataclass
class _Work:
    """A request that is ready to be submitted."""

    request: CompletionRequest | ChatRequest
    requests: list[Request]
    answer: AnswerFormat
    name: str


class Service:
    """One model behind the endpoints."""

    def __init__(self, llm: AsyncLLM, options: ServerOptions, max_unfinished: int) -> None:
        """`max_unfinished`: samples that may run or wait; a request beyond gets a 429."""
        self.llm = llm
        self.options = options
        self.model = options.served_model_names[0]
        self._max_unfinished = max_unfinished
        self._max_drafts: int = llm.info["num_speculative_tokens"]

    def check_model(self, name: str | None) -> None:
        """Raises ApiError 404 unless `name` is served; none means the one there is, as in vLLM."""
        if name is not None and name not in self.options.served_model_names:
            served = ", ".join(self.options.served_model_names)
            raise ApiError(
                404, f"model {name[:200]!r} is not served here; served: {served}", "model", "model_not_found"
            )

    async def completions(self, http: HttpRequest) -> Response:
        return await self._run(http, await read_body(http, self.options.limits, self._completion))

    def _completion(self, body: dict[str, Any]) -> _Work:
        request = parse_request(CompletionRequest, body)
        prompts = prompt_list(request.prompt, self.options.limits.max_prompts)
        if request.echo and request.logprobs is not None:
            raise bad_request("echo", "echo with logprobs is not supported; use prompt_logprobs", "unsupported")
        params = self._params(request)
        try:
            given = [self._given(one, request) for one in prompts]
            requests = self.llm.prepare(given, params, request.priority or 0)
        except Eagle31rtError as error:
            raise refused(error, request) from error
        name = request.request_id or uuid.uuid4().hex
        echoes = [self._prompt_text(one) for one in requests] if request.echo else []
        detail = self.options.per_request_spec_decode_metrics
        answer = CompletionFormat(name, self.model, request, requests, detail, echoes)
        return _Work(request, requests, answer, name)

    async def chat_completions(self, http: HttpRequest) -> Response:
        return await self._run(http, await read_body(http, self.options.limits, self._chat_completion))

    def _chat_completion(self, body: dict[str, Any]) -> _Work:
        request = parse_request(ChatRequest, body)
        if request.add_special_tokens:
            raise bad_request("add_special_tokens", "add_special_tokens must be false: the chat template writes them")
        params = self._params(request)
        try:
            requests = self.llm.prepare_chat(
                conversation(request.messages, self.options.limits.max_messages),
                params,
                request.priority or 0,
                add_generation_prompt=request.add_generation_prompt is not False,
                tools=tools_of(request.tools, request.tool_choice),
                chat_template_kwargs=request.chat_template_kwargs,
            )
        except Eagle31rtError as error:
            raise refused(error, request) from error
        name = request.request_id or uuid.uuid4().hex
        answer = ChatFormat(name, self.model, request, requests, self.options.per_request_spec_decode_metrics)
        return _Work(request, requests, answer, name)

    def _params(self, request: CompletionRequest | ChatRequest) -> SamplingParams:
        self.check_model(request.model)
        _check_stream_options(request)
        if request.stream and request.prompt_logprobs is not None:
            raise bad_request("prompt_logprobs", "prompt_logprobs are for answers that are not streamed")
        return sampling_params(request, self.options.limits, self._max_drafts)

    def _given(self, prompt: str | list[int], request: CompletionRequest) -> Any:
        if isinstance(prompt, list) or request.add_special_tokens is not False:
            return prompt
        text = Prompt(prompt, None, add_special_tokens=False)
        token_ids = self.llm.prompt_ids(text, any_length=request.truncate_prompt_tokens is not None)
        return {"prompt": prompt, "prompt_token_ids": token_ids}

    def _prompt_text(self, request: Request) -> str:
        if request.text is not None:
            return request.text
        return self.llm.get_tokenizer().decode(request.token_ids)

    async def _run(self, http: HttpRequest, work: _Work) -> Response:
        request = work.request
        num_samples = sum(one.params.n for one in work.requests)
        if num_samples > self._max_unfinished:
            field = "prompt" if request.n in (None, 1) else "n"
            message = f"n times prompts is {num_samples} samples; the server takes {self._max_unfinished} at once"
            raise bad_request(field, f"{message} (--max-num-seqs, --max-waiting-requests)")
        if self.llm.num_unfinished + num_samples > self._max_unfinished:
            message = f"{self.llm.num_unfinished} samples run or wait (--max-waiting-requests); try later"
            retry = {"Retry-After": str(self.options.limits.retry_after_seconds)}
            raise ApiError(429, message, code="queue_full", headers=retry)
        try:
            stream = self.llm.submit(work.requests, work.name, request.timeout_seconds or 0.0)
        except Eagle31rtError as error:
            raise refused(error, request) from error
        if request.stream:
            return EventStream(stream, work.answer)
        return JsonResponse(await whole_answer(stream, work.answer, http.receive))


def _check_stream_options(request: GenerationRequest) -> None:
    options = request.stream_options
    if options is None:
        return
    if not request.stream:
        raise bad_request("stream_options", "stream_options needs stream: true")
    for key, value in options.items():
        if key not in _STREAM_OPTIONS:
            raise bad_request("stream_options", f"stream_options has no field {key[:100]!r}", "unknown_field")
        if not isinstance(value, bool):
            raise bad_request("stream_options", f"stream_options.{key} must be true or false")
