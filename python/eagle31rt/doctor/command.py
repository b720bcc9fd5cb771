"""`eagle31rt check TARGET DRAFT`: options, and what it prints."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from eagle31rt.errors import InvalidArgumentError
from eagle31rt.sampling_params import MAX_SPECULATIVE_TOKENS

if TYPE_CHECKING:
    from eagle31rt.doctor.report import Report
    from eagle31rt.llm import PromptInput

_PROBED_LENGTH = 3
_MAX_INTEGER = 2**31 - 1  # an int32 of the core


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("target", metavar="TARGET", help="directory or hub id of the target")
    add("draft", metavar="DRAFT", help="directory, GGUF file or hub id of the draft")
    add("--max-model-len", type=int, metavar="N", help="length to serve (default: the target's)")
    add("--capture-layers", type=int, nargs="+", default=[], metavar="K", help="override: layers that have run")
    text = "override: what the ids of the file count (residual_index: layers that have run; layer_output: one less)"
    add("--layer-id-convention", default="", choices=["residual_index", "layer_output"], help=text)
    text = "override: state fed back between draft steps (auto: the file's norm_output)"
    add("--feedback", default="auto", choices=["auto", "pre", "post"], help=text)
    add("--json", action="store_true", help="print one JSON line (docs/doctor.md has its schema)")
    add("--probe", action="store_true", help="load both, answer prompts and measure acceptance per position")
    add("--prompts", metavar="F.jsonl", help="prompts of --probe as JSON lines (default: eight built-in questions)")
    add("--num-speculative-tokens", type=int, metavar="K", help="draft length to serve (default of --probe: 3)")
    add("--max-tokens", type=int, default=64, metavar="N", help="longest answer of --probe (default 64)")
    add("--threads", type=int, metavar="N", help="CPU threads of --probe (default: physical cores)")
    add("--device", default="cpu", metavar="D", help="of --probe: cpu (default), cuda or cuda:N")


def run(arguments: argparse.Namespace, read_prompts: Callable[[str], list[PromptInput]]) -> int:
    """Returns 0 if the draft would load and 1 if not. `read_prompts`: of the file of --prompts."""
    from eagle31rt.doctor.report import examine
    from eagle31rt.doctor.show import show_probe, show_report
    from eagle31rt.draft_source import draft_directory
    from eagle31rt.model_source import model_directory

    if arguments.prompts is not None and not arguments.probe:
        raise InvalidArgumentError("--prompts needs --probe")
    _check_numbers(arguments)
    prompts = None if arguments.prompts is None else read_prompts(arguments.prompts)
    report = examine(
        model_directory(arguments.target, "TARGET"),
        draft_directory(arguments.draft, "DRAFT"),
        capture_layers=arguments.capture_layers,
        layer_id_convention=arguments.layer_id_convention,
        feedback=arguments.feedback,
        max_model_len=arguments.max_model_len or 0,
        num_speculative_tokens=arguments.num_speculative_tokens or 0,
    )
    console = Console(highlight=False)
    if not arguments.json:
        show_report(report, console)
    if arguments.probe and report.loads:
        report.probe = _probe(arguments, report, prompts)
        if not arguments.json:
            show_probe(report.probe, console)
    if arguments.json:
        print(json.dumps(report.to_dict()))
    return 0 if report.loads else 1


def _check_numbers(arguments: argparse.Namespace) -> None:
    """What no pair could be served with is a wrong option; the rules speak about the pair."""
    bounds: dict[str, tuple[int, int, list[int | None]]] = {
        "--max-model-len": (1, _MAX_INTEGER, [arguments.max_model_len]),
        "--num-speculative-tokens": (0, MAX_SPECULATIVE_TOKENS, [arguments.num_speculative_tokens]),
        "--capture-layers": (0, _MAX_INTEGER, arguments.capture_layers),
    }
    for name, (low, high, values) in bounds.items():
        for value in values:
            if value is not None and not low <= value <= high:
                raise InvalidArgumentError(f"{name} is {value}; give {low} to {high}")


def _probe(arguments: argparse.Namespace, report: Report, prompts: list[PromptInput] | None) -> dict[str, Any]:
    from eagle31rt.doctor.probe import PROMPTS, Settings, run_probe

    def announce(settings: Settings) -> None:
        print(f"probing with {settings.keys()} ...", file=sys.stderr)

    return run_probe(
        Path(report.target),
        Path(report.draft),
        Settings(tuple(json.loads(report.value_of("capture_layers"))), report.value_of("feedback")),
        int(report.value_of("target_num_layers")),
        prompts or PROMPTS,
        num_speculative_tokens=arguments.num_speculative_tokens or _PROBED_LENGTH,
        max_tokens=arguments.max_tokens,
        max_model_len=arguments.max_model_len or None,
        num_threads=arguments.threads,
        device=arguments.device,
        on_start=announce,
    ).to_dict()
