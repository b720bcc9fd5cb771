"""The application: which path leads where. Endpoints and fields: docs/serving.md."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from eagle31rt import __version__
from eagle31rt.async_llm import AsyncLLM
from eagle31rt.errors import Eagle31rtError
from eagle31rt.inputs import Prompt
from eagle31rt.metrics import ServerMetrics
from eagle31rt.server.body import read_body
from eagle31rt.server.errors import ApiError, JsonResponse, bad_request, from_runtime_error
from eagle31rt.server.gate import Gate
from eagle31rt.server.options import ServerOptions
from eagle31rt.server.prompts import conversation, tools_of
from eagle31rt.server.protocol import DetokenizeRequest, SwapDraftRequest, TokenizeRequest, parse_request
from eagle31rt.server.service import Service

Endpoint = Callable[[Request], Awaitable[Response]]


class Application:
    """The ASGI application: FastAPI behind the gate. `metrics` is what /metrics shows."""

    def __init__(self, llm: AsyncLLM, options: ServerOptions) -> None:
        """The caller ends `llm` after the application."""
        self.metrics = ServerMetrics(llm, options.served_model_names[0], options.expose_vllm_metric_names)
        llm.observer = self.metrics
        max_unfinished = llm.max_num_seqs + options.limits.max_waiting_requests
        service = Service(llm, options, max_unfinished)
        self.gate = Gate(_fastapi(_Routes(self, service), service), options, max_unfinished, self.metrics.on_response)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.gate(scope, receive, send)


def _fastapi(routes: _Routes, service: Service) -> FastAPI:
    app = FastAPI(title="eagle31rt", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    endpoints: list[tuple[str, str, Endpoint]] = [
        ("POST", "/v1/completions", service.completions),
        ("POST", "/v1/chat/completions", service.chat_completions),
        ("GET", "/v1/models", routes.models),
        ("GET", "/v1/models/{name:path}", routes.model),
        ("POST", "/tokenize", routes.tokenize),
        ("POST", "/detokenize", routes.detokenize),
        ("GET", "/health", routes.health),
        ("GET", "/version", routes.version),
    ]
    if service.options.enable_metrics:
        endpoints.append(("GET", "/metrics", routes.show_metrics))
    if service.options.enable_admin:
        endpoints.append(("POST", "/swap_draft", routes.swap_draft))
    for method, path, endpoint in endpoints:
        app.router.add_route(path, endpoint, methods=[method])
    app.add_exception_handler(ApiError, _show_api_error)
    app.add_exception_handler(HTTPException, _show_http_error)
    app.add_exception_handler(Exception, _show_internal_error)
    return app


class _Routes:
    """The endpoints that do not generate."""

    def __init__(self, app: Application, service: Service) -> None:
        self._app = app
        self._service = service
        self._llm = service.llm
        self._options = service.options
        self._created = int(time.time())

    async def health(self, http: Request) -> Response:
        """200 while requests are taken."""
        healthy = self._llm.is_running and not self._app.gate.draining
        return Response(status_code=200 if healthy else 503)

    async def version(self, http: Request) -> Response:
        return JsonResponse({"version": __version__})

    async def models(self, http: Request) -> Response:
        return JsonResponse({"object": "list", "data": [self._card(name) for name in self._options.served_model_names]})

    async def model(self, http: Request) -> Response:
        name = http.path_params["name"]
        self._service.check_model(name)
        return JsonResponse(self._card(name))

    def _card(self, name: str) -> dict[str, Any]:
        card = {"id": name, "object": "model", "created": self._created, "owned_by": "eagle31rt"}
        return {**card, "root": self._service.model, "parent": None, "max_model_len": self._llm.info["max_model_len"]}

    async def show_metrics(self, http: Request) -> Response:
        text, media_type = self._app.metrics.render(http.headers.get("accept", ""))
        return Response(text, headers={"content-type": media_type})

    async def tokenize(self, http: Request) -> Response:
        return await read_body(http, self._options.limits, self._tokenized)

    def _tokenized(self, body: dict[str, Any]) -> Response:
        request = parse_request(TokenizeRequest, body)
        self._service.check_model(request.model)
        if (request.prompt is None) == (request.messages is None):
            raise bad_request("prompt", "give one of prompt and messages")
        ids = self._token_ids(request)
        tokens = None
        if request.return_token_strs:
            tokenizer = self._llm.get_tokenizer()
            tokens = [tokenizer.decode([token_id], skip_special_tokens=False) for token_id in ids]
        length = self._llm.info["max_model_len"]
        return JsonResponse({"count": len(ids), "max_model_len": length, "tokens": ids, "token_strs": tokens})

    def _token_ids(self, request: TokenizeRequest) -> list[int]:
        try:
            if request.prompt is not None:
                return self._llm.prompt_ids(Prompt(request.prompt, None, request.add_special_tokens is not False))
            if request.add_special_tokens:
                raise bad_request("add_special_tokens", "must be false with messages: the template writes them")
            prompt = self._llm.chat_prompt(
                conversation(request.messages, self._options.limits.max_messages),
                add_generation_prompt=request.add_generation_prompt is not False,
                tools=tools_of(request.tools, None),
                chat_template_kwargs=request.chat_template_kwargs,
            )
            return self._llm.prompt_ids(prompt)
        except Eagle31rtError as error:
            given = "messages" if request.prompt is None else "prompt"
            raise from_runtime_error(error, TokenizeRequest.model_fields, given) from error

    async def detokenize(self, http: Request) -> Response:
        return await read_body(http, self._options.limits, self._detokenized)

    def _detokenized(self, body: dict[str, Any]) -> Response:
        request = parse_request(DetokenizeRequest, body)
        self._service.check_model(request.model)
        ids, size = request.tokens, self._llm.info["vocab_size"]
        if not isinstance(ids, list) or not all(type(one) is int and 0 <= one < size for one in ids):
            raise bad_request("tokens", f"tokens must be a list of token ids from 0 to {size - 1}")
        text = self._llm.get_tokenizer().decode(ids, bool(request.skip_special_tokens))
        return JsonResponse({"prompt": text})

    async def swap_draft(self, http: Request) -> Response:
        request = await read_body(http, self._options.limits, lambda body: parse_request(SwapDraftRequest, body))
        if request.model is None:
            raise bad_request("model", "model must be the directory of a draft")
        try:
            await self._llm.swap_draft(request.model)
        except Eagle31rtError as error:
            raise bad_request("model", str(error)) from error
        self._app.metrics.acceptance.restart()
        return JsonResponse({"model": request.model})


async def _show_api_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()


async def _show_http_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: "there is no such path", 405: "this path has another method"}
    message = what.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _show_internal_error(http: Request, error: Exception) -> Response:
    """Without its text, which may hold a prompt; the gate logs where it was."""
    return ApiError(500, "internal error; the server's log says where", code="internal").response()
