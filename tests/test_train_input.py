"""What `eagle31rt train` refuses before any work: values, folders, prompts; and work folders of another run."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from support.training import train_arguments, write_training_target

torch = pytest.importorskip("torch")
from eagle31rt.cli import main, make_parser  # noqa: E402
from eagle31rt.errors import InvalidArgumentError  # noqa: E402
from eagle31rt.training.command import settings_from  # noqa: E402
from eagle31rt.training.places import check_places  # noqa: E402
from eagle31rt.training.settings import DataSettings, HeadSettings, LoopSettings, TrainSettings  # noqa: E402

pytestmark = pytest.mark.dev


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_training_target(tmp_path_factory.mktemp("training") / "target")


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
    target: Path, tmp_path: Path, place: str, resume: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other, named = tmp_path / "own", tmp_path / "model", tmp_path / "named"
    shutil.copytree(target, own)
    (tmp_path / "link").symlink_to(own)
    shutil.copytree(target, other)
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
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLMEagle3"]}))
    assert "holds a draft already" in refusal(train_arguments(target, draft), capsys)


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
    target: Path,
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
    assert message in refusal(train_arguments(target, output, work=work), capsys)  # type: ignore[arg-type]
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_of_something_else_is_no_work_folder(
    target: Path, tmp_path: Path, resume: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    arguments = train_arguments(target, tmp_path / "draft", *["--resume"] * resume, work=tmp_path)
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
    target: Path, tmp_path: Path, options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal(train_arguments(target, tmp_path / "draft", **options), capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("output", "work"), [("draft", "draft.work"), (".", "here.work"), ("..", "deep.work")])
def test_the_work_folder_lies_beside_the_output(
    target: Path, tmp_path: Path, output: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "deep" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    arguments = make_parser().parse_args(train_arguments(target, Path(output)))
    settings = settings_from(arguments)
    beside = {"draft": here, ".": here.parent, "..": tmp_path}[output]
    assert settings.work.absolute() == beside / work
    check_places(target, settings.output, settings.work, resume=False)
