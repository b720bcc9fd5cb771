"""What `eagle31rt train` refuses before any work: values, folders, prompts; and work folders of another run."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.training import STEPS, train_arguments

torch = pytest.importorskip("torch")
from eagle31rt.cli import main, make_parser  # noqa: E402
from eagle31rt.errors import InvalidArgumentError, ResourceError  # noqa: E402
from eagle31rt.training import locks  # noqa: E402
from eagle31rt.training.command import settings_from  # noqa: E402
from eagle31rt.training.conversations import ASSISTANT, GIVEN, Conversation, ConversationStore  # noqa: E402
from eagle31rt.training.locks import locked_output  # noqa: E402
from eagle31rt.training.places import check_places  # noqa: E402
from eagle31rt.training.settings import DataSettings, HeadSettings, LoopSettings, TrainSettings  # noqa: E402

pytestmark = pytest.mark.dev


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that must fail."""
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


SENSELESS: list[tuple[str, Any]] = [
    ("intermediate_size", -5),
    ("intermediate_size", 0),
    ("intermediate_size", 10**12),
    ("draft_vocab_size", 2**31),
    ("epochs", float("inf")),
    ("steps", 2**31),
    ("learning_rate", float("inf")),
    ("learning_rate", float("nan")),
    ("head_learning_rate", float("inf")),
    ("weight_decay", float("nan")),
    ("weight_decay", float("inf")),
    ("weight_decay", -1.0),
    ("checkpoint_minutes", float("nan")),
    ("checkpoint_minutes", -1.0),
    ("evaluate_every", -1),
    ("cache_gib", float("inf")),
    ("cache_gib", float("nan")),
    ("seed", 2**32),
    ("threads", 1025),
]


@pytest.mark.parametrize(("name", "value"), SENSELESS)
def test_senseless_values_are_refused_by_name(name: str, value: Any) -> None:
    groups = [
        kind(**{name: value} if name in {field.name for field in fields(kind)} else {})
        for kind in (HeadSettings, LoopSettings, DataSettings)
    ]
    own = {"threads": value} if name == "threads" else {}
    settings = TrainSettings(Path("target"), Path("output"), Path("work"), *groups, **own)
    with pytest.raises(InvalidArgumentError, match=f"^--{name.replace('_', '-')} must be .*, got {value!r}$"):
        settings.check()


def test_limits_are_allowed() -> None:
    loop = LoopSettings(
        seed=2**32 - 1, weight_decay=0.0, head_learning_rate=0.0, evaluate_every=0, checkpoint_minutes=0
    )
    TrainSettings(Path("t"), Path("o"), Path("w"), HeadSettings(intermediate_size=1), loop, DataSettings()).check()


def test_the_largest_seed_makes_random_generators() -> None:
    torch.Generator().manual_seed(((2**32 - 1) << 32) + 2**31 - 1)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("place", ["target", "link", "model", "named", "work"])
