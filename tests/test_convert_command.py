"""`eagle31rt convert`: a whole folder or none, never the files of another model, and paths that are explained."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.checkpoints import write_target
from support.draft_formats import TARGET, SourceDraft, write_gguf, write_safeailab_bin

from eagle31rt.cli import main
from eagle31rt.convert_command import convert, new_directory
from eagle31rt.errors import CheckpointError, InvalidArgumentError


@pytest.fixture
def source(tmp_path: Path) -> SourceDraft:
    return SourceDraft(write_target(tmp_path / "target", TARGET, seed=1))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_config_of_another_model_is_kept(tmp_path: Path, source: SourceDraft) -> None:
    """The folder of a target whose weights have other names would have got the draft's config.json."""
    draft = write_safeailab_bin(tmp_path / "draft", source)
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    for given in (draft, write_gguf(tmp_path / "gguf", source, absolute=True)):
        with pytest.raises(InvalidArgumentError, match="holds files already; give a new or empty folder"):
            convert(given, other)
    assert (other / "config.json").read_text() == "{}" and names(other) == ["config.json"]


def test_what_fails_leaves_nothing(tmp_path: Path, source: SourceDraft) -> None:
    draft = write_safeailab_bin(tmp_path / "draft", source)
    pickle = draft / "pytorch_model.bin"
    pickle.write_bytes(pickle.read_bytes().replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_v9"))
    with pytest.raises((CheckpointError, NotImplementedError)):
        convert(draft, tmp_path / "out")
    assert names(tmp_path) == ["draft", "target"]
    (tmp_path / "out").mkdir()  # an empty folder may be given, and a second try may follow
    write_safeailab_bin(draft, source)
    assert convert(draft, tmp_path / "out").startswith("15 tensors")
    assert names(tmp_path / "out") == ["config.json", "model.safetensors"]
    assert names(tmp_path) == ["draft", "out", "target"]


def test_of_two_conversions_one_wins(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(OSError), new_directory(output) as second:
        with new_directory(output) as first:
            (first / "config.json").write_text("first")
        (second / "config.json").write_text("second")
    assert (output / "config.json").read_text() == "first" and names(tmp_path) == ["out"]


def test_a_pickle_is_converted_where_it_lies(tmp_path: Path, source: SourceDraft) -> None:
    draft = write_safeailab_bin(tmp_path / "draft", source)
    config = json.loads((draft / "config.json").read_text())
    convert(draft, draft)
    assert names(draft) == ["config.json", "model.safetensors", "pytorch_model.bin"]
    assert json.loads((draft / "config.json").read_text()) == config
    with pytest.raises(InvalidArgumentError, match="holds safetensors files already"):
        convert(draft, draft)


def test_a_folder_with_a_gguf_file(tmp_path: Path, source: SourceDraft) -> None:
    file = write_gguf(tmp_path / "gguf", source, absolute=True)
    convert(file.parent, tmp_path / "a")
    convert(file, tmp_path / "b")
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("input_name", "output_name", "message"),
    [
        ("nothing", "out", "there is no file or folder"),
        ("draft/pytorch_model.bin", "out", "is no GGUF file; of pytorch_model.bin give the folder"),
        ("target", "out", "holds neither pytorch_model.bin nor"),
        ("shards", "out", "it holds pytorch_model-1.bin: download the index"),
        ("draft", "target/config.json", "is a file; give a folder"),
    ],
)
def test_wrong_paths(
    input_name: str, output_name: str, message: str, tmp_path: Path, source: SourceDraft,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    write_safeailab_bin(tmp_path / "draft", source)
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "pytorch_model-1.bin").write_bytes(b"")
    arguments = ["convert", "--input", str(tmp_path / input_name), "--output", str(tmp_path / output_name)]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "out").exists()
