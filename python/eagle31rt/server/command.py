"""`eagle31rt serve`: vLLM's spelling, checked before anything is loaded. Needs no extra to be imported."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from eagle31rt.draft_source import draft_directory
from eagle31rt.environment import server_api_key
from eagle31rt.errors import Eagle31rtError, InvalidArgumentError, ResourceError, UnsupportedError
from eagle31rt.model_source import model_directory
from eagle31rt.server.options import Limits, ServerOptions
from eagle31rt.vllm_arguments import ENGINE_ARGUMENTS, SERVER_ARGUMENTS, refuse_other_arguments

_SPECULATION_DETAILS = ("none", "summary", "detailed")
# Arguments of BaseLLM that `serve` passes on as they are.
_ENGINE = (
    "tokenizer", "speculative_config", "dtype", "kv_cache_dtype", "max_model_len", "max_num_seqs",
    "max_num_batched_tokens", "block_size", "kv_cache_memory_bytes", "num_threads", "device", "gpu_memory_utilization",
    "enforce_eager", "seed", "max_logprobs", "enable_prefix_caching",
)  # fmt: skip
_SHORT = {"tensor_parallel_size": "-tp", "pipeline_parallel_size": "-pp", "data_parallel_size": "-dp"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "model_directory",
        nargs="?",
        metavar="MODEL",
        help="the target: a Hugging Face directory, a GGUF file or a hub id",
    )
    add("--revision", metavar="REV", help="branch, tag or commit of a hub id")
    add("--model", metavar="DIR", help="the same as MODEL")
    add("--speculative-config", "-sc", type=_json_object, metavar="JSON", help="draft, for example "
        '{"method": "eagle3", "model": "DIR", "num_speculative_tokens": 3}')  # fmt: skip
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)")
    add("--port", type=_integer(0, 65535), default=8000, help="default 8000; 0 takes a free one")
    add("--served-model-name", nargs="+", metavar="NAME", help="what requests call the model (default: MODEL as given)")
    add("--api-key", nargs="+", metavar="KEY", help="required of requests (default: EAGLE31RT_API_KEY, if set)")
    _add_engine(parser.add_argument_group("engine, as LLM's arguments of the same names"))
    _add_limits(parser.add_argument_group("limits"))
    _add_observation(parser.add_argument_group("metrics and logs"))
    for name in {**ENGINE_ARGUMENTS, **SERVER_ARGUMENTS}:
        flags = [f"--{name.replace('_', '-')}", *([_SHORT[name]] if name in _SHORT else [])]
        add(*flags, dest=name, nargs="?", type=_json_or_text, const=True, help=argparse.SUPPRESS)
        add(f"--no-{name.replace('_', '-')}", dest=name, action="store_const", const=False, help=argparse.SUPPRESS)


def _add_engine(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--tokenizer", metavar="DIR", help="default: MODEL")
    add("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    add("--kv-cache-dtype", default="auto", help="auto (as dtype), float32, bfloat16 or float16")
    add(
        "--max-model-len",
        type=_human_integer,
        metavar="N",
        help="tokens of a prompt and its output; 8k = 8000, 8K = 8192",
    )
    add("--max-num-seqs", type=int, metavar="N", help="sequences that run at once")
    add("--max-num-batched-tokens", type=_human_integer, metavar="N", help="tokens of one step")
    add("--block-size", type=int, metavar="N", help="tokens of a KV page")
    add("--kv-cache-memory-bytes", type=_human_integer, metavar="N", help="of target and draft together")
    add("--enable-prefix-caching", action=argparse.BooleanOptionalAction, help="share equal beginnings (default on)")
    add("--num-threads", type=int, metavar="N", help="CPU threads (default: physical cores)")
    add("--device", default="cpu", help="cpu (default), cuda or cuda:N")
    add("--gpu-memory-utilization", type=float, metavar="F", help="share of GPU memory to use")
    add("--enforce-eager", action="store_true", help="no CUDA graphs")
    add("--seed", type=int, help="makes requests without a seed repeatable, in order of submission")
    add("--max-logprobs", type=int, metavar="N", help="that a request may ask for (default 20)")


def _add_limits(group: argparse._ArgumentGroup) -> None:
    limits, add = Limits(), group.add_argument
    count = _integer(1, 2**31 - 1)
    add("--max-waiting-requests", type=_integer(0, 2**31 - 1), default=limits.max_waiting_requests, metavar="N",
        help="beyond --max-num-seqs; then 429 (default %(default)s)")  # fmt: skip
    add("--max-body-bytes", type=count, default=limits.max_body_bytes, metavar="N", help="default %(default)s")
    add("--max-n", type=count, default=limits.max_n, metavar="N", help="samples of a request (default %(default)s)")
    add("--max-stop-strings", type=_integer(1, 64), default=limits.max_stop_strings, metavar="N",
        help="default %(default)s")  # fmt: skip
    add("--shutdown-timeout", type=_integer(0, 86400), default=60, metavar="S",
        help="seconds that running requests get after SIGTERM (default %(default)s)")  # fmt: skip


def _add_observation(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--enable-metrics", action=argparse.BooleanOptionalAction, default=True, help="/metrics (default on)")
    add("--expose-vllm-metric-names", action="store_true", help="each metric also under vLLM's name")
    add("--per-request-spec-decode-metrics", choices=_SPECULATION_DETAILS, default="none",
        help="block metrics.speculative_decoding in answers (default none)")  # fmt: skip
    add("--enable-admin", action="store_true", help="POST /swap_draft, for whoever may send requests")
    add("--uvicorn-log-level", choices=("debug", "info", "warning", "error", "critical"), default="info")
    add("--disable-uvicorn-access-log", action="store_true", help="no line for each request")


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or Ctrl-C. Raises Eagle31rtError, naming all that is wrong, before anything is loaded."""
    model = _check(arguments)
    try:
        from eagle31rt.server.run import serve
    except ModuleNotFoundError as error:
        raise ResourceError(f"serve needs the extra [server] ({error}): pip install 'eagle31rt[server]'") from error
    engine = {name: getattr(arguments, name) for name in _ENGINE if getattr(arguments, name) is not None}
    return serve(model, engine, make_options(arguments))


