"""Work folders of `eagle31rt train`: whose they are, what may change on --resume, and what of the user's they hold."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.training import STEPS, train_arguments

torch = pytest.importorskip("torch")
from eagle31rt.cli import main  # noqa: E402
from eagle31rt.errors import ResourceError  # noqa: E402
from eagle31rt.training import export as export_module  # noqa: E402
from eagle31rt.training import trainer as trainer_module  # noqa: E402
from eagle31rt.training.checkpoint import Checkpoint  # noqa: E402
from eagle31rt.training.files import safetensors_header  # noqa: E402
from eagle31rt.training.locks import locked  # noqa: E402
from eagle31rt.training.manifest import target_identity  # noqa: E402
from eagle31rt.training.run import resource_errors  # noqa: E402

pytestmark = pytest.mark.dev


@pytest.fixture
def draft(finished_run: Path, tmp_path: Path) -> Path:
    """An output whose work folder is a copy of the finished one."""
    shutil.copytree(finished_run.with_name("finished.work"), tmp_path / "draft.work")
    return tmp_path / "draft"


def work_of(output: Path) -> Path:
    return output.with_name(output.name + ".work")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(output: Path) -> bytes:
    return (output / "model.safetensors").read_bytes()


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that must fail before it prints or does anything."""
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def fine_tuned(training_target: Path, folder: Path, name: str) -> Path:
    """The target with another value in the middle of one tensor."""
    shutil.copytree(training_target, folder)
    (path,) = folder.glob("*.safetensors")
    header, start = safetensors_header(path)
    content = bytearray(path.read_bytes())
    content[start + header[name]["data_offsets"][0] + 1] ^= 1
    path.write_bytes(content)
    return folder


def without_manifest(work: Path) -> None:
    """What an earlier version left."""
    (work / "manifest.json").unlink()
    checkpoint = Checkpoint.load(work / "checkpoint.pt").__dict__
    del checkpoint["manifest"]
    torch.save({"format": 1, **checkpoint}, work / "checkpoint.pt")


