"""What answers look like: (chat) completions, whole and in chunks. Field names are OpenAI's and vLLM's."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any

from eagle31rt.outputs import CompletionOutput, RequestOutput
from eagle31rt.request import Request
from eagle31rt.server.logprobs import CompletionLogprobs, chat_logprobs, prompt_logprobs
from eagle31rt.server.protocol import ChatRequest, CompletionRequest
from eagle31rt.server.speculation import speculation_block

Json = dict[str, Any]


class AnswerFormat(ABC):
    """Builds the answer to one HTTP request, whose prompts became `requests`."""

    id_prefix: str
    object_name: str
    chunk_name: str

    def __init__(
        self, name: str, model: str, request: CompletionRequest | ChatRequest, requests: list[Request], detail: str
    ) -> None:
        """`detail`: none or summary, of speculation per request."""
        self._head: Json = {"id": f"{self.id_prefix}{name}", "created": int(time.time()), "model": model}
        self._requests = requests
        self._num_samples = requests[0].params.n
        self._with_ids = bool(request.return_token_ids)
        options = request.stream_options or {}
        self._with_usage = bool(options.get("include_usage"))
        self._with_usage_always = bool(options.get("continuous_usage_stats"))
        self._detail = detail if len(requests) == 1 and self._num_samples == 1 else "none"
        self._num_completion_tokens = 0
        self._num_cached_tokens = [0] * len(requests)

    @abstractmethod
    def _choice(self, index: int, request: Request, sample: CompletionOutput, whole: bool) -> Json:
        """One entry of `choices`: all of a sample, or what is new."""

    @abstractmethod
    def first_chunks(self) -> list[Json]:
        """Chunks before any token."""

    def whole(self, outputs: list[RequestOutput]) -> Json:
        """The body of an answer that is not streamed. `outputs`: one for each request, in order."""
        choices = [
            choice for position, output in enumerate(outputs) for choice in self._choices(position, output, True)
        ]
        body = {**self._head, "object": self.object_name, "choices": choices, "usage": self._usage()}
        return {**body, **self._metrics(outputs[0])}

    def chunk(self, position: int, output: RequestOutput) -> Json:
        """One chunk with what `output`, of the request at `position`, adds."""
        body = self._chunk(self._choices(position, output, False))
        if self._with_usage_always:
            body["usage"] = self._usage()
        return {**body, **(self._metrics(output) if output.finished else {})}

    def last_chunks(self) -> list[Json]:
        """Chunks after the last token."""
        return [{**self._chunk([]), "usage": self._usage()}] if self._with_usage else []

    def _chunk(self, choices: list[Json]) -> Json:
        return {**self._head, "object": self.chunk_name, "choices": choices}

    def _choices(self, position: int, output: RequestOutput, whole: bool) -> list[Json]:
        request = self._requests[position]
        self._num_cached_tokens[position] = output.num_cached_tokens or 0
        choices: list[Json] = []
        for sample in output.outputs:
            self._num_completion_tokens += len(sample.token_ids)
            choice = self._choice(position * self._num_samples + sample.index, request, sample, whole)
            choice["finish_reason"] = sample.finish_reason
            choice["stop_reason"] = sample.stop_reason
            if self._with_ids:
                choice["token_ids"] = sample.token_ids
            choices.append(choice)
        return choices

    def _usage(self) -> Json:
        num_prompt = sum(len(request.token_ids) for request in self._requests)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_completion_tokens,
            "total_tokens": num_prompt + self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached_tokens)},
        }

    def _metrics(self, output: RequestOutput) -> Json:
        if self._detail == "none":
            return {}
        return {"metrics": {"speculative_decoding": speculation_block(output.metrics)}}


class CompletionFormat(AnswerFormat):
    id_prefix = "cmpl-"
    object_name = chunk_name = "text_completion"

    def __init__(
        self, name: str, model: str, request: CompletionRequest, requests: list[Request], detail: str, echoes: list[str]
    ) -> None:
        """`echoes`: the text of each prompt if the request wants it before the completion, else empty."""
        super().__init__(name, model, request, requests, detail)
        self._echoes = echoes
        self._logprobs = [CompletionLogprobs() for _ in range(len(requests) * self._num_samples)]

    def first_chunks(self) -> list[Json]:
        """One chunk for each choice if there is something to say: the echo, the ids of the prompt."""
        if not self._echoes and not self._with_ids:
            return []
        chunks: list[Json] = []
        for position, request in enumerate(self._requests):
            for index in range(position * self._num_samples, (position + 1) * self._num_samples):
                choice: Json = {"index": index, "text": self._echoes[position] if self._echoes else ""}
                choice |= {"logprobs": None, "finish_reason": None, "stop_reason": None}
                if self._with_ids:
                    choice |= {"token_ids": [], "prompt_token_ids": request.token_ids}
                chunks.append(self._chunk([choice]))
        return chunks

    def _choice(self, index: int, request: Request, sample: CompletionOutput, whole: bool) -> Json:
        echo = self._echoes[index // self._num_samples] if whole and self._echoes else ""
        choice: Json = {"index": index, "text": echo + sample.text}
        choice["logprobs"] = self._logprobs[index].render(sample, len(echo))
        if whole and self._with_ids:
            choice["prompt_token_ids"] = request.token_ids
        if whole and request.params.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(request.output())
        return choice


class ChatFormat(AnswerFormat):
    id_prefix = "chatcmpl-"
    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"

    def whole(self, outputs: list[RequestOutput]) -> Json:
        body = super().whole(outputs)
        if self._with_ids:
            body["prompt_token_ids"] = self._requests[0].token_ids
        if self._requests[0].params.prompt_logprobs is not None:
            body["prompt_logprobs"] = prompt_logprobs(outputs[0])
        return body

    def first_chunks(self) -> list[Json]:
        """The role of each choice."""
        chunks: list[Json] = []
        for index in range(self._num_samples):
            delta = {"role": "assistant", "content": ""}
            chunk = self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])
            if self._with_ids and index == 0:
                chunk["prompt_token_ids"] = self._requests[0].token_ids
            chunks.append(chunk)
        return chunks

    def _choice(self, index: int, request: Request, sample: CompletionOutput, whole: bool) -> Json:
        choice: Json = {"index": index}
        if whole:
            choice["message"] = {"role": "assistant", "content": sample.text, "refusal": None}
        else:
            choice["delta"] = {"content": sample.text}
        choice["logprobs"] = chat_logprobs(sample, request.params.logprobs or 0)
        return choice
