"""What serving costs: concurrent clients against the same requests offline in one batch, and streaming.

    python bench/serve.py --model TARGET --draft DRAFT --questions DIR

Clients are asyncio coroutines in a process of their own, as the server is. Results: bench/results/serve.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from acceptance import load_prompts
from common import provenance, write_result

_MAX_PROMPT = 256
_GOALS = {"throughput_of_offline": 0.95, "streaming_overhead": 0.02}


def load_requests(arguments: argparse.Namespace) -> list[list[int]]:
    """Token ids of chats, from every set in turn."""
    from eagle31rt.tokenizer import Tokenizer

    sets = load_prompts(arguments.questions, Tokenizer(Path(arguments.model)), arguments.requests, _MAX_PROMPT)
    return [prompt for group in zip(*sets.values(), strict=True) for prompt in group][: arguments.requests]


class Offline:
    """All requests in one batch, in a process of its own, as the server is."""

    _llm: Any = None  # in that process

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(1, Offline._open, (arguments,))

    @staticmethod
    def _open(arguments: argparse.Namespace) -> None:
        from eagle31rt import LLM

        Offline._llm = LLM(arguments.model, **engine_arguments(arguments))

    @staticmethod
    def _generate(prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        from eagle31rt import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        start = time.perf_counter()
        outputs = Offline._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "ids": [output.outputs[0].token_ids for output in outputs]}

    def run(self, prompts: list[list[int]], max_tokens: int) -> dict[str, Any]:
        return self._pool.apply(Offline._generate, (prompts, max_tokens))

    def close(self) -> None:
        self._pool.terminate()


def engine_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    speculation = {"method": "eagle3", "model": arguments.draft, "num_speculative_tokens": arguments.k}
    return {
        "speculative_config": speculation,
        "num_threads": arguments.threads,
        "max_num_seqs": arguments.clients,
        "max_model_len": 2048,
        "enable_prefix_caching": False,  # repeats must do the same work
    }


def start_server(arguments: argparse.Namespace) -> tuple[subprocess.Popen[str], str]:
    settings = engine_arguments(arguments)
    command = [sys.executable, "-m", "eagle31rt.cli", "serve", arguments.model, "--port", "0"]
    command += ["--speculative-config", json.dumps(settings["speculative_config"]), "--served-model-name", "model"]
    command += ["--max-num-seqs", str(arguments.clients), "--max-model-len", "2048", "--no-enable-prefix-caching"]
    command += ["--disable-uvicorn-access-log"]
    if arguments.threads is not None:
        command += ["--num-threads", str(arguments.threads)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "listening on " in line:
            return process, line.split()[-1]
    raise RuntimeError("the server did not start")


async def ask(
    client: httpx.AsyncClient, prompt: list[int], max_tokens: int, stream: bool
) -> tuple[list[int], list[float]]:
    """Ids of the answer, and the times at which chunks came."""
    body = {"prompt": prompt, "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    if not stream:
        reply = await client.post("/v1/completions", json=body)
        return reply.json()["choices"][0]["token_ids"], []
    ids: list[int] = []
    times: list[float] = []
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            new = json.loads(line[6:])["choices"][0]["token_ids"]
            if new:
                ids += new
                times.append(time.perf_counter())
    return ids, times


async def ask_all(url: str, prompts: list[list[int]], clients: int, max_tokens: int, stream: bool) -> dict[str, Any]:
    """`clients` at once, each with its share of the prompts one after the other."""
    answers: dict[int, tuple[list[int], list[float]]] = {}

    async def one_client(first: int, client: httpx.AsyncClient) -> None:
        for index in range(first, len(prompts), clients):
            answers[index] = await ask(client, prompts[index], max_tokens, stream)

    async with contextlib.AsyncExitStack() as stack:
        # Made before the clock runs, and without certificates, whose reading takes 20 ms a client.
        made = [httpx.AsyncClient(base_url=url, timeout=600, verify=False) for _ in range(clients)]
        for client in made:
            await stack.enter_async_context(client)
        start = time.perf_counter()
        await asyncio.gather(*(one_client(first, client) for first, client in enumerate(made)))
        seconds = time.perf_counter() - start
    gaps = [later - earlier for _, times in answers.values() for earlier, later in itertools.pairwise(times)]
    return {"seconds": seconds, "ids": [answers[index][0] for index in range(len(prompts))], "gaps": sorted(gaps)}


def measure(arguments: argparse.Namespace, prompts: list[list[int]]) -> dict[str, Any]:
    """Rounds of a pass each: offline, whole answers, streamed ones. Ratios are of one round, medians over rounds."""
    rounds: list[dict[str, dict[str, Any]]] = []
    offline = Offline(arguments)
    process, url = start_server(arguments)

    def ask_server(some: list[list[int]], stream: bool) -> dict[str, Any]:
        return asyncio.run(ask_all(url, some, arguments.clients, arguments.max_tokens, stream))

    try:
        offline.run(prompts[:2], arguments.max_tokens)
        ask_server(prompts[:2], True)
        for _ in range(arguments.repeats):
            rounds.append(
                {
                    "offline": offline.run(prompts, arguments.max_tokens),
                    "whole": ask_server(prompts, False),
                    "streamed": ask_server(prompts, True),
                }
            )
    finally:
        offline.close()
        process.send_signal(signal.SIGTERM)
        process.wait()
    return summary(rounds)


def summary(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    expected = rounds[0]["offline"]["ids"]
    tokens = sum(len(ids) for ids in expected)
    gaps = sorted(gap for each in rounds for gap in each["streamed"]["gaps"])

    def median_ratio(of: str, over: str) -> float:
        return median(each[of]["seconds"] / each[over]["seconds"] for each in rounds)

    return {
        "tokens": tokens,
        "tokens_per_second": {name: tokens / median(each[name]["seconds"] for each in rounds) for name in rounds[0]},
        "throughput_of_offline": median_ratio("offline", "whole"),
        "streaming_overhead": median_ratio("streamed", "whole") - 1,
        "inter_token_latency_ms": {
            "p50": 1e3 * gaps[len(gaps) // 2],
            "p99": 1e3 * gaps[len(gaps) * 99 // 100],
        },
        "ids_identical": all(each[name]["ids"] == expected for each in rounds for name in each),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft", required=True)
    parser.add_argument("--questions", type=Path, required=True, help="as bench/acceptance.py")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=16, help="as many as clients: one batch (default)")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("-k", type=int, default=3, help="draft length")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    prompts = load_requests(arguments)
    result = measure(arguments, prompts)
    settings = {name: getattr(arguments, name) for name in ("clients", "requests", "max_tokens", "k", "repeats")}
    path = write_result("serve.json", {**provenance(), **settings, "goals": _GOALS, **result, "cpus": os.cpu_count()})
    print(json.dumps(result, indent=1), f"\nwritten to {path}")


if __name__ == "__main__":
    main()