@pytest.mark.parametrize("place", ["folder", "checkpoint"])
def test_a_fine_tune_of_the_same_shapes_is_another_target(
    training_target: Path, draft: Path, tmp_path: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = fine_tuned(training_target, tmp_path / "other", "model.layers.2.mlp.up_proj.weight")
    work = work_of(draft)
    if place == "checkpoint":
        (work / "manifest.json").unlink()
    before = {name: data for name, data in contents(work).items() if name not in ("lock", "manifest.json")}
    message = refused(train_arguments(other, draft, "--resume", steps=STEPS + 1), capsys)
    name = next(other.glob("*.safetensors")).name
    who = "the checkpoint" if place == "checkpoint" else str(work)
    assert f"{who} was made for another target ({name} differs): give the same, or another --work" in message
    after = contents(work)
    assert {name: after[name] for name in before} == before


def test_a_target_is_the_same_wherever_it_lies(
    training_target: Path, finished_run: Path, draft: Path, tmp_path: Path
) -> None:
    shutil.copytree(training_target, tmp_path / "moved")
    assert target_identity(tmp_path / "moved") == target_identity(training_target)
    states = work_of(draft) / "features" / "features-00000.safetensors"
    inode = states.stat().st_ino
    assert main(train_arguments(tmp_path / "moved", draft, "--resume", steps=STEPS)) == 0
    assert weights(draft) == weights(finished_run) and states.stat().st_ino == inode, "states are not made again"


def test_a_run_of_an_earlier_version_goes_on_and_is_recorded(
    training_target: Path, finished_run: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without_manifest(work_of(draft))
    assert main(train_arguments(training_target, draft, "--resume", steps=STEPS)) == 0
    assert weights(draft) == weights(finished_run)
    recorded = json.loads((work_of(draft) / "manifest.json").read_text())
    assert recorded.items() >= target_identity(training_target).items()
    capsys.readouterr()
    assert "--seed = 0, not 1" in refused(train_arguments(training_target, draft, "--resume", seed=1), capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": 1}, "was made with --seed = 0, not 1"),
        ({"draft_vocab_size": 60}, "the checkpoint was made with draft_vocab_size = 80, not 60"),
        ({"intermediate_size": 32}, "the checkpoint was made with intermediate_size = None, not 32"),
        ({"capture_layers": (0, 1, 4)}, "the checkpoint was made with capture_layers = [1, 2, 4], not [0, 1, 4]"),
        ({"start": "random"}, "the checkpoint was made with start = 'closed-form', not 'random'"),
        ({"self_generate": None, "prompts": "prompts.jsonl"}, "source = '--self-generate', not '--prompts'"),
    ],
)
def test_what_may_not_change_is_named(
    training_target: Path,
    draft: Path,
    options: dict[str, Any],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(draft.parent)
    Path("prompts.jsonl").write_text('"abc"')
    assert message in refused(train_arguments(training_target, draft, "--resume", steps=STEPS, **options), capsys)


def test_rates_may_change_and_do(training_target: Path, draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """lm_head is frozen, and thawed again; weight decay is the one of the command."""
    groups: list[tuple[float, float]] = []
    init = trainer_module.Trainer.run

    def watched(self: Any, report: Callable[..., None]) -> Any:
        groups[:] = [(group["factor"], group["weight_decay"]) for group in self.optimizer.param_groups]
        return init(self, report)

    monkeypatch.setattr(trainer_module.Trainer, "run", watched)
    heads = []
    for steps, rate in ((STEPS + 2, 0.0), (STEPS + 4, 0.5)):
        options = {"steps": steps, "head_learning_rate": rate, "weight_decay": 0.125}
        before = Checkpoint.load(work_of(draft) / "checkpoint.pt").head
        assert main(train_arguments(training_target, draft, "--resume", **options)) == 0
        assert groups == [(1.0, 0.125), (rate, 0.125)]
        after = Checkpoint.load(work_of(draft) / "checkpoint.pt").head
        assert not torch.equal(after["fc.weight"], before["fc.weight"])
        heads.append(torch.equal(after["lm_head.weight"], before["lm_head.weight"]))
    assert heads == [True, False]


def test_a_frozen_head_of_an_earlier_version_goes_on(training_target: Path, finished_run: Path, tmp_path: Path) -> None:
    """Its optimizer had one group."""
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    for output, all_steps in ((whole, (6,)), (halves, (3, 6))):
        shutil.copytree(work_of(finished_run) / "data", work_of(output) / "data")
        for steps in all_steps:
            options = {"head_learning_rate": 0.0, "learning_rate": 1e-3, "steps": steps, "decay_fraction": 1e-6}
            assert main(train_arguments(training_target, output, "--resume", **options)) == 0
            checkpoint = Checkpoint.load(work_of(output) / "checkpoint.pt")
            del checkpoint.optimizer["param_groups"][1]
            checkpoint.save(work_of(output) / "checkpoint.pt")
    assert weights(whole) == weights(halves)


def test_one_run_at_a_time(training_target: Path, draft: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = contents(work_of(draft))
    with locked(work_of(draft)):
        message = refused(train_arguments(training_target, draft, "--resume", steps=STEPS), capsys)
    assert "another run (process " in message and "give another --work" in message
    after = contents(work_of(draft))
    assert {**after, "lock": b""} == {**before, "lock": b""}
    assert main(train_arguments(training_target, draft, "--resume", steps=STEPS)) == 0


def test_files_of_the_user_stay(training_target: Path, draft: Path) -> None:
    kept = [work_of(draft) / "evaluation" / "model.safetensors", work_of(draft) / "notes.partial"]
    for path in kept:
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    (work_of(draft) / ".evaluation-killed").mkdir()
    assert main(train_arguments(training_target, draft, "--resume", steps=STEPS)) == 0
    assert [path.read_text() for path in kept] == ["mine", "mine"]
    assert not list(work_of(draft).glob(".evaluation-*"))


def test_prompts_may_be_appended_only(
    training_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, draft = tmp_path / "prompts.jsonl", tmp_path / "draft"
    arguments = train_arguments(
        training_target, draft, "--resume", self_generate=None, prompts=path, steps=2, max_turns=1
    )
    for prompts, passes in (("abc", True), ("abcde", True), ("axcde", False), ("abcd", False)):
        path.write_text("\n".join(json.dumps(prompt) for prompt in prompts))
        assert main(arguments) == (0 if passes else 2)
    assert "the first 5 are no longer those that" in capsys.readouterr().err


def test_a_missing_group_is_told_and_made_again(
    training_target: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "draft.work" / "data"
    shutil.copytree(work_of(finished_run) / "data", data)
    group = (data / "tokens-00000.npz").read_bytes()
    (data / "tokens-00000.npz").rename(data / "tokens-00001.npz")
    shutil.copy(data / "tokens-00001.npz", data / "tokens-00002.npz")
    shutil.copy(data / "tokens-00001.npz", data / "tokens-00000.npz")
    (data / "tokens-00001.npz").unlink()
    arguments = train_arguments(training_target, tmp_path / "draft", "--resume", steps=2, self_generate=None)
    assert "tokens-00001.npz is missing: give --self-generate" in refused(arguments, capsys)
    assert (data / "tokens-00000.npz").read_bytes() == group


def test_a_disk_that_fills_within_a_checkpoint(tmp_path: Path) -> None:
    """torch then reports a position in the file, not the disk. Here the system's bound on the size of a file."""
    path = tmp_path / "checkpoint.pt"
    Checkpoint(1, {}, torch.zeros(3), {}, {}).save(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    larger = Checkpoint(2, {}, torch.zeros(50_000), {}, {})
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(ResourceError, match=f"no space left for {path}: make room"):
            larger.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert Checkpoint.load(path).step == 1 and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")]
)
def test_too_little_memory_is_told(error: Exception) -> None:
    with pytest.raises(ResourceError, match="not enough memory: lower --batch-tokens"), resource_errors():
        raise error
    with pytest.raises(RuntimeError, match="another"), resource_errors():
        raise RuntimeError("another")


def test_data_longer_than_max_tokens_is_named(
    training_target: Path, draft: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(work_of(draft) / "features")
    message = refused(train_arguments(training_target, draft, "--resume", steps=STEPS + 1, max_tokens=20), capsys)
    assert "tokens-00000.npz holds a conversation of " in message and "give --max-tokens " in message


def test_weights_without_a_config_are_no_place_for_a_new_run(
    training_target: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "draft").mkdir()
    shutil.copy(finished_run / "model.safetensors", tmp_path / "draft")
    assert "holds a draft already" in refused(train_arguments(training_target, tmp_path / "draft"), capsys)
    assert weights(tmp_path / "draft") == weights(finished_run)


def test_a_kill_within_the_export_leaves_no_config(
    training_target: Path, finished_run: Path, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(finished_run, draft)

    save = export_module.save_safetensors

    def killed(path: Path, tensors: Any) -> None:
        if path.parent == draft:  # not what is written to be evaluated
            raise KeyboardInterrupt
        save(path, tensors)

    monkeypatch.setattr(export_module, "save_safetensors", killed)
    main(train_arguments(training_target, draft, "--resume", steps=STEPS))
    assert not (draft / "config.json").exists()


@pytest.mark.parametrize("name", ["manifest.json", "log.jsonl", "data"])
def test_names_of_a_run_are_none_by_themselves(
    training_target: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "draft.work"
    (work / "data").mkdir(parents=True)
    (work / "data" / "mine.csv").write_text("1,2")
    if name != "data":
        (work / name).write_text('{"name": "my web app"}\n')
    before = contents(work)
    message = refused(train_arguments(training_target, tmp_path / "draft", "--resume"), capsys)
    assert f"--work {work} holds " in message and "and no run: give another folder" in message
    assert contents(work) == before


@pytest.mark.parametrize("change", ["template", "end of a tensor"])
def test_other_changes_of_a_target_are_seen(training_target: Path, tmp_path: Path, change: str) -> None:
    other = tmp_path / "other"
    shutil.copytree(training_target, other)
    if change == "template":
        (other / "chat_template.jinja").write_text("{{ messages }}")
    else:
        (path,) = other.glob("*.safetensors")
        header, start = safetensors_header(path)
        content = bytearray(path.read_bytes())
        last = start + header["model.embed_tokens.weight"]["data_offsets"][1] - 1
        content[last] ^= 1
        path.write_bytes(content)
    assert target_identity(other) != target_identity(training_target)
