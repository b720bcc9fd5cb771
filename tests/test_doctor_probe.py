"""`eagle31rt check`: its output and exit status, and the probe's figures and faults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import DraftSpec, write_draft
from support.successor import write_successor_draft, write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt.cli import main
from eagle31rt.doctor.probe import (
    Alternative,
    Fault,
    ProbeResult,
    Settings,
    alternatives,
    chance_level,
    conditional_rates,
    find_faults,
    judge,
)
from eagle31rt.outputs import RequestMetrics

KEYS = ["schema_version", "target", "draft", "loads", "findings", "resolved", "probe"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("probe")
    target = write_successor_target(folder / "target")
    write_tiny_tokenizer(target.directory)
    random = write_draft(folder / "random", target, DraftSpec(draft_vocab_size=88))
    good = write_successor_draft(folder / "good", target)
    return {"target": target.path, "good": good.path, "random": random.path}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(["check", *arguments])
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def probe(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, _ = run(capsys, *arguments, "--probe", "--json", "--threads", "1")
    assert status == 0
    report = json.loads(out)
    assert list(report) == KEYS and report["loads"]
    result: dict[str, Any] = report["probe"]
    return result


def test_json_and_exit_status(capsys: pytest.CaptureFixture[str], folders: dict[str, str]) -> None:
    status, out, err = run(capsys, folders["target"], folders["good"], "--json")
    report = json.loads(out)
    assert (status, err, list(report), report["schema_version"]) == (0, "", KEYS, 1)
    assert report["loads"] is True and report["probe"] is None
    assert list(report["findings"][0]) == ["rule", "status", "message", "fix", "error", "options"]
    assert list(report["resolved"][0]) == ["name", "value", "origin"]
    status, out, _ = run(capsys, folders["target"], folders["target"], "--json", "--probe")
    report = json.loads(out)
    assert (status, report["loads"], report["probe"]) == (1, False, None)  # nothing is loaded that would be refused
    assert run(capsys, folders["target"], "no/where at all")[0] == 2
    status, _, err = run(capsys, folders["target"], folders["good"], "--prompts", "f.jsonl")
    assert status == 2 and "--prompts needs --probe" in err


def test_text_names_rules_options_and_layers(capsys: pytest.CaptureFixture[str], folders: dict[str, str]) -> None:
    status, out, _ = run(capsys, folders["target"], folders["good"])
    assert status == 0 and "The draft loads for this target." in out
    assert "capture_layers" in out and "[1,2,4]  <- id equal to the number of layers" in out
    status, out, _ = run(capsys, folders["target"], folders["good"], "--max-model-len", "9999")
    assert status == 1 and "The draft is refused: max-model-len." in out
    assert "max_model_len is 9999" in out and "pass max_model_len=512" in out
    status, out, _ = run(capsys, folders["target"], folders["target"])
    assert status == 1 and "draft-is-target" in out and "skipped" in out


def test_probe_of_a_good_draft(capsys: pytest.CaptureFixture[str], folders: dict[str, str]) -> None:
    result = probe(capsys, folders["target"], folders["good"])
    assert result["faults"] == [] and result["alternatives"] == []
    assert result["num_prompts"] == 8 and result["num_output_tokens"] > 300 and result["num_drafts"] > 100
    accepted, conditional = result["acceptance_per_position"], result["conditional_per_position"]
    assert result["acceptance_length"] == pytest.approx(1 + sum(accepted))
    assert accepted[1] == pytest.approx(conditional[0] * conditional[1]) and conditional[0] > 0.5
    assert 1 / 96 <= result["chance"] < 0.2


def test_probe_finds_the_wrong_feedback(capsys: pytest.CaptureFixture[str], folders: dict[str, str]) -> None:
    """The draft was made for the normed state."""
    result = probe(capsys, folders["target"], folders["good"], "--feedback", "pre")
    assert {fault["kind"] for fault in result["faults"]} == {"feedback"}
    assert "measured: with feedback=post" in result["faults"][0]["message"]
    (other,) = result["alternatives"]
    assert other["feedback"] == "post" and other["acceptance_length"] > 1.15 * result["acceptance_length"]


def test_probe_of_a_random_draft(capsys: pytest.CaptureFixture[str], folders: dict[str, str]) -> None:
    status, out, err = run(capsys, folders["target"], folders["random"], "--probe", "--threads", "1")
    assert status == 0 and "no better than chance" in out
    assert "layer-ids: " not in out  # one layer off was measured, and is no better
    assert err.count("probing with") == 2  # one earlier; one later would be past the last layer
    assert "with capture_layers=[0, 1, 3], feedback=pre" in out


def test_prompts_of_a_file(capsys: pytest.CaptureFixture[str], folders: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"abc"\n{"prompt_token_ids": [5, 6]}\n')
    more = ["--prompts", str(file), "--num-speculative-tokens", "2", "--max-tokens", "9"]
    result = probe(capsys, folders["target"], folders["good"], *more)
    assert (result["num_prompts"], len(result["acceptance_per_position"])) == (2, 2)
    assert result["num_output_tokens"] <= 18
    assert result["faults"][0]["message"].startswith(f"only {result['num_drafts']} drafts were verified")


# ---------------------------------------------------------------- figures and faults


def result_of(*conditional: float | None, chance: float = 0.05, num_drafts: int = 1000) -> ProbeResult:
    return ProbeResult(8, 500, len(conditional), num_drafts, 1.0, [], list(conditional), chance)


@pytest.mark.parametrize(
    ("result", "feedback", "rules"),
    [
        (result_of(0.7, 0.68, 0.66), "pre", []),
        (result_of(0.4, 0.25, 0.2), "pre", []),
        (result_of(0.7, 0.41, 0.4), "pre", ["feedback"]),
        (result_of(0.39, 0.35), "pre", ["weak"]),
        (result_of(0.25, 0.25), "pre", ["weak"]),
        (result_of(0.24, 0.23), "pre", ["layer-ids", "switches"]),
        (result_of(0.1, 0.05, chance=0.05), "pre", ["layer-ids", "embedding", "feedback"]),
        (result_of(0.01, 0.0, chance=0.05), "pre", ["layer-ids", "embedding"]),  # 10 drafts reach position 1
        (result_of(0.0, None), "pre", ["layer-ids", "embedding"]),
        (result_of(0.7, 0.1, num_drafts=29), "pre", ["probe"]),
        (result_of(None), "pre", ["probe"]),
    ],
)
def test_faults(result: ProbeResult, feedback: str, rules: list[str]) -> None:
    assert [fault.kind for fault in find_faults(result, feedback)] == rules


def test_the_other_feedback_is_advised() -> None:
    for used, other in (("pre", "post"), ("post", "pre")):
        (fault,) = find_faults(result_of(0.7, 0.2), used)
        assert fault.message.endswith(f"try feedback={other}") and "0.70 at position 0 to 0.20" in fault.message


def test_what_was_measured_decides() -> None:
    settings = Settings((2, 4, 5), "pre")
    guesses = [Fault("layer-ids", "guess"), Fault("switches", "guess"), Fault("feedback", "guess")]

    def judged(*measured: tuple[list[int], str, float]) -> list[str]:
        result = result_of(0.2, 0.1)
        result.acceptance_length, result.faults = 2.0, list(guesses)
        result.alternatives = [Alternative(layers, feedback, length, []) for layers, feedback, length in measured]
        return [f"{fault.kind}: {fault.message}" for fault in judge(result, settings)]

    assert judged() == ["layer-ids: guess", "switches: guess", "feedback: guess"]
    later, earlier, other = ([3, 5, 6], "pre"), ([1, 3, 4], "pre"), ([2, 4, 5], "post")
    assert judged((*later, 2.1), (*earlier, 2.3), (*other, 2.3)) == ["switches: guess"]
    best, *rest = judged((*later, 2.5), (*earlier, 2.4), (*other, 1.0))
    assert "with capture_layers=[3, 5, 6] the mean acceptance length is 2.50 instead of 2.00" in best
    assert rest == ["switches: guess"]


def test_alternatives_stay_within_the_target() -> None:
    layers, feedback = [Fault("layer-ids", "")], [Fault("feedback", "")]
    inner = Settings((2, 4, 5), "pre")
    assert alternatives(inner, layers, 8) == [Settings((3, 5, 6), "pre"), Settings((1, 3, 4), "pre")]
    assert alternatives(Settings((0, 4, 8), "pre"), layers, 8) == []
    assert alternatives(inner, feedback, 8) == [Settings((2, 4, 5), "post")]
    assert len(alternatives(inner, layers + feedback, 8)) == 3 and alternatives(inner, [], 8) == []


def test_rates() -> None:
    metrics = RequestMetrics(10, 30, 11, [8, 3, 0])
    assert conditional_rates(metrics) == [0.8, 0.375, 0.0]
    assert conditional_rates(RequestMetrics(4, 12, 0, [0, 0, 0])) == [0.0, None, None]
    assert chance_level([[1, 2, 1], [1]]) == 0.75 and chance_level([[]]) == 0.0
