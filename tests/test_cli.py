"""The command line: what it prints, its JSON lines, and errors in one line with status 2."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.successor import write_successor_draft, write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt import LLM, SamplingParams, __version__, commands
from eagle31rt.cli import main, make_parser
from eagle31rt.demo_model import DemoPair
from eagle31rt.errors import InvalidArgumentError

METRIC_KEYS = ["num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_length", "acceptance_per_position"]
DEMO_KEYS = ["identical", "speed_up", "acceptance_length", "acceptance_per_position", "plain_tokens_per_second"]
DEMO_KEYS += ["speculative_tokens_per_second", "num_speculative_tokens"]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("pair")
    target = write_successor_target(folder / "target")
    write_tiny_tokenizer(target.directory)
    return target.path, write_successor_draft(folder / "draft", target).path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(list(arguments))
    except SystemExit as exit_:  # argparse
        status = int(exit_.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_generate_explains_its_steps(capsys: pytest.CaptureFixture[str], pair: tuple[str, str]) -> None:
    common = ["--model", pair[0], "--prompt", "abc", "--max-tokens", "9", "--json", "--threads", "1", "--explain"]
    status, _, err = run(capsys, "generate", *common, "--draft", pair[1], "--num-speculative-tokens", "2")
    lines = err.splitlines()
    assert status == 0 and len(lines) >= 4
    assert lines[0].startswith("step 1: prompts; 1 running; ms: draft ")
    assert lines[1].startswith("step 2: fixed; ")
    assert all(float(part.split()[-1]) >= 0 for part in lines[1].split("ms: ")[1].split(", "))


def test_generate_with_a_policy(capsys: pytest.CaptureFixture[str], pair: tuple[str, str]) -> None:
    common = ["--model", pair[0], "--prompt", "abc", "--max-tokens", "40", "--json", "--threads", "1"]
    drafted = [*common, "--draft", pair[1], "--policy", "auto", "--explain"]
    status, out, err = run(capsys, "generate", *drafted)
    reasons = {line.split(": ")[1].split(";")[0] for line in err.splitlines()}
    assert status == 0 and reasons & {"plain", "probe", "best"} and "fixed" not in reasons
    expected = run(capsys, "generate", *common)[1]
    assert json_lines(out)[0]["token_ids"] == json_lines(expected)[0]["token_ids"]
    status, _, err = run(capsys, "generate", *common, "--policy", "auto")
    assert status == 2 and "--policy needs --draft" in err


def test_generate_json(capsys: pytest.CaptureFixture[str], pair: tuple[str, str]) -> None:
    common = ["--model", pair[0], "--prompt", "abc", "--prompt", "x y", "--max-tokens", "9", "--json", "--threads", "1"]
    status, out, err = run(capsys, "generate", *common, "--draft", pair[1], "--num-speculative-tokens", "2")
    lines = json_lines(out)
    assert (status, err, len(lines)) == (0, "", 2)
    for line in lines:
        assert list(line) == ["token_ids", "text", "finish_reason", "metrics"]
        assert list(line["metrics"]) == METRIC_KEYS
        assert line["metrics"]["num_drafts"] > 0 and len(line["metrics"]["acceptance_per_position"]) == 2
        assert (len(line["token_ids"]), line["finish_reason"]) == (9, "length")
    expected = LLM(pair[0], num_threads=1).generate(["abc", "x y"], SamplingParams(temperature=0.0, max_tokens=9))
    assert [line["token_ids"] for line in lines] == [output.outputs[0].token_ids for output in expected]
    assert [line["text"] for line in lines] == [output.outputs[0].text for output in expected]
    status, out, _ = run(capsys, "generate", *common)
    assert [line["token_ids"] for line in json_lines(out)] == [line["token_ids"] for line in lines]
    assert json_lines(out)[0]["metrics"]["acceptance_length"] == 1.0


def test_generate_streams_one_prompt_and_lists_several(
    capsys: pytest.CaptureFixture[str], pair: tuple[str, str]
) -> None:
    arguments = ["generate", "--model", pair[0], "--max-tokens", "9", "--prompt", "abc"]
    text = LLM(pair[0]).generate("abc", SamplingParams(temperature=0.0, max_tokens=9))[0].outputs[0].text
    assert run(capsys, *arguments)[:2] == (0, text + "\n")
    status, out, _ = run(capsys, *arguments, "--prompt", "x")
    assert status == 0 and f"> abc\n{text}\n\n> x\n" in out


def test_sampling_options_reach_the_engine(capsys: pytest.CaptureFixture[str], pair: tuple[str, str]) -> None:
    options = {"temperature": 1.3, "top_k": 7, "top_p": 0.9, "min_p": 0.01, "seed": 11, "max_tokens": 20}
    flags = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    _, out, _ = run(capsys, "generate", "--model", pair[0], "--prompt", "abc", "--json", *flags)
    expected = LLM(pair[0]).generate("abc", SamplingParams(**options))  # type: ignore[arg-type]
    assert json_lines(out)[0]["token_ids"] == expected[0].outputs[0].token_ids


def test_all_sampling_options(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object"}')
    words = "--repetition-penalty 1.5 --frequency-penalty 0.5 --presence-penalty -1 --min-tokens 2 --ignore-eos"
    words += " --logprobs 3 --json --stop a --stop b"

    def params(*more: str) -> SamplingParams:
        arguments = ["generate", "--model", "m", "--prompt", "p", *words.split(), *more]
        return commands._sampling_params(make_parser().parse_args(arguments))

    expected: dict[str, Any] = {"temperature": 0.0, "max_tokens": 128, "repetition_penalty": 1.5, "logprobs": 3}
    expected |= {"frequency_penalty": 0.5, "presence_penalty": -1.0, "min_tokens": 2, "ignore_eos": True}
    expected |= {"stop": ["a", "b"]}
    assert params() == SamplingParams(**expected)
    assert params("--regex", "[a-z]+") == SamplingParams(**expected, structured_outputs={"regex": "[a-z]+"})
    from_file = params("--json-schema", str(schema))
    assert from_file == SamplingParams(**expected, structured_outputs={"json": '{"type": "object"}'})
    schema.write_bytes(b"\xff")
    with pytest.raises(InvalidArgumentError, match="not valid UTF-8"):
        params("--json-schema", str(schema))
    without_json = make_parser().parse_args(["generate", "--model", "m", "--prompt", "p", "--logprobs", "1"])
    with pytest.raises(InvalidArgumentError, match="--logprobs needs --json"):
        commands._sampling_params(without_json)


def test_prompt_files_and_the_chat_template(
    capsys: pytest.CaptureFixture[str], pair: tuple[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('"abc"\n\n{"prompt": "abc"}\n{"prompt_token_ids": [5, 6]}\n')
    arguments = ["generate", "--model", pair[0], "--max-tokens", "4", "--json", "--prompt-file", str(file)]
    status, out, _ = run(capsys, *arguments)
    lines = json_lines(out)
    assert status == 0 and len(lines) == 3
    assert lines[0] == lines[1] != lines[2]
    file.write_text('{"prompt": "abc", "max_tokens": 3}\n')
    status, _, err = run(capsys, *arguments)
    assert status == 2 and "line 1: unknown key 'max_tokens'" in err
    file.write_text('"ab"\n')
    _, out, _ = run(capsys, *arguments, "--chat")
    chat = LLM(pair[0]).chat([{"role": "user", "content": "ab"}], SamplingParams(temperature=0.0, max_tokens=4))
    assert json_lines(out)[0]["token_ids"] == chat[0].outputs[0].token_ids


def test_chat_keeps_its_turns(
    capsys: pytest.CaptureFixture[str], pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["chat", "--model", pair[0], "--draft", pair[1], "--max-tokens", "6", "--system", "s"]
    status, out, _ = run(capsys, *arguments, "--json", "--prompt", "a", "--prompt", "b")
    lines = json_lines(out)
    assert status == 0 and len(lines) == 2 and list(lines[0]["metrics"]) == METRIC_KEYS
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    messages += [{"role": "assistant", "content": lines[0]["text"]}, {"role": "user", "content": "b"}]
    second = LLM(pair[0]).chat(messages, SamplingParams(temperature=0.0, max_tokens=6))[0].outputs[0]
    assert lines[1]["token_ids"] == second.token_ids
    monkeypatch.setattr(sys, "stdin", io.StringIO("a\n\nb"))
    assert run(capsys, *arguments)[:2] == (0, f"{lines[0]['text']}\n{lines[1]['text']}\n")


def test_env(capsys: pytest.CaptureFixture[str], empty_cache: Path) -> None:
    status, out, _ = run(capsys, "env", "--json")
    facts = json.loads(out)
    assert status == 0 and facts["version"] == __version__ and facts["cache_folder"] == str(empty_cache)
    assert facts["instruction_set"] in facts["available_instruction_sets"]
    assert facts["threads"] >= 1 and facts["environment"]["EAGLE31RT_CACHE"] == str(empty_cache)
    status, out, _ = run(capsys, "env")
    for word in (__version__, facts["instruction_set"], str(empty_cache), "EAGLE31RT_CACHE", "EAGLE31RT_CPU_ISA"):
        assert word in out


def test_every_environment_variable_is_listed() -> None:
    """Code that reads a variable which `env` does not show is hidden configuration."""
    import re

    from eagle31rt.environment import ENVIRONMENT_VARIABLES

    root = Path(__file__).parent.parent
    files = [*root.glob("csrc/**/*.cpp"), *root.glob("csrc/**/*.h"), *root.glob("python/**/*.py")]
    pattern = re.compile(r"""(?:getenv\(|environ\.get\(|environ\[)\s*["'](\w+)["']""")
    read = {name for file in files for name in pattern.findall(file.read_text())}
    assert read <= set(ENVIRONMENT_VARIABLES) and "EAGLE31RT_CACHE" in read


def test_help_lists_what_exists(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--help")
    assert status == 0 and all(name in out for name in ("demo", "generate", "chat", "serve", "env"))
    assert " check " in out and " bench " not in out
    assert run(capsys, "--version")[1] == f"eagle31rt {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: COMMAND"),
        (["bench"], "invalid choice: 'bench'"),
        (["generate"], "required: --model"),
        (["generate", "--model", "MODEL"], "give --prompt TEXT or --prompt-file"),
        (["generate", "--model", "MODEL", "--prompt", "a", "--prompt-file", "f"], "not allowed with argument"),
        (["generate", "--model", "MODEL", "--prompt", "a", "--max-tokens", "x"], "invalid int value: 'x'"),
        (["generate", "--model", "MODEL", "--prompt", "a", "--max-tokens", "0"], "SamplingParams.max_tokens"),
        (["generate", "--model", "MODEL", "--prompt", "a", "--temperature", "nan"], "SamplingParams.temperature"),
        (["generate", "--model", "MODEL", "--prompt", "a", "--threads", "0"], "num_threads must be a positive integer"),
        (["generate", "--model", "./no/where", "--prompt", "a"], "there is no directory './no/where'"),
        (
            ["generate", "--model", "MODEL", "--draft", "./no/where", "--prompt", "a"],
            "there is no directory './no/where'",
        ),
        (["generate", "--model", "MODEL", "--prompt", "a", "--num-speculative-tokens", "2"], "needs --draft"),
        (["generate", "--model", "MODEL", "--prompt", "a" * 600], "prompt 0: "),
        (["generate", "--model", "MODEL", "--prompt-file", "FOLDER/missing.jsonl"], "missing.jsonl"),
        (["generate", "--model", "MODEL", "--prompt-file", "FOLDER/bad.jsonl"], "bad.jsonl, line 2: not valid JSON"),
        (["generate", "--model", "MODEL", "--prompt-file", "FOLDER/other.jsonl"], "other.jsonl, line 1: must be"),
        (["generate", "--model", "MODEL", "--prompt-file", "FOLDER/binary.jsonl"], "not valid UTF-8"),
        (["generate", "--model", "FOLDER", "--prompt", "a"], "tokenizer.json"),
        (["chat", "--model", "MODEL", "--prompt-file", "FOLDER/ids.jsonl"], "a turn of a chat must be text"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], pair: tuple[str, str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "bad.jsonl").write_text('"ok"\n{"prompt": \n')
    (tmp_path / "other.jsonl").write_text('{"question": "?"}\n')
    (tmp_path / "ids.jsonl").write_text('{"prompt_token_ids": [1]}\n')
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe")
    places = {"MODEL": pair[0], "FOLDER": str(tmp_path)}
    words = [word.replace("MODEL", places["MODEL"]).replace("FOLDER", places["FOLDER"]) for word in arguments]
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert err.startswith("eagle31rt: error: ") and err.count("\n") == 1 and message in err, err


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "eagle31rt.cli", *arguments]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, **options)


def test_as_a_program(pair: tuple[str, str]) -> None:
    failed = command("generate", "--model", "no/where", "--prompt", "a")
    assert (failed.returncode, failed.stdout) == (2, "") and failed.stderr.startswith("eagle31rt: error: ")
    assert "Traceback" not in failed.stderr
    # A terminal that cannot show the model's characters, and a reader that has gone.
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    arguments = ["generate", "--model", pair[0], "--prompt", "\u20ac\U0001f600", "--max-tokens", "90"]
    shown = command(*arguments, env=environment)
    assert shown.returncode == 0 and shown.stdout.strip() and shown.stderr == ""
    script = f"{sys.executable} -m eagle31rt.cli generate --model {pair[0]} --prompt a --prompt b --json | true"
    closed = subprocess.run(["bash", "-o", "pipefail", "-c", script], capture_output=True, text=True, timeout=120)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_terminated_preparation_leaves_nothing_behind(empty_cache: Path, tmp_path: Path) -> None:
    """pip is replaced by a program that never ends; it must end with its parent."""
    package = tmp_path / "pip"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\ntime.sleep(60)"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words = [sys.executable, "-m", "eagle31rt.cli", "demo", "--paths"]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONPATH": path}, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 30
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [entry.name[:9] for entry in empty_cache.iterdir()] == [".smollm2-"]
    process.terminate()
    assert process.wait(timeout=30) == 143
    assert list(empty_cache.iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_demo_json(capsys: pytest.CaptureFixture[str], demo_pair: DemoPair) -> None:
    status, out, err = run(capsys, "demo", "--json", "--max-tokens", "24", "--num-speculative-tokens", "2")
    result = json_lines(out)[-1]
    assert (status, list(result)) == (0, DEMO_KEYS)
    assert result["identical"] is True and result["num_speculative_tokens"] == 2
    assert len(result["acceptance_per_position"]) == 2
    assert result["acceptance_length"] == pytest.approx(1 + sum(result["acceptance_per_position"]))
    assert result["acceptance_length"] > 1.2  # the head does draft for this target
    ratio = result["speculative_tokens_per_second"] / result["plain_tokens_per_second"]
    assert result["speed_up"] == pytest.approx(ratio) and ratio > 0
    assert err.count("[plain]") == err.count("[speculative]") == 3


def test_demo_paths(capsys: pytest.CaptureFixture[str], demo_pair: DemoPair) -> None:
    status, out, _ = run(capsys, "demo", "--paths")
    assert (status, json.loads(out)) == (0, {"target": str(demo_pair.target), "draft": str(demo_pair.draft)})


def test_demo_table(capsys: pytest.CaptureFixture[str], demo_pair: DemoPair) -> None:
    status, out, _ = run(capsys, "demo", "--max-tokens", "8")
    assert status == 0
    for row in ("token ids identical", "speed-up", "mean acceptance length", "acceptance per position"):
        assert row in out
