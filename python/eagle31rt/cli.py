"""The command line: `eagle31rt demo | generate | chat | serve | check | train | convert | plan | env`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from eagle31rt import __version__
from eagle31rt.doctor.command import add_arguments as add_check_arguments
from eagle31rt.errors import Eagle31rtError
from eagle31rt.server.command import add_arguments as add_serve_arguments
from eagle31rt.training.command import add_arguments as add_train_arguments

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class _Parser(argparse.ArgumentParser):
    """Errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"eagle31rt: error: {message}\n")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0, 2 for a reported error, 1 if the demo's ids differ."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without the model's characters must not end the run
    parsed = make_parser().parse_args(arguments)
    try:
        with _termination_cleans_up():
            from eagle31rt import commands

            status: int = getattr(commands, f"run_{parsed.command}")(parsed)
            sys.stdout.flush()
            return status
    except BrokenPipeError:
        # The reader (head, less) has gone; give the interpreter nothing to flush into the closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return _INTERRUPTED
    except (Eagle31rtError, OSError, MemoryError, ImportError) as error:
        message = " ".join(str(error).split()) or type(error).__name__
        print(f"eagle31rt: error: {message}", file=sys.stderr)
        return 2


@contextmanager
def _termination_cleans_up() -> Iterator[None]:
    """Makes SIGTERM unwind like Ctrl-C does, so that half a download is removed and child processes end."""

    def terminate(signal_number: int, frame: object) -> NoReturn:
        raise SystemExit(128 + signal_number)

    if threading.current_thread() is not threading.main_thread():  # handlers can only be set there
        yield
        return
    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def make_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="eagle31rt", description="LLM inference with EAGLE-3.1 speculative decoding.")
    parser.add_argument("--version", action="version", version=f"eagle31rt {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_demo(commands.add_parser("demo", help="fetch a small model, compare plain and speculative decoding"))
    _add_generate(commands.add_parser("generate", help="complete prompts"))
    _add_chat(commands.add_parser("chat", help="talk to a model, turn by turn"))
    add_serve_arguments(commands.add_parser("serve", help="OpenAI-style HTTP server (extra [server])"))
    add_check_arguments(commands.add_parser("check", help="would this draft load for this target, and draft well?"))
    add_train_arguments(commands.add_parser("train", help="train an EAGLE-3 or EAGLE-3.1 draft for a target"))
    convert = commands.add_parser("convert", help="pytorch_model.bin (nothing in it is run) or GGUF to safetensors")
    convert.add_argument("--input", required=True, metavar="PATH", help="folder with pytorch_model.bin, or .gguf file")
    convert.add_argument("--output", required=True, metavar="DIR", help="new folder for model.safetensors")
    _add_plan(commands.add_parser("plan", help="memory by kind on 1, 2, 4 or 8 devices, from configs and headers"))
    env = commands.add_parser("env", help="version, instruction sets, threads, CUDA, environment variables, cache")
    env.add_argument("--json", action="store_true", help="print one JSON line")
    return parser


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-speculative-tokens", type=int, default=3, metavar="K", help="draft length (default 3)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="tokens an answer (default 128)")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: physical cores)")
    parser.add_argument("--json", action="store_true", help="text to standard error, one JSON line to standard output")
    parser.add_argument("--paths", action="store_true", help="only prepare the models and print their paths as JSON")


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="directory or hub id of the target")
    parser.add_argument(
        "--draft", metavar="DIR", help="directory, GGUF file or hub id of an EAGLE-3 or EAGLE-3.1 draft"
    )
    parser.add_argument("--tensor-parallel-size", type=int, choices=(1, 2, 4, 8), help="default: all that divide it")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="default: the model's")
    parser.add_argument("--max-num-seqs", type=int, default=64, metavar="N", help="default 64")
    parser.add_argument("--max-num-batched-tokens", type=int, default=512, metavar="N", help="default 512")
    parser.add_argument("--num-speculative-tokens", type=int, default=3, metavar="K", help="with --draft; default 3")
    parser.add_argument("--dtype", default="auto", help="auto (default), float32, bfloat16 or float16")
    parser.add_argument("--kv-cache-dtype", default="auto", help="auto (default: the dtype) or one of these")
    parser.add_argument("--json", action="store_true", help="print one JSON line")


def _add_generate(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_prompts(
        parser, "prompt; may be repeated", "JSON lines, each a string or an object with 'prompt' or 'prompt_token_ids'"
    )
    parser.add_argument("--chat", action="store_true", help="pass each prompt through the chat template")
    parser.add_argument(
        "--policy", choices=("fixed", "auto"), help="always K drafts (default), or as many as pay; with --draft"
    )
    parser.add_argument(
        "--explain", action="store_true", help="a line on standard error for each step: time by part, why its drafts"
    )


def _add_chat(parser: argparse.ArgumentParser) -> None:
    _add_model(parser)
    _add_prompts(parser, "a turn instead of standard input; may be repeated", "turns as JSON lines")
    parser.add_argument("--system", metavar="TEXT", help="system message")


def _add_prompts(parser: argparse.ArgumentParser, prompt_help: str, file_help: str) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompt", action="append", metavar="TEXT", help=prompt_help)
    source.add_argument("--prompt-file", metavar="F.jsonl", help=file_help)
    parser.add_argument("--json", action="store_true", help="one JSON line a prompt: ids, text, finish reason, metrics")


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="DIR", help="Hugging Face directory of the target")
    parser.add_argument("--draft", metavar="DIR", help="directory of an EAGLE-3 or EAGLE-3.1 draft")
    parser.add_argument("--num-speculative-tokens", type=int, metavar="K", help="draft length (default 3 with --draft)")
    parser.add_argument("--max-tokens", type=int, default=128, metavar="N", help="default 128")
    _add_sampling(parser)
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: physical cores)")
    parser.add_argument("--device", default="cpu", metavar="D", help="cpu (default), cuda or cuda:N")


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--temperature", type=float, default=0.0, metavar="T", help="0 = greedy (default)")
    add("--top-k", type=int, default=0, metavar="N", help="0 = off (default)")
    add("--top-p", type=float, default=1.0, metavar="P", help="1 = off (default)")
    add("--min-p", type=float, default=0.0, metavar="P", help="0 = off (default)")
    add("--seed", type=int, metavar="S", help="default: a fresh one per prompt")
    add("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: fewer repetitions (default 1)")
    add("--frequency-penalty", type=float, default=0.0, metavar="F", help="-2 to 2 (default 0)")
    add("--presence-penalty", type=float, default=0.0, metavar="F", help="-2 to 2 (default 0)")
    add("--min-tokens", type=int, default=0, metavar="N", help="no end of sequence before (default 0)")
    add("--ignore-eos", action="store_true", help="go on after the end of sequence")
    add("--stop", action="append", metavar="TEXT", help="ends the answer before this text; may be repeated")
    add("--logprobs", type=int, metavar="N", help="log-probabilities of each token and of the N most probable (--json)")
    structure = parser.add_mutually_exclusive_group()
    structure.add_argument("--json-schema", metavar="FILE", help="the answer is JSON of this schema")
    structure.add_argument("--regex", metavar="R", help="the answer matches this regular expression")


if __name__ == "__main__":
    sys.exit(main())
