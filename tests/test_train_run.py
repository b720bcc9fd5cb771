"""`eagle31rt train` from prompts to a draft: quality, resuming bit for bit, and what goes wrong on the way."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.training import STEPS, train_arguments

torch = pytest.importorskip("torch")
from eagle31rt import LLM, SamplingParams  # noqa: E402
from eagle31rt.cli import main  # noqa: E402
from eagle31rt.training import trainer as trainer_module  # noqa: E402
from eagle31rt.training.checkpoint import Checkpoint  # noqa: E402

pytestmark = pytest.mark.dev


def weights(output: Path) -> bytes:
    return (output / "model.safetensors").read_bytes()


def copy_of_data(finished_run: Path, output: Path) -> None:
    """A work folder for `output` with the conversations of `finished` only."""
    data = finished_run.with_name(finished_run.name + ".work") / "data"
    shutil.copytree(data, output.with_name(output.name + ".work") / "data")


def log_lines(output: Path) -> list[dict[str, Any]]:
    text = output.with_name(output.name + ".work").joinpath("log.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("variant", ["eagle3", "eagle3.1"])
def test_a_head_from_scratch_is_accepted(training_target: Path, tmp_path: Path, variant: str) -> None:
    """The documented command on a tiny budget: acceptance length of at least 3 of 6 (an untrained head has 1.0)."""
    output = tmp_path / "draft"
    assert main(train_arguments(training_target, output, variant=variant, self_generate=128, epochs=4)) == 0
    last = log_lines(output)[-1]
    assert last["acceptance"]["length"] >= 3.0, last
    assert len(last["validation_agreement"]) == 5 and min(last["validation_agreement"]) > 0.6, last
    draft = {"method": "eagle3", "model": output, "num_speculative_tokens": 5}
    llm = LLM(training_target, speculative_config=draft, num_threads=1)
    plain = LLM(training_target, num_threads=1)
    params = SamplingParams(temperature=0.0, max_tokens=40)
    speculative = llm.generate("abc de", params)[0]
    assert speculative.outputs[0].token_ids == plain.generate("abc de", params)[0].outputs[0].token_ids
    assert speculative.metrics.acceptance_length > 2.0
    config = json.loads((output / "config.json").read_text())
    assert config["fc_norm"] is config["norm_output"] is (variant == "eagle3.1")


def test_same_command_same_bits(training_target: Path, finished_run: Path, tmp_path: Path) -> None:
    assert main(train_arguments(training_target, tmp_path / "again", steps=STEPS)) == 0
    assert weights(tmp_path / "again") == weights(finished_run)


def test_interrupted_at_any_step_resumes_to_the_same_bits(
    training_target: Path, finished_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after steps 1, 4 and 9; checkpoints after every step but the one that is interrupted."""
    output, checkpoint = tmp_path / "draft", tmp_path / "draft.work" / "checkpoint.pt"
    add = trainer_module.Figures.add
    for stop in (1, 4, 9):
        left = stop - (Checkpoint.load(checkpoint).step if checkpoint.exists() else 0)
        steps = iter(range(1, left + 1))

        def interrupting(self: Any, losses: Any, steps: Iterator[int] = steps, left: int = left) -> None:
            add(self, losses)
            if next(steps) == left:
                raise KeyboardInterrupt

        monkeypatch.setattr(trainer_module.Figures, "add", interrupting)
        flags = ["--resume"] if checkpoint.parent.exists() else []
        assert main(train_arguments(training_target, output, *flags, steps=STEPS, checkpoint_minutes=0)) == 130
        assert not output.exists()
    monkeypatch.setattr(trainer_module.Figures, "add", add)
    assert main(train_arguments(training_target, output, "--resume", steps=STEPS)) == 0
    assert weights(output) == weights(finished_run)


