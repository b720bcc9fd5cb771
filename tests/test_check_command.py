"""`eagle31rt check` on the command line: wrong options and names end with status 2 and what to give instead."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from support.broken_pairs import Pair, config, targets_config, write_pair
from support.checkpoints import write_target
from support.draft_formats import TARGET as FORMAT_TARGET
from support.draft_formats import SourceDraft, write_gguf

from eagle31rt import LLM
from eagle31rt.cli import main
from eagle31rt.doctor.report import examine
from eagle31rt.errors import InvalidArgumentError
from eagle31rt.sampling_params import MAX_SPECULATIVE_TOKENS


def run(pair: Pair, *options: str) -> int:
    return main(["check", pair.target.path, pair.draft.path, *options])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-model-len", "2147483648"], "--max-model-len is 2147483648; give 1 to 2147483647"),
        (["--max-model-len", "0"], "--max-model-len is 0; give 1 to"),
        (["--num-speculative-tokens", "999"], f"--num-speculative-tokens is 999; give 0 to {MAX_SPECULATIVE_TOKENS}"),
        (["--num-speculative-tokens", "-1"], "--num-speculative-tokens is -1; give 0 to"),
        (["--capture-layers", "2", "99999999999"], "--capture-layers is 99999999999; give 0 to"),
    ],
)
def test_numbers_that_no_pair_could_have(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(write_pair(tmp_path), *options) == 2
    assert message in capsys.readouterr().err


def test_a_folder_whose_name_is_no_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = write_pair(tmp_path)
    assert main(["check", str(tmp_path / "t\udcff"), pair.draft.path]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_one_fault_is_one_finding(tmp_path: Path) -> None:
    """A wrong number is not also a whole model, and a wrong vocabulary not also a wrong draft vocabulary."""
    for changes, rule in (
        ({"num_hidden_layers": 0}, "layer-sizes"),
        ({"num_hidden_layers": "many"}, "layer-sizes"),
        ({"vocab_size": 0}, "vocabulary"),
    ):
        pair = write_pair(tmp_path)
        config(**changes)(pair)
        refused = examine(pair.target.directory, pair.draft.directory).with_status("refused")
        assert [one.rule for one in refused] == [rule], changes
        shutil.rmtree(tmp_path / "draft")


def test_the_targets_config_is_named(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    targets_config(hidden_act="relu")(pair)
    (refused,) = examine(pair.target.directory, pair.draft.directory).with_status("refused")
    assert '/target/config.json: "hidden_act" is "relu"' in refused.message


def test_no_length_is_offered_that_is_refused_again(tmp_path: Path) -> None:
    pair = write_pair(tmp_path)
    targets_config(max_position_embeddings=1)(pair)
    report = examine(pair.target.directory, pair.draft.directory)
    (found,) = report.with_status("refused")
    assert found.rule == "max-model-len" and not report.with_status("fixable")


def test_a_window_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pair = write_pair(tmp_path)
    config(layer_types=["sliding_attention"], sliding_window=64)(pair)
    assert run(pair, "--json") == 0
    resolved = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["resolved"]}
    assert resolved["sliding_windows"] == "[64]"


def test_the_file_of_a_converted_draft_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLE31RT_CACHE", str(tmp_path / "cache"))
    target = write_target(tmp_path / "target", FORMAT_TARGET, seed=1)
    file = write_gguf(tmp_path / "gguf", SourceDraft(target), absolute=True)
    assert main(["check", target.path, str(file), "--json"]) == 0
    resolved = {one["name"]: one["value"] for one in json.loads(capsys.readouterr().out)["resolved"]}
    assert resolved["converted_from"] == str(file)
    file.write_bytes(file.read_bytes()[:100])
    assert main(["check", target.path, str(file), "--json"]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and "draft.gguf is damaged" in shown.err and shown.err.count("\n") == 1


def test_layers_beyond_an_int32_are_refused_where_a_model_is_loaded(tmp_path: Path) -> None:
    speculation = {"model": "owner/name", "num_speculative_tokens": 2, "capture_layers": [1, 2**31]}
    with pytest.raises(InvalidArgumentError, match="must be a list of 1 to 8 layer ids"):
        LLM(tmp_path, speculative_config=speculation)
