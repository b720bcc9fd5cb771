"""One run of `eagle31rt train`: data, vocabulary, head, loop, export."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle31rt.errors import DeviceError, InvalidArgumentError, ResourceError
from eagle31rt.llm import LLM
from eagle31rt.training.batches import Dataset
from eagle31rt.training.checkpoint import Checkpoint
from eagle31rt.training.closed_form import closed_form_start
from eagle31rt.training.conversations import ConversationStore
from eagle31rt.training.evaluation import Acceptance
from eagle31rt.training.export import export_head
from eagle31rt.training.features import FeatureCache, FeatureSettings
from eagle31rt.training.generation import Generator
from eagle31rt.training.head import HeadSizes
from eagle31rt.training.llama_head import LlamaHead
from eagle31rt.training.losses import Teacher
from eagle31rt.training.prompts import read_prompt_file
from eagle31rt.training.settings import HeadSettings, TrainSettings
from eagle31rt.training.target import TargetSizes, TargetTensors
from eagle31rt.training.trainer import Figures, Trainer
from eagle31rt.training.vocabulary import choose_vocabulary, count_tokens, coverage

_LOG_STEPS = 20


def train(settings: TrainSettings, console: Console, resume: bool = False) -> Acceptance:
    """Everything from prompts to the exported directory; returns the acceptance that the engine measured.

    What is finished already (groups of conversations, captured states, optimizer steps) is taken over with `resume`.
    """
    settings.check()
    sizes = TargetSizes.read(settings.target)
    with _disk_errors(settings.work):
        prepare_work(settings.work, resume)
        _prepare_torch(settings)
        store = generate_data(settings, console)
        trainer = make_trainer(settings, sizes, store, console)
        with _progress(console) as progress:
            task = progress.add_task("training", total=trainer.total_steps, completed=trainer.step)

            def report(step: int, total: int, figures: Figures) -> None:
                progress.update(task, total=total, completed=step, description=_describe(figures))
                if progress.disable and not step % _LOG_STEPS:  # no terminal: a log file
                    console.print(f"step {step} of {total}: {_describe(figures)}")

            acceptance = trainer.run(report)
        export_head(settings.output, trainer.head, trainer.kept, sizes)
    return acceptance


def prepare_work(work: Path, resume: bool) -> None:
    used = work.is_dir() and any(work.iterdir())
    if used and not resume:
        raise InvalidArgumentError(f"{work} holds a run already: give --resume to go on with it, or another --work")
    work.mkdir(parents=True, exist_ok=True)


def generate_data(settings: TrainSettings, console: Console) -> ConversationStore:
    """Lets the target write what is missing of the conversations."""
    store = ConversationStore(settings.work / "data")
    data = settings.data
    prompts = None if data.prompts is None else read_prompt_file(data.prompts)
    if prompts is None and data.self_generate == 0:
        if len(store) == 0:
            raise InvalidArgumentError("there is no data: give --prompts FILE or --self-generate N")
        return store  # a resumed run
    llm = LLM(
        settings.target,
        max_model_len=data.max_tokens,
        max_num_seqs=data.max_num_seqs,
        num_threads=settings.threads or None,
        device=settings.device,
    )
    generator = Generator(llm, data, prompts)
    with _progress(console) as progress:
        task = progress.add_task("generating", total=generator.num_groups)
        generator.run(store, lambda done, total: progress.update(task, completed=done, total=total))
    return store


def head_sizes(settings: HeadSettings, target: TargetSizes) -> HeadSizes:
    layers = settings.capture_layers or target.default_capture_layers()
    ascending = list(layers) == sorted(set(layers)) and layers[0] >= 0 and layers[-1] <= target.num_layers
    if not ascending:
        raise InvalidArgumentError(f"--capture-layers must ascend within 0 to {target.num_layers}, got {list(layers)}")
    default = target.num_layers >= 6 and layers == target.default_capture_layers()
    if not default and layers[-1] != target.num_layers:
        raise InvalidArgumentError(
            f"--capture-layers {list(layers)} could be read in two ways by engines (k or k - 1): "
            f"take the default, or let the last one be {target.num_layers}"
        )
    updated = settings.variant == "eagle3.1"
    return HeadSizes(
        hidden_size=target.hidden_size,
        intermediate_size=settings.intermediate_size or target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=min(settings.draft_vocab_size, target.vocab_size),
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_theta=target.rope_theta,
        capture_layers=tuple(layers),
        fc_norm=updated,
        norm_output=updated,
    )


def make_trainer(settings: TrainSettings, target: TargetSizes, store: ConversationStore, console: Console) -> Trainer:
    """A trainer at step 0, or at the step of the checkpoint in the work folder."""
    sizes = head_sizes(settings.head, target)
    tensors = TargetTensors.read(settings.target)
    path = settings.work / "checkpoint.pt"
    checkpoint = Checkpoint.load(path) if path.is_file() else None
    kept = checkpoint.kept if checkpoint else _choose(store, sizes, target, console)
    features = FeatureCache(settings.work / "features", store, _feature_settings(settings, target, sizes))
    dataset = Dataset(store, features, kept, target.vocab_size, settings.device, settings.loop.train_on_prompts)
    if dataset.num_training_tokens == 0:
        raise InvalidArgumentError("the conversations hold nothing to train on: give more prompts")
    torch.manual_seed(settings.loop.seed)
    head = LlamaHead(sizes, tensors.embedding, settings.data.max_tokens + settings.loop.ttt_steps)
    folded = tensors.folded_head(kept)
    with torch.no_grad():
        head.lm_head.weight.copy_(folded)  # norm.weight stays 1: the same logits, and feedback of unit RMS
    head.to(settings.device)
    half = settings.precision == "bfloat16" or (settings.precision == "auto" and settings.device != "cpu")
    head.compute_in(torch.bfloat16 if half else torch.float32)
    teacher = Teacher(folded.to(settings.device), target.rms_norm_eps)
    if checkpoint is None and settings.head.start == "closed-form":
        plans = dataset.epoch(0, settings.loop.batch_tokens, settings.loop.seed)
        rows = closed_form_start(head, (dataset.load(plan) for plan in plans), settings.loop.seed)
        console.print(f"closed-form start from {rows} positions")
    trainer = Trainer(settings, target, head, teacher, dataset, kept)
    if checkpoint is not None:
        trainer.resume(checkpoint)
        console.print(f"resuming after step {trainer.step}")
    console.print(f"{dataset.num_training_tokens} training tokens in {len(store)} groups, {trainer.total_steps} steps")
    return trainer


def _choose(store: ConversationStore, sizes: HeadSizes, target: TargetSizes, console: Console) -> torch.Tensor:
    counts = count_tokens((c for group in range(len(store)) for c in store.read(group)), target.vocab_size)
    always = [i for i in target.special_ids.values() if 0 <= i < target.vocab_size]
    kept = choose_vocabulary(counts, sizes.draft_vocab_size, always)
    share = coverage(counts, kept)
    console.print(f"draft vocabulary: {len(kept)} of {target.vocab_size}, covers {share:.1%} of the data")
    return torch.from_numpy(np.ascontiguousarray(kept))


def _feature_settings(settings: TrainSettings, target: TargetSizes, sizes: HeadSizes) -> FeatureSettings:
    return FeatureSettings(
        target=settings.target,
        capture_layers=sizes.capture_layers,
        num_layers=target.num_layers,
        hidden_size=target.hidden_size,
        max_tokens=settings.data.max_tokens,
        threads=settings.threads,
        limit_bytes=int(settings.data.cache_gib * 2**30),
        exact=settings.data.exact_features,
        device=settings.device,
    )


def _prepare_torch(settings: TrainSettings) -> None:
    """Deterministic kernels, so that a resumed run gives the same bits."""
    if settings.device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device; give --device cpu, or install torch for CUDA")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.backends.cuda.matmul.allow_tf32 = True
    elif settings.device != "cpu":
        raise InvalidArgumentError(f"--device must be cpu or cuda, got {settings.device!r}")
    torch.use_deterministic_algorithms(True)
    if settings.threads:
        torch.set_num_threads(settings.threads)


@contextmanager
def _disk_errors(work: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        with suppress(OSError):
            for partial in work.rglob("*.partial"):
                partial.unlink()
        raise ResourceError(
            f"no space left for {work}: make room or lower --cache-gib, then give the same command with --resume"
        ) from error


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _describe(figures: Figures) -> str:
    rates = " ".join(f"{rate:.2f}" for rate in figures.agreement)
    return f"loss {figures.loss[0]:.3f}, agreement {rates}" if figures.loss else "training"