def make_options(arguments: argparse.Namespace) -> ServerOptions:
    keys = tuple(arguments.api_key or ()) or tuple(filter(None, [server_api_key()]))
    limits = Limits(
        max_body_bytes=arguments.max_body_bytes,
        max_n=arguments.max_n,
        max_stop_strings=arguments.max_stop_strings,
        max_waiting_requests=arguments.max_waiting_requests,
    )
    return ServerOptions(
        served_model_names=tuple(arguments.served_model_name or [arguments.model_directory or arguments.model]),
        host=arguments.host,
        port=arguments.port,
        api_keys=keys,
        enable_metrics=arguments.enable_metrics,
        expose_vllm_metric_names=arguments.expose_vllm_metric_names,
        per_request_spec_decode_metrics=arguments.per_request_spec_decode_metrics,
        shutdown_timeout=arguments.shutdown_timeout,
        enable_admin=arguments.enable_admin,
        access_log=not arguments.disable_uvicorn_access_log,
        log_level=arguments.uvicorn_log_level,
        limits=limits,
    )


def _check(arguments: argparse.Namespace) -> Path:
    """The model's directory. All problems are told at once."""
    problems: list[Eagle31rtError] = []
    for known in (ENGINE_ARGUMENTS, SERVER_ARGUMENTS):
        for name in known:
            if getattr(arguments, name) is not None:
                _collect(problems, refuse_other_arguments, {name: getattr(arguments, name)}, known)
    if any(not key.strip() for key in arguments.api_key or ()):
        problems.append(InvalidArgumentError("--api-key is empty (an unset variable?): give a key or leave it out"))
    if arguments.per_request_spec_decode_metrics == "detailed":
        problems.append(UnsupportedError("per_request_spec_decode_metrics 'detailed' is not supported; use 'summary'"))
    if arguments.model_directory is not None and arguments.model is not None:
        problems.append(InvalidArgumentError("give the model once: MODEL or --model"))
    model = arguments.model_directory or arguments.model
    if model is None:
        problems.append(InvalidArgumentError("give the target: eagle31rt serve MODEL"))
    if problems:  # before a hub id is fetched
        raise _together(problems)
    directory = _collect(problems, model_directory, model, "model", arguments.revision)
    speculation = arguments.speculative_config
    if speculation is not None and isinstance(speculation.get("model"), str):
        revision = speculation.get("revision")
        _collect(problems, draft_directory, speculation["model"], "speculative_config['model']", revision)
    if problems:
        raise _together(problems)
    assert isinstance(directory, Path)
    return directory


def _together(problems: list[Eagle31rtError]) -> Eagle31rtError:
    return type(problems[0])("; ".join(str(problem) for problem in problems))


def _collect(problems: list[Eagle31rtError], function: Any, *arguments: Any) -> Any:
    """What the function returns; None if it raised, which `problems` then holds."""
    try:
        return function(*arguments)
    except Eagle31rtError as error:
        problems.append(error)
        return None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _integer(low: int, high: int) -> Any:
    def parse(text: str) -> int:
        value = int(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"must be from {low} to {high}")
        return value

    return parse


def _human_integer(text: str) -> int:
    """vLLM's: 1k = 1000, 1K = 1024, also m, M, g, G; decimals with the small letters."""
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    unit = units.get(text[-1:], 1)
    try:
        number = float(text[:-1] if unit != 1 else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
    if number != number or abs(number) > 1e15 or number * unit != int(number * unit):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(number * unit)