def test_no_model_of_the_user_is_overwritten(
    training_target: Path, tmp_path: Path, place: str, resume: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other, named = tmp_path / "own", tmp_path / "model", tmp_path / "named"
    shutil.copytree(training_target, own)
    (tmp_path / "link").symlink_to(own)
    shutil.copytree(training_target, other)
    named.mkdir()
    shutil.copy(next(own.glob("*.safetensors")), named / "model.safetensors")
    before = contents(tmp_path)
    output = {"target": own, "link": tmp_path / "link", "model": other, "named": named, "work": tmp_path / "draft"}
    options = {"work": own} if place == "work" else {}
    message = refusal(train_arguments(own, output[place], *["--resume"] * resume, **options), capsys)
    wanted = {"target": "target's own", "link": "target's own", "work": "target's own", "model": "no EAGLE draft"}
    assert wanted.get(place, "no EAGLE draft's") in message
    assert contents(tmp_path) == before and not list(tmp_path.glob("*.work"))


def test_a_draft_is_replaced_by_a_resumed_run_only(
    training_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    assert "holds a draft already" in refusal(train_arguments(training_target, draft), capsys)


@pytest.mark.parametrize(
    ("output", "work", "message"),
    [
        ("file", None, "file is no folder"),
        ("file/draft", None, "file is no folder"),
        ("draft", "file", "--work"),
        ("draft", "draft", "are the same folder"),
        ("draft", "", "--work is empty"),
        ("", None, "--output is empty"),
        ("run/data/draft", "run", "lies in what the run keeps"),
        ("/", None, "gives no name for the work folder"),
        ("loop", None, "loop is no folder"),
    ],
)
def test_folders_that_cannot_be(
    training_target: Path,
    tmp_path: Path,
    output: str,
    work: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    assert message in refusal(train_arguments(training_target, output, work=work), capsys)  # type: ignore[arg-type]
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_no_work_folder(
    training_target: Path, tmp_path: Path, resume: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    arguments = train_arguments(training_target, tmp_path / "draft", *["--resume"] * resume, work=tmp_path)
    assert ("no run" if resume else "holds a run already") in refusal(arguments, capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capture_layers": None}, "a target of 4 layers has no default capture layers: give --capture-layers"),
        ({"capture_layers": (1, 2, 3)}, "could be read in two ways"),
        ({"capture_layers": (-1, 4)}, "must ascend within 0 to 4"),
        ({"device": "tpu"}, "--device must be cpu or cuda"),
        ({"learning_rate": "nan"}, "--learning-rate must be a finite number, more than 0, got nan"),
    ],
)
def test_options_are_judged_before_any_work(
    training_target: Path, tmp_path: Path, options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(train_arguments(training_target, tmp_path / "draft", **options), capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("output", "work"), [("draft", "draft.work"), (".", "here.work"), ("..", "deep.work")])
def test_the_work_folder_lies_beside_the_output(
    training_target: Path, tmp_path: Path, output: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "deep" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    arguments = make_parser().parse_args(train_arguments(training_target, Path(output)))
    settings = settings_from(arguments)
    beside = {"draft": here, ".": here.parent, "..": tmp_path}[output]
    assert settings.work.absolute() == beside / work
    check_places(training_target, settings.output, settings.work, resume=False)


def conversation(*roles: int) -> Conversation:
    return Conversation(np.arange(3, 3 + len(roles), dtype=np.int32), np.array(roles, np.uint8))


ANSWERED = conversation(*[GIVEN] * 6, *[ASSISTANT] * 20)


@pytest.mark.parametrize(
    "group",
    [[], [conversation(*[GIVEN] * 20)] * 3, [conversation(*[ASSISTANT] * 20)] * 3],
    ids=["empty", "all given", "answers to nothing"],
)
def test_a_group_without_a_prompt_and_its_answer_is_named(
    training_target: Path, tmp_path: Path, group: list[Conversation], capsys: pytest.CaptureFixture[str]
) -> None:
    store = ConversationStore(tmp_path / "draft.work" / "data")
    store.write(0, [ANSWERED] * 3)
    store.write(1, group)
    arguments = train_arguments(training_target, tmp_path / "draft", "--resume", self_generate=None, steps=1)
    message = refusal(arguments, capsys)
    assert f"{store.path(1)} holds no prompt with an answer: remove it; --resume with the same" in message
    assert not (tmp_path / "draft").exists() and not (tmp_path / "draft.work" / "features").exists()


def test_one_prompt_with_an_answer_in_a_group_is_enough(
    training_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is the one that is held out, wherever it stands: acceptance is measured on it."""
    store = ConversationStore(tmp_path / "draft.work" / "data")
    store.write(0, [conversation(*[GIVEN] * 20), ANSWERED, conversation(*[ASSISTANT] * 20), conversation(GIVEN)])
    arguments = train_arguments(training_target, tmp_path / "draft", "--resume", self_generate=None, steps=1)
    assert main(arguments) == 0
    (line,) = (tmp_path / "draft.work" / "log.jsonl").read_text().splitlines()
    assert json.loads(line)["acceptance"]["num_drafts"] > 0
    assert "40 training tokens in 1 groups" in capsys.readouterr().err, "the others"


def test_prompts_that_are_all_too_short_are_told(
    training_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = ConversationStore(tmp_path / "draft.work" / "data")
    store.write(0, [conversation(*[GIVEN] * 20), conversation(GIVEN, ASSISTANT)])
    arguments = train_arguments(training_target, tmp_path / "draft", "--resume", self_generate=None, steps=1)
    assert main(arguments) == 2
    wanted = f"all prompts with an answer in {store.folder} are too short: give more prompts"
    assert wanted in capsys.readouterr().err
    assert not list((tmp_path / "draft.work" / "features").glob("features-*"))


def test_fewer_conversations_than_there_are_is_refused(
    training_target: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They would all be trained on, whatever the option says. As many, or none said, goes on."""
    shutil.copytree(finished_run.with_name("finished.work"), tmp_path / "draft.work")
    arguments = [training_target, tmp_path / "draft", "--resume"]
    before = contents(tmp_path / "draft.work" / "data")
    message = refusal(train_arguments(*arguments, steps=STEPS, self_generate=63), capsys)
    assert "--self-generate 63 is less than the 64 conversations in " in message and "give 64 or more" in message
    assert contents(tmp_path / "draft.work" / "data") == before
    for count in (64, None):
        assert main(train_arguments(*arguments, steps=STEPS, self_generate=count)) == 0


def test_a_cache_too_small_is_told_after_the_first_group(
    training_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after hours of generation. A larger one goes on from there, and a run that is there is judged at once."""
    output, data = tmp_path / "draft", tmp_path / "draft.work" / "data"
    options = {"self_generate": 65, "max_new_tokens": 4, "max_turns": 1, "steps": 1}
    message = refusal(train_arguments(training_target, output, cache_gib=1e-4, **options), capsys)
    assert f"the states of one group, {data / 'tokens-00000.npz'}, take 0.0" in message
    assert "more than --cache-gib allows: give more, and --resume" in message
    assert [path.name for path in data.iterdir()] == ["tokens-00000.npz"]
    for count in (65, None):
        resumed = {**options, "self_generate": count, "cache_gib": 1e-4}
        assert refusal(train_arguments(training_target, output, "--resume", **resumed), capsys) == message
    assert [path.name for path in data.iterdir()] == ["tokens-00000.npz"]
    assert main(train_arguments(training_target, output, "--resume", **options)) == 0
    assert sorted(path.name for path in data.iterdir()) == ["tokens-00000.npz", "tokens-00001.npz"]


def test_one_run_at_a_time_writes_an_output(
    training_target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From whatever work folder, and by whatever name. The lock leaves nothing behind."""
    output, link = tmp_path / "draft", tmp_path / "link"
    link.symlink_to(output)
    for name in (output, link):
        with locked_output(output):
            message = refusal(train_arguments(training_target, name, work=tmp_path / "other"), capsys)
        assert f"writes {name}: wait for it, or give another --output" in message and "another run (process " in message
    assert not (tmp_path / "other" / "data").exists()
    assert not list(tmp_path.glob(".*"))


def test_an_output_within_the_work_folder(training_target: Path, tmp_path: Path) -> None:
    """Its lock lies in the work folder, and is no trace of an earlier run."""
    work = tmp_path / "run"
    assert main(train_arguments(training_target, work / "draft", work=work, steps=1, self_generate=8)) == 0
    assert (work / "draft" / "config.json").exists() and not list(work.glob(".*"))


def test_a_lock_that_was_removed_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its holder ended between open and flock here: another process may have made a new one since."""
    flock = locks.fcntl.flock

    def late(file: Any, operation: int) -> None:
        (tmp_path / ".draft.lock").unlink()
        flock(file, operation)

    monkeypatch.setattr(locks.fcntl, "flock", late)
    with (
        pytest.raises(ResourceError, match="has just ended: give the command again"),
        locked_output(tmp_path / "draft"),
    ):
        pass
