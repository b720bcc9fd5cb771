"""One run of `eagle31rt train`: data, vocabulary, head, loop, export."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eagle31rt.errors import CheckpointError, DeviceError, InvalidArgumentError, ResourceError
from eagle31rt.llm import LLM
from eagle31rt.training.batches import Dataset
from eagle31rt.training.checkpoint import Checkpoint
from eagle31rt.training.closed_form import closed_form_start
from eagle31rt.training.conversations import ConversationStore
from eagle31rt.training.documents import read_documents
from eagle31rt.training.evaluation import Acceptance
from eagle31rt.training.export import export_head
from eagle31rt.training.features import FeatureCache, FeatureSettings
from eagle31rt.training.generation import Generator
from eagle31rt.training.head import DraftHead, HeadSizes
from eagle31rt.training.locks import locked, locked_output
from eagle31rt.training.losses import Teacher
from eagle31rt.training.manifest import FORMAT, Manifest, settle_manifest, settle_prompts, target_identity
from eagle31rt.training.places import check_places
from eagle31rt.training.prompts import Messages, read_prompt_file
from eagle31rt.training.settings import DataSettings, TrainSettings, identity
from eagle31rt.training.sizes import head_sizes
from eagle31rt.training.target import TargetSizes, TargetTensors
from eagle31rt.training.trainer import Figures, Trainer
from eagle31rt.training.vocabulary import choose_vocabulary, count_tokens, coverage

_LOG_STEPS = 20


@dataclass(frozen=True)
class Source:
    """What the user gives to write conversations from, read and judged."""

    prompts: list[Messages] | None  # None: the trainer's own
    documents: list[str]

    @staticmethod
    def read(settings: DataSettings) -> Source:
        prompts = None if settings.prompts is None else read_prompt_file(settings.prompts)
        return Source(prompts, [] if settings.documents is None else read_documents(settings.documents))


def train(settings: TrainSettings, console: Console, resume: bool = False) -> Acceptance:
    """Everything from prompts to the exported directory; returns the acceptance that the engine measured.

    What is finished already (groups of conversations, captured states, optimizer steps) is taken over with `resume`.
    Whatever can be judged without work is judged before any: values, target, folders, prompts, what the folder holds.
    """
    settings.check()
    target = TargetSizes.read(settings.target)
    sizes = head_sizes(settings.head, target)
    check_places(settings.target, settings.output, settings.work, resume)
    source = Source.read(settings.data)
    manifest = run_manifest(settings, source)
    _prepare_torch(settings)
    with resource_errors(), locked(settings.work), locked_output(settings.output):
        check_places(settings.target, settings.output, settings.work, resume)  # another run may just have ended
        settle_manifest(settings.work, manifest)
        checkpoint = load_checkpoint(settings, manifest)
        features = _feature_settings(settings, target, sizes)
        store = generate_data(settings, source, target.vocab_size, features, console)
        cache = FeatureCache(settings.work / "features", store, features)
        trainer = make_trainer(settings, target, sizes, store, cache, checkpoint, manifest, console)
        with _progress(console) as progress:
            task = progress.add_task("training", total=trainer.total_steps, completed=trainer.step)

            def report(step: int, total: int, figures: Figures) -> None:
                progress.update(task, total=total, completed=step, description=_describe(figures))
                if progress.disable and not step % _LOG_STEPS:  # no terminal: a log file
                    console.print(f"step {step} of {total}: {_describe(figures)}")

            acceptance = trainer.run(report)
        export_head(settings.output, trainer.head, trainer.kept, target)
    return acceptance


def run_manifest(settings: TrainSettings, source: Source) -> Manifest:
    """What of this run may not change when it is resumed, besides the head itself. See manifest.py."""
    manifest = {"format": FORMAT, **target_identity(settings.target), "--seed": settings.loop.seed}
    if source.prompts is not None:
        manifest["source"] = "--prompts"
    elif settings.data.self_generate > 0:
        manifest["source"] = "--self-generate"
    return manifest


def load_checkpoint(settings: TrainSettings, manifest: Manifest) -> Checkpoint | None:
    path = settings.work / "checkpoint.pt"
    if not path.is_file():
        return None
    checkpoint = Checkpoint.load(path)
    checkpoint.check(identity(settings.head), manifest)
    return checkpoint


def generate_data(
    settings: TrainSettings, source: Source, vocab_size: int, features: FeatureSettings, console: Console
) -> ConversationStore:
    """Lets the target write what is missing of the conversations."""
    store = ConversationStore(settings.work / "data", vocab_size)
    data = settings.data
    check_data(store, data, features)
    if source.prompts is None and data.self_generate == 0:
        if len(store) == 0:
            raise InvalidArgumentError("there is no data: give --prompts FILE or --self-generate N")
        store.check_complete()
        return store  # a resumed run
    if source.prompts is not None:
        settle_prompts(settings.work, source.prompts)
    llm = LLM(
        settings.target,
        max_model_len=data.max_tokens,
        max_num_seqs=data.max_num_seqs,
        num_threads=settings.threads or None,
        device=settings.device,
    )
    generator = Generator(llm, data, source.prompts, source.documents)
    with _progress(console) as progress:
        task = progress.add_task("generating", total=generator.num_groups)

        def report(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)
            if done:  # a bound on the states that one group exceeds is told after that group, not after all
                features.check_room(sum(map(len, store.read(done - 1))), store.path(done - 1))

        generator.run(store, report)
    return store


def check_data(store: ConversationStore, data: DataSettings, features: FeatureSettings) -> None:
    """What an earlier run left, before anything is added to it.

    Raises CheckpointError for a group that no run has written, InvalidArgumentError for settings that it does not fit.
    """
    count = 0
    for group in range(len(store)):
        conversations, path = store.read(group), store.path(group)
        count += len(conversations)
        longest = max(map(len, conversations), default=0)
        if not any(conversation.prompt for conversation in conversations):
            advice = "remove it; --resume with the same --self-generate or --prompts makes it again"
            raise CheckpointError(f"{path} holds no prompt with an answer: {advice}")
        if longest > data.max_tokens:
            raise InvalidArgumentError(
                f"{path} holds a conversation of {longest} tokens: give --max-tokens {longest} or more"
            )
        features.check_room(sum(map(len, conversations)), path)
    if 0 < data.self_generate < count:
        raise InvalidArgumentError(
            f"--self-generate {data.self_generate} is less than the {count} conversations in {store.folder}, all of "
            f"which are trained on: give {count} or more, or another --work"
        )


def make_trainer(
    settings: TrainSettings,
    target: TargetSizes,
    sizes: HeadSizes,
    store: ConversationStore,
    features: FeatureCache,
    checkpoint: Checkpoint | None,
    manifest: Manifest,
    console: Console,
) -> Trainer:
    """A trainer at step 0, or at the step of the checkpoint."""
    tensors = TargetTensors.read(settings.target)
    kept = checkpoint.kept if checkpoint else _choose(store, sizes, target, console)
    dataset = Dataset(store, features, kept, target.vocab_size, settings.device, settings.loop.train_on_prompts)
    if dataset.num_training_tokens == 0:
        raise InvalidArgumentError(f"the conversations in {store.folder} hold nothing to train on: give more prompts")
    if not dataset.held_out_prompts(1, settings.loop.batch_tokens, settings.loop.seed):
        raise InvalidArgumentError(f"all prompts with an answer in {store.folder} are too short: give more prompts")
    torch.manual_seed(settings.loop.seed)
    head = DraftHead(sizes, tensors.embedding, settings.data.max_tokens + settings.loop.ttt_steps)
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
    trainer = Trainer(settings, target, head, teacher, dataset, kept, manifest)
    if checkpoint is not None:
        trainer.resume(checkpoint)
        done = trainer.step >= trainer.total_steps
        console.print(f"resuming after step {trainer.step}" + (": no steps are left, it is exported" if done else ""))
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
        if torch.device(settings.device).index not in (None, *range(torch.cuda.device_count())):
            raise DeviceError(f"--device {settings.device}: torch finds {torch.cuda.device_count()} CUDA devices")
    torch.use_deterministic_algorithms(True)
    if settings.threads:
        torch.set_num_threads(settings.threads)


@contextmanager
def resource_errors() -> Iterator[None]:
    """Full disks that no writer has named, and torch's way to say that memory is short, as ResourceError."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        place = error.filename or tempfile.gettempdir()
        raise ResourceError(
            f"no space left for {place}: make room, then give the same command with --resume"
        ) from error
    except (MemoryError, RuntimeError) as error:
        short = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "can't allocate memory" in str(error)
        if not short:
            raise
        advice = "lower --batch-tokens, --ttt-steps, --intermediate-size or --draft-vocab-size"
        raise ResourceError(f"not enough memory: {advice}, then give the command with --resume") from error


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _describe(figures: Figures) -> str:
    rates = " ".join(f"{rate:.2f}" for rate in figures.agreement)
    return f"loss {figures.loss[0]:.3f}, agreement {rates}" if figures.loss else "training"
