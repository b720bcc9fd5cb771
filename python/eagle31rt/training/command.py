"""`eagle31rt train`: options and what they set. Imports torch only when it runs."""

from __future__ import annotations

import argparse
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.model_source import model_directory
from eagle31rt.training.settings import (
    ATTENTIONS,
    PRECISIONS,
    VARIANTS,
    DataSettings,
    HeadSettings,
    LoopSettings,
    TrainSettings,
)

# Option -> (settings class that has the field of this name, type, help). Defaults are the fields' own.
_OPTIONS: dict[str, tuple[type, Any, str]] = {
    "draft-vocab-size": (HeadSettings, int, "tokens that the draft can propose"),
    "intermediate-size": (HeadSettings, int, "of the draft's MLP (default: the target's)"),
    "start": (HeadSettings, str, "closed-form or random"),
    "epochs": (LoopSettings, float, "passes over the data"),
    "steps": (LoopSettings, int, "optimizer steps, instead of --epochs"),
    "batch-tokens": (LoopSettings, int, "tokens of conversations per step"),
    "ttt-steps": (LoopSettings, int, "depth of the trained chains"),
    "chain-fraction": (LoopSettings, float, "share of positions from which chains go past step 0"),
    "dropout": (LoopSettings, float, "of the feature, and of what attention and MLP add to it"),
    "step-decay": (LoopSettings, float, "weight of step k is this to the power k"),
    "learning-rate": (LoopSettings, float, "peak"),
    "head-learning-rate": (LoopSettings, float, "of lm_head, as a factor of --learning-rate; 0 freezes it"),
    "warmup-steps": (LoopSettings, int, "of the learning rate"),
    "decay-fraction": (LoopSettings, float, "last part of the run over which the cosine falls"),
    "weight-decay": (LoopSettings, float, "of AdamW"),
    "checkpoint-minutes": (LoopSettings, float, "between checkpoints"),
    "evaluate-every": (LoopSettings, int, "steps between acceptance measurements; 0: only at the end"),
    "evaluate-prompts": (LoopSettings, int, "held-out prompts of a measurement"),
    "num-speculative-tokens": (LoopSettings, int, "draft length of a measurement"),
    "max-tokens": (DataSettings, int, "longest conversation"),
    "max-new-tokens": (DataSettings, int, "longest answer"),
    "max-turns": (DataSettings, int, "answers in a conversation, at most"),
    "max-num-seqs": (DataSettings, int, "conversations generated at a time"),
    "cache-gib": (DataSettings, float, "bound of the cache of captured states"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, metavar="DIR", help="Hugging Face directory of the target")
    parser.add_argument("--output", required=True, metavar="DIR", help="where the draft is written")
    parser.add_argument("--work", metavar="DIR", help="data, states and checkpoint (default: OUTPUT.work)")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--prompts", metavar="F.jsonl", help="JSON lines with 'prompt' or 'messages'")
    source.add_argument("--self-generate", type=int, metavar="N", help="N conversations on the trainer's own prompts")
    text = "text file or folder of .txt, .md, .rst that the prompts of --self-generate quote"
    parser.add_argument("--documents", metavar="PATH", help=text)
    parser.add_argument("--resume", action="store_true", help="go on with what the work folder holds")
    parser.add_argument("--variant", choices=VARIANTS, default=VARIANTS[0], help=f"default {VARIANTS[0]}")
    text = "of the head: gqa (grouped queries), mla (multi-head latent attention) or auto (default): as the target"
    parser.add_argument("--attention", choices=ATTENTIONS, default="auto", help=text)
    parser.add_argument("--capture-layers", type=int, nargs="+", default=[], metavar="K", help="default 2, N//2, N-3")
    text = "learn from answers only, not from the tokens of prompts"
    parser.add_argument("--answers-only", action="store_true", help=text)
    parser.add_argument("--exact-features", action="store_true", help="cache float32 states instead of float16")
    parser.add_argument("--device", default="cpu", help="of head and engine: cpu (default) or cuda")
    text = "of matrix products (auto: bfloat16 on CUDA, float32 on the CPU)"
    parser.add_argument("--precision", choices=PRECISIONS, default="auto", help=text)
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="CPU threads (default: physical cores)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="default 0")
    for option, (group, kind, text) in _OPTIONS.items():
        default = getattr(group(), option.replace("-", "_"))
        shown = "" if default is None else f" (default {default})"
        parser.add_argument(f"--{option}", type=kind, default=default, metavar="X", help=text + shown)


def settings_from(arguments: argparse.Namespace) -> TrainSettings:
    """Raises InvalidArgumentError or CheckpointError for directories and values that cannot be."""
    output = Path(arguments.output)
    for option in ("output", "work"):
        if getattr(arguments, option) == "":
            raise InvalidArgumentError(f"--{option} is empty: name a folder")
    prompts = None if arguments.prompts is None else Path(arguments.prompts)
    if prompts is not None and not prompts.is_file():
        raise InvalidArgumentError(f"--prompts: there is no file {prompts}")
    documents = None if arguments.documents is None else Path(arguments.documents)
    if documents is not None and arguments.self_generate is None:
        raise InvalidArgumentError("--documents is for the prompts that --self-generate writes: give that, too")
    given: dict[str, Any] = {
        **vars(arguments),
        "prompts": prompts,
        "documents": documents,
        "self_generate": arguments.self_generate or 0,
        "capture_layers": tuple(arguments.capture_layers),
        "train_on_prompts": not arguments.answers_only,
    }

    def group(kind: type) -> Any:
        return kind(**{field.name: given[field.name] for field in fields(kind) if field.name in given})

    return TrainSettings(
        target=model_directory(arguments.target, "--target"),
        output=output,
        work=Path(arguments.work) if arguments.work else _work_of(output),
        head=group(HeadSettings),
        loop=group(LoopSettings),
        data=group(DataSettings),
        device=arguments.device,
        threads=arguments.threads,
        precision=arguments.precision,
    )


def _work_of(output: Path) -> Path:
    named = output if output.name not in ("", "..") else Path(os.path.abspath(output))
    if not named.name:
        raise InvalidArgumentError(f"--output {output} gives no name for the work folder: give --work")
    return named.with_name(named.name + ".work")


def run(arguments: argparse.Namespace) -> int:
    settings = settings_from(arguments)
    settings.check()
    try:
        from eagle31rt.training.run import train
    except ImportError as error:
        needs = "training needs torch and safetensors: pip install 'eagle31rt[train]'"
        raise UnsupportedError(f"{needs} ({error})") from error
    console = Console(stderr=True, highlight=False)
    try:
        acceptance = train(settings, console, arguments.resume)
    except (KeyboardInterrupt, SystemExit):
        console.print(f"interrupted; the same command with --resume goes on from {settings.work}")
        raise
    rates = " ".join(f"{rate:.2f}" for rate in acceptance.per_position)
    print(f"{settings.output}: acceptance length {acceptance.length:.2f} on held-out prompts, per position {rates}")
    return 0
