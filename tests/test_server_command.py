"""`eagle31rt serve`: vLLM's command line parses, what cannot be done is refused by name, SIGTERM drains."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
import pytest
from support.server import write_pair

from eagle31rt.cli import main, make_parser
from eagle31rt.environment import shown_value
from eagle31rt.server.command import make_options

KIMI = [
    "serve", "moonshotai/Kimi-K2.6-Instruct", "--tensor-parallel-size", "8", "--speculative-config",
    '{"model": "lightseekorg/kimi-k2.6-eagle3.1-mla", "method": "eagle3", "num_speculative_tokens": 3}',
]  # fmt: skip


def parse(*arguments: str) -> argparse.Namespace:
    return make_parser().parse_args(["serve", *arguments])


def test_vllms_command_parses_and_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    parsed = make_parser().parse_args(KIMI)
    assert (parsed.model_directory, parsed.tensor_parallel_size) == ("moonshotai/Kimi-K2.6-Instruct", 8)
    assert parsed.speculative_config["num_speculative_tokens"] == 3
    assert main(KIMI) == 2
    message = capsys.readouterr().err
    assert message.startswith("eagle31rt: error: ") and message.count("\n") == 1
    assert "tensor_parallel_size=8" in message and "hub" not in message  # nothing is fetched for it
    assert main([*KIMI[:2], *KIMI[4:]]) == 2  # the suite is offline: both are looked for
    message = capsys.readouterr().err
    assert all(word in message for word in ("Kimi-K2.6-Instruct", "kimi-k2.6-eagle3.1-mla", "cannot be reached"))


def test_defaults_and_settings() -> None:
    options = make_options(parse("some/dir"))
    assert (options.host, options.port, options.api_keys) == ("127.0.0.1", 8000, ())
    assert (options.served_model_names, options.enable_metrics, options.enable_admin) == (("some/dir",), True, False)
    options = make_options(
        parse(
            "d", "--served-model-name", "a", "b", "--api-key", "k", "--no-enable-metrics", "--max-waiting-requests", "5"
        )
    )
    assert (options.served_model_names, options.api_keys, options.enable_metrics) == (("a", "b"), ("k",), False)
    assert options.limits.max_waiting_requests == 5
    assert (parse("d", "--max-model-len", "8K").max_model_len, parse("d", "--max-model-len", "1.5k").max_model_len) == (
        8192,
        1500,
    )
    assert parse("d", "--no-enable-prefix-caching").enable_prefix_caching is False


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["d", "--port", "99999"], "--port"),
        (["d", "--speculative-config", "{"], "JSON"),
        (["d", "--speculative-config", "[1]"], "JSON object"),
        (["d", "--max-model-len", "x"], "not a number"),
        (["d", "--no-such-flag"], "--no-such-flag"),
    ],
)
def test_bad_command_lines(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse(*arguments)
    assert exit_info.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--quantization", "fp8"], "quantization"),
        (["-tp", "2"], "tensor_parallel_size=2"),
        (["--pipeline-parallel-size", "2"], "pipeline_parallel_size=2"),
        (["--enable-lora"], "enable_lora"),
        (["--tool-call-parser", "hermes"], "tool_call_parser"),
        (["--per-request-spec-decode-metrics", "detailed"], "summary"),
        (["--model", "x"], "once"),
        (["--api-key", ""], "--api-key is empty"),
        (["--api-key", "key", " "], "--api-key is empty"),
        (["--chat-template", "x.jinja"], "chat_template='x.jinja'"),
        (["--ssl-keyfile", "key.pem"], "ssl_keyfile"),
        (["--allowed-origins", '["http://x"]'], "allowed_origins"),
        (["--no-enable-chunked-prefill"], "enable_chunked_prefill=False"),
    ],
)
def test_what_is_not_possible_is_refused(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_options_that_ask_for_nothing_are_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    neutral = ["--disable-log-requests", "--root-path", "", "--no-async-scheduling", "--api-server-count", "1"]
    assert main(["serve", str(tmp_path / "none"), *neutral]) == 2
    assert "not supported" not in capsys.readouterr().err


def test_without_the_extra_it_says_which(tmp_path: Path) -> None:
    """In a process where uvicorn cannot be imported."""
    script = textwrap.dedent(
        """
        import sys
        sys.modules["uvicorn"] = None
        import eagle31rt
        from eagle31rt.cli import main
        sys.exit(main(["serve", sys.argv[1]]))
        """
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "eagle31rt[server]" in done.stderr


def test_the_key_of_the_environment_is_used_and_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EAGLE31RT_API_KEY", "hidden")
    assert make_options(parse("d")).api_keys == ("hidden",)
    assert shown_value("EAGLE31RT_API_KEY") == "(set)"


def test_a_process_serves_reports_its_memory_and_drains(tmp_path: Path) -> None:
    target, draft = write_pair(tmp_path)
    speculation = f'{{"method": "eagle3", "model": "{draft}", "num_speculative_tokens": 2}}'
    command = [sys.executable, "-m", "eagle31rt.cli", "serve", str(target), "--port", "0", "--num-threads", "1"]
    command += ["--speculative-config", speculation, "--kv-cache-memory-bytes", "4M", "--served-model-name", "tiny"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    assert process.stderr is not None
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        lines: list[str] = []
        while not lines or "listening on " not in lines[-1]:
            line = process.stderr.readline()
            assert line, lines
            lines.append(line)
        memory = next(line for line in lines if "memory:" in line)
        assert all(word in memory for word in ("target ", "draft ", "KV cache ", "logits "))
        url = lines[-1].split()[-1]
        body = {
            "model": "tiny",
            "prompt": "abc",
            "temperature": 0,
            "max_tokens": 1000,
            "ignore_eos": True,
            "stream": True,
        }
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as reply:
            received = reply.iter_lines()
            first = next(received)
            process.send_signal(signal.SIGTERM)
            data = [first, *(line for line in received if line)]
        assert data[-1] == "data: [DONE]" and '"finish_reason":"length"' in data[-2]
        assert process.wait(60) == 0
        log = process.stderr.read()
        assert "draining" in log and "Traceback" not in log
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stderr.close()
