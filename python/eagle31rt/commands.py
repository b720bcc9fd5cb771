"""What the commands of cli.py do."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from eagle31rt import __version__
from eagle31rt.cuda_runtime import describe_cuda
from eagle31rt.environment import ENVIRONMENT_VARIABLES, cache_folder, shown_value
from eagle31rt.errors import InternalError, InvalidArgumentError
from eagle31rt.llm import LLM, PromptInput
from eagle31rt.outputs import RequestOutput, StreamPiece
from eagle31rt.sampling_params import SamplingParams

_DEFAULT_DRAFT_LENGTH = 3
_SAMPLING_OPTIONS = (
    *("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "min_tokens", "ignore_eos", "stop", "logprobs"),
    *("repetition_penalty", "frequency_penalty", "presence_penalty"),
)


def run_demo(arguments: argparse.Namespace) -> int:
    from eagle31rt.demo import run_demo
    from eagle31rt.demo_model import prepare_demo_pair

    pair = prepare_demo_pair()
    if arguments.paths:
        print(json.dumps({"target": str(pair.target), "draft": str(pair.draft)}))
        return 0
    result = run_demo(
        pair,
        Console(stderr=arguments.json, highlight=False),
        num_speculative_tokens=arguments.num_speculative_tokens,
        max_tokens=arguments.max_tokens,
        num_threads=arguments.threads,
    )
    if arguments.json:
        print(json.dumps(result.to_dict()))
    return 0 if result.identical else 1


def run_generate(arguments: argparse.Namespace) -> int:
    prompts = _given_prompts(arguments)
    if prompts is None:
        raise InvalidArgumentError("give --prompt TEXT or --prompt-file F.jsonl")
    params = _sampling_params(arguments)
    llm = _load(arguments)
    if arguments.explain:
        llm.explain_steps(sys.stderr)
    if len(prompts) == 1 and not arguments.json:
        _print_stream(_stream(llm, prompts[0], params, arguments.chat))
        return 0
    outputs = _complete(llm, prompts, params, arguments.chat)
    for output in outputs:
        _print_output(output, arguments.json)
    _raise_failure(outputs)
    return 0


def run_chat(arguments: argparse.Namespace) -> int:
    params = _sampling_params(arguments)
    turns = _given_prompts(arguments)
    llm = _load(arguments)
    messages = [{"role": "system", "content": arguments.system}] if arguments.system is not None else []
    for turn in _typed_turns() if turns is None else turns:
        messages.append({"role": "user", "content": _text(turn)})
        if arguments.json:
            output = llm.chat(messages, params, use_tqdm=False)[0]
            _print_output(output, as_json=True)
            _raise_failure([output])
        else:
            output = _print_stream(llm.stream_chat(messages, params))
        messages.append({"role": "assistant", "content": output.outputs[0].text})
    return 0


def run_train(arguments: argparse.Namespace) -> int:
    from eagle31rt.training.command import run

    return run(arguments)


def run_serve(arguments: argparse.Namespace) -> int:
    from eagle31rt.server.command import run

    return run(arguments)


def run_check(arguments: argparse.Namespace) -> int:
    from eagle31rt.doctor.command import run

    return run(arguments, _read_prompts)


def run_plan(arguments: argparse.Namespace) -> int:
    from eagle31rt.draft_source import draft_directory
    from eagle31rt.memory_plan import PlanSettings, plan_memory, print_plan
    from eagle31rt.model_source import model_directory

    names = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_speculative_tokens", "dtype")
    settings = PlanSettings(
        **{name: getattr(arguments, name) for name in names}, kv_cache_dtype=arguments.kv_cache_dtype
    )
    size = arguments.tensor_parallel_size
    target = model_directory(arguments.target, "TARGET")
    draft = None if arguments.draft is None else draft_directory(arguments.draft, "--draft")
    plan = plan_memory(target, draft, settings, None if size is None else (size,))
    if arguments.json:
        print(json.dumps(plan))
    else:
        print_plan(plan, Console(highlight=False))
    return 0


def run_env(arguments: argparse.Namespace) -> int:
    from eagle31rt import _core

    cpu = _core.cpu_info()
    facts: dict[str, Any] = {
        "version": __version__,
        "instruction_set": cpu["instruction_set"],
        "available_instruction_sets": cpu["available_instruction_sets"],
        "threads": cpu["num_physical_cores"],
        "cuda": describe_cuda(),
        "cache_folder": str(cache_folder()),
        "environment": {name: shown_value(name) for name in ENVIRONMENT_VARIABLES},
    }
    if arguments.json:
        print(json.dumps(facts))
        return 0
    print(f"eagle31rt {__version__}")
    print(f"instruction set: {facts['instruction_set']} (available: {', '.join(facts['available_instruction_sets'])})")
    print(f"threads by default: {facts['threads']} (physical cores)")
    _print_cuda(facts["cuda"])
    print(f"cache folder: {facts['cache_folder']}")
    print("environment variables:")
    for name, meaning in ENVIRONMENT_VARIABLES.items():
        print(f"  {name}={shown_value(name) or ''}  # {meaning}")
    return 0


def _print_cuda(cuda: dict[str, Any]) -> None:
    if cuda["problem"] is not None:
        print(f"cuda: not usable: {cuda['problem']}")
        return
    print(f"cuda: runtime {cuda['runtime']}, driver for CUDA {cuda['driver']}")
    for index, device in enumerate(cuda["devices"]):
        capability, gibibytes = device["compute_capability"], device["total_memory"] / 2**30
        print(f"  cuda:{index} {device['name']}, {gibibytes:.0f} GiB, compute capability {capability / 10}")


def _load(arguments: argparse.Namespace) -> LLM:
    speculation: dict[str, Any] | None = None
    length, policy = arguments.num_speculative_tokens, getattr(arguments, "policy", None)
    if arguments.draft is not None:
        length = _DEFAULT_DRAFT_LENGTH if length is None else length
        speculation = {"method": "eagle3", "model": arguments.draft, "num_speculative_tokens": length, "policy": policy}
    elif length or policy is not None:
        option = "--policy" if policy is not None else "--num-speculative-tokens"
        raise InvalidArgumentError(f"{option} needs --draft DIR")
    return LLM(arguments.model, speculative_config=speculation, num_threads=arguments.threads, device=arguments.device)


def _sampling_params(arguments: argparse.Namespace) -> SamplingParams:
    if arguments.logprobs is not None and not arguments.json:
        raise InvalidArgumentError("--logprobs needs --json, which prints them")
    structure: dict[str, Any] | None = None
    if arguments.regex is not None:
        structure = {"regex": arguments.regex}
    elif arguments.json_schema is not None:
        structure = {"json": _read_text(arguments.json_schema)}
    return SamplingParams(
        **{name: getattr(arguments, name) for name in _SAMPLING_OPTIONS}, structured_outputs=structure
    )


def _given_prompts(arguments: argparse.Namespace) -> list[PromptInput] | None:
    if arguments.prompt_file is None:
        prompts: list[PromptInput] | None = arguments.prompt
        return prompts
    return _read_prompts(arguments.prompt_file)


def _read_prompts(path: str) -> list[PromptInput]:
    lines = enumerate(_read_text(path).split("\n"), start=1)
    return [_parse_line(line, f"{path}, line {number}") for number, line in lines if line.strip()]


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(f"{path} is not valid UTF-8: {error}") from error


def _parse_line(line: str, place: str) -> PromptInput:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"{place}: not valid JSON: {error}") from error
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and ("prompt" in value or "prompt_token_ids" in value):
        unknown = sorted(value.keys() - {"prompt", "prompt_token_ids"})
        if unknown:
            raise InvalidArgumentError(f"{place}: unknown key {unknown[0]!r}; parameters are options of the command")
        return value
    raise InvalidArgumentError(f"{place}: must be a string or an object with 'prompt' or 'prompt_token_ids'")


def _text(prompt: PromptInput) -> str:
    text = prompt.get("prompt") if isinstance(prompt, dict) else prompt
    if not isinstance(text, str):
        raise InvalidArgumentError("a turn of a chat must be text")
    return text


def _conversation(prompt: PromptInput) -> list[dict[str, Any]]:
    return [{"role": "user", "content": _text(prompt)}]


def _complete(llm: LLM, prompts: list[PromptInput], params: SamplingParams, chat: bool) -> list[RequestOutput]:
    if chat:
        return llm.chat([_conversation(prompt) for prompt in prompts], params)
    return llm.generate(prompts, params)


def _stream(llm: LLM, prompt: PromptInput, params: SamplingParams, chat: bool) -> Iterator[StreamPiece]:
    return llm.stream_chat(_conversation(prompt), params) if chat else llm.stream(prompt, params)


def _print_stream(pieces: Iterator[StreamPiece]) -> RequestOutput:
    output: RequestOutput | None = None
    for piece in pieces:
        print(piece.text, end="", flush=True)
        output = piece.output
    print()
    if output is None:
        raise InternalError("the stream ended without a result")
    _raise_failure([output])
    return output


def run_convert(arguments: argparse.Namespace) -> int:
    from eagle31rt.convert_command import convert

    print(convert(Path(arguments.input), Path(arguments.output)))
    return 0


def _raise_failure(outputs: list[RequestOutput]) -> None:
    for index, output in enumerate(outputs):
        sample = output.outputs[0]
        if sample.finish_reason == "error":
            raise InternalError(f"prompt {index} failed while it ran: {sample.stop_reason}")


def _print_output(output: RequestOutput, as_json: bool) -> None:
    sample = output.outputs[0]
    if not as_json:
        print(f"> {output.prompt if output.prompt is not None else output.prompt_token_ids}\n{sample.text}\n")
        return
    line: dict[str, Any] = {"token_ids": sample.token_ids, "text": sample.text, "finish_reason": sample.finish_reason}
    if sample.logprobs is not None:
        line["logprobs"] = [{token_id: entry.logprob for token_id, entry in place.items()} for place in sample.logprobs]
    print(json.dumps({**line, "metrics": output.metrics.to_dict()}), flush=True)


def _typed_turns() -> Iterator[PromptInput]:
    """Lines of standard input; a terminal gets a prompt sign."""
    interactive = sys.stdin.isatty()
    while True:
        if interactive:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")