def test_killed_run_resumes_to_the_same_bits(training_target: Path, finished_run: Path, tmp_path: Path) -> None:
    output, checkpoint = tmp_path / "draft", tmp_path / "draft.work" / "checkpoint.pt"
    arguments = train_arguments(training_target, output, steps=STEPS, checkpoint_minutes=0)
    process = subprocess.Popen([sys.executable, "-m", "eagle31rt.cli", *arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not checkpoint.exists() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL, "it finished before it could be killed"
    assert main([*arguments, "--resume"]) == 0
    assert weights(output) == weights(finished_run)


def test_a_cache_too_small_for_all_states_changes_no_bit(training_target: Path, tmp_path: Path) -> None:
    """Two groups whose states never lie on disk together are extracted again and again."""
    arguments = {"steps": 60, "self_generate": 128, "max_new_tokens": 12, "max_turns": 1}
    assert main(train_arguments(training_target, tmp_path / "ample", **arguments)) == 0
    features = sorted((tmp_path / "ample.work" / "features").glob("features-*"))
    assert len(features) == 2
    gib = 1.2 * max(path.stat().st_size for path in features) / 2**30
    assert main(train_arguments(training_target, tmp_path / "small", **arguments, cache_gib=gib)) == 0
    assert len(list((tmp_path / "small.work" / "features").glob("features-*"))) == 1
    assert weights(tmp_path / "small") == weights(tmp_path / "ample")


@pytest.mark.parametrize(("rate", "minutes"), [(1e12, 0), (1e30, 5)])
def test_a_ruined_state_is_never_kept(
    training_target: Path,
    finished_run: Path,
    tmp_path: Path,
    rate: float,
    minutes: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The first update ruins the weights. What is kept is good: a resumed run ends as if that had not been."""
    output = tmp_path / "draft"
    copy_of_data(finished_run, output)
    huge = train_arguments(
        training_target, output, "--resume", steps=STEPS, learning_rate=rate, warmup_steps=0, checkpoint_minutes=minutes
    )
    assert main(huge) == 2
    message = capsys.readouterr().err
    assert "no state was saved, the data are; resume with a lower --learning-rate" in " ".join(message.split())
    assert not output.exists() and not (tmp_path / "draft.work" / "checkpoint.pt").exists()
    assert main(train_arguments(training_target, output, "--resume", steps=STEPS)) == 0
    assert weights(output) == weights(finished_run)


def test_a_ruined_state_does_not_replace_a_good_one(
    training_target: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, checkpoint = tmp_path / "draft", tmp_path / "draft.work" / "checkpoint.pt"
    shutil.copytree(finished_run.with_name("finished.work"), checkpoint.parent)
    before = checkpoint.read_bytes()
    assert main(train_arguments(training_target, output, "--resume", steps=STEPS + 1, learning_rate=1e30)) == 2
    assert f"the state after step {STEPS} is in {checkpoint}" in capsys.readouterr().err
    assert checkpoint.read_bytes() == before and not output.exists()


@pytest.mark.parametrize(
    "name",
    [
        "draft.work/data/tokens-00000.npz.partial",
        "draft.work/checkpoint.pt.partial",
        "draft.work/log.jsonl",
        "draft/model.safetensors.partial",
        "draft/config.json.partial",
    ],
)
def test_full_disk_is_told_and_resumable(
    training_target: Path, finished_run: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file that a run writes, on a disk that is full. The message names the file's own disk."""
    output, link = tmp_path / "draft", tmp_path / name
    if "data" not in name:
        copy_of_data(finished_run, output)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to("/dev/full")
    arguments = train_arguments(training_target, output, "--resume", steps=STEPS)
    assert main(arguments) == 2
    message = " ".join(capsys.readouterr().err.split())
    place = (
        link.parent if link.parent == output and "model" in name else link.with_name(link.name.removesuffix(".partial"))
    )
    assert f"no space left for {place}: make room" in message
    assert not list(tmp_path.rglob("*.partial")) and not (output / "config.json").exists()
    link.unlink(missing_ok=True)
    assert main(arguments) == 0
    assert weights(output) == weights(finished_run)


def test_a_used_work_folder_needs_resume(
    training_target: Path, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = weights(finished_run)
    assert main(train_arguments(training_target, finished_run, steps=STEPS)) == 2
    assert "give --resume" in capsys.readouterr().err
    assert weights(finished_run) == before


def test_a_checkpoint_of_another_head_is_refused(
    training_target: Path, finished_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_arguments(training_target, finished_run, "--resume", steps=STEPS, variant="eagle3")) == 2
    assert "variant = 'eagle3.1', not 'eagle3'" in capsys.readouterr().err


def test_a_damaged_checkpoint_is_refused(
    training_target: Path, finished_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "draft.work"
    work.mkdir()
    whole = finished_run.with_name("finished.work").joinpath("checkpoint.pt").read_bytes()
    (work / "checkpoint.pt").write_bytes(whole[: len(whole) // 2])
    assert main(train_arguments(training_target, tmp_path / "draft", "--resume", steps=STEPS)) == 2
    message = capsys.readouterr().err
    assert "checkpoint.pt is not a checkpoint" in message and "trains from step 0" in message
    assert "central directory" not in message, "torch's own words"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capture_layers": (1, 2, 3)}, "could be read in two ways"),
        ({"capture_layers": (2, 1, 4)}, "must ascend within 0 to 4"),
        ({"capture_layers": None}, "has no default capture layers"),
        ({"self_generate": None}, "give --prompts FILE or --self-generate N"),
        ({"self_generate": None, "prompts": "absent.jsonl"}, "there is no file absent.jsonl"),
        ({"ttt_steps": 0}, "--ttt-steps must be 1 to 16, got 0"),
        ({"chain_fraction": 1.5}, "--chain-fraction must be more than 0, at most 1"),
        ({"max_tokens": 24, "max_new_tokens": 8}, "--max-tokens 24 is too small"),
        ({"cache_gib": 1e-6}, "more than --cache-gib allows"),
        ({"device": "tpu"}, "--device must be cpu or cuda"),
    ],
)
def test_options_that_cannot_be(
    training_target: Path, tmp_path: Path, options: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(train_arguments(training_target, tmp_path / "draft", **options)) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "draft").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"num_attention_heads": None}, "is not the config of a target"),
        ({"vocab_size": 97}, "embed_tokens"),
    ],
)
def test_targets_that_cannot_be(
    training_target: Path, tmp_path: Path, change: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "target"
    shutil.copytree(training_target, other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, **change}))
    assert main(train_arguments(other, tmp_path / "draft")) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert main(train_arguments(tmp_path / "absent", tmp_path / "draft")) == 2
    assert "there is no directory" in capsys.readouterr().err


def test_data_alone_is_enough_to_resume(training_target: Path, finished_run: Path, tmp_path: Path) -> None:
    """Generated conversations carried to another work folder train there without prompts."""
    copy_of_data(finished_run, tmp_path / "draft")
    arguments = train_arguments(training_target, tmp_path / "draft", "--resume", steps=STEPS, self_generate=None)
    assert main(arguments) == 0
    assert weights(tmp_path / "draft") == weights(finished_run)


@pytest.mark.parametrize("count", [1, 3])
def test_a_handful_of_prompts_trains(
    training_target: Path, tmp_path: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several conversations one is held out; a single one is both trained on and measured."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": "abc"[: i + 1]}) for i in range(count)))
    options = {"self_generate": None, "prompts": path, "steps": 40}
    assert main(train_arguments(training_target, tmp_path / "draft", **options)) == 0
    shown = capsys.readouterr()
    assert "acceptance length" in shown.out and "step 40 of 40: loss" in shown.err
    (line,) = log_lines(tmp_path / "draft")
    assert line["acceptance"]["num_drafts"] > 0
    assert bool(line["validation_loss"]) == (count > 1)
