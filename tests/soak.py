"""Many clients for a while: right ids, no 5xx, nothing leaks. Not a pytest file:

    python tests/soak.py --seconds 60 --clients 64

Clients complete, stream, chat, leave in the middle and send rubbish, at random. At the end pages, threads and resident
memory must be where they were after the warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

sys.path.insert(0, str(Path(__file__).parent))

from support.server import MODEL, RunningServer, engine_arguments, running_server, write_pair

from eagle31rt import LLM, SamplingParams

_NUM_KINDS = 24  # different requests, whose texts are known
_MAX_GROWTH_BYTES = 24 << 20
_NO_TLS = False  # certificates take each client a megabyte that only the garbage collector gives back
_RUBBISH = [
    b"", b"{", b"[" * 2000, b'{"prompt": 5}', b'{"prompt": "a", "temperature": NaN}', b"\xff\xfe\x00",
    b'{"prompt": "a", "stop": ' + json.dumps(["s"] * 10000).encode() + b"}",
    b'{"prompt": "a", "guided_regex": "(a{120}){120}("}',
    b'{"prompt": "a", "guided_json": {"enum": []}}',
    b'{"model": "none", "prompt": "a"}',
]  # fmt: skip


def request_of(kind: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prompt": "abc x"[: 1 + kind % 5],
        "temperature": 0.8,
        "seed": kind,
        "max_tokens": 5 + 3 * kind,
    }
    if kind % 3 == 0:
        body |= {"presence_penalty": 0.4, "top_k": 20}
    if kind % 4 == 1:
        body |= {"stop": ["e"], "n": 2}
    return body


def known_texts(target: Path) -> list[list[str]]:
    """From plain decoding, offline."""
    llm = LLM(target, **engine_arguments(None))
    texts: list[list[str]] = []
    for kind in range(_NUM_KINDS):
        body = request_of(kind)
        output = llm.generate(body.pop("prompt"), SamplingParams(**body), use_tqdm=False)[0]
        texts.append([sample.text for sample in output.outputs])
    return texts


class Client:
    def __init__(self, url: str, seed: int, texts: list[list[str]], counts: Counter[str]) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._texts = texts
        self._counts = counts

    async def run(self, until: float) -> None:
        actions = [self.complete, self.stream, self.leave, self.rubbish]
        async with httpx.AsyncClient(base_url=self._url, timeout=120, verify=_NO_TLS) as http:
            while time.monotonic() < until:
                await self._random.choice(actions)(http)

    def _kind(self) -> tuple[int, dict[str, Any]]:
        kind = self._random.randrange(_NUM_KINDS)
        return kind, {**request_of(kind), "speculative": self._random.choice(["on", "off", 1, 3])}

    def _count(self, action: str, status: int) -> bool:
        """True if there is an answer to check; a full queue is no failure."""
        self._counts[f"{action} {status}"] += 1
        assert status < 500, f"{action}: status {status}"
        return status == 200

    async def complete(self, http: httpx.AsyncClient) -> None:
        kind, body = self._kind()
        reply = await http.post("/v1/completions", json=body)
        if self._count("complete", reply.status_code):
            assert [choice["text"] for choice in reply.json()["choices"]] == self._texts[kind], f"kind {kind}"

    async def stream(self, http: httpx.AsyncClient, leave_after: int | None = None) -> None:
        kind, body = self._kind()
        texts = [""] * len(self._texts[kind])
        async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
            if not self._count("stream" if leave_after is None else "leave", reply.status_code):
                return
            number = 0
            async for line in reply.aiter_lines():
                if number == leave_after:
                    break
                if line.startswith("data: {"):
                    number += 1
                    for choice in json.loads(line[6:])["choices"]:
                        texts[choice["index"]] += choice["text"]
        whole = self._texts[kind]
        assert (
            texts == whole if leave_after is None else all(w.startswith(t) for w, t in zip(whole, texts, strict=True))
        )

    async def leave(self, http: httpx.AsyncClient) -> None:
        async with httpx.AsyncClient(base_url=self._url, timeout=120, verify=_NO_TLS) as own:
            await self.stream(own, self._random.randrange(4))

    async def rubbish(self, http: httpx.AsyncClient) -> None:
        reply = await http.post("/v1/completions", content=self._random.choice(_RUBBISH))
        assert not self._count("rubbish", reply.status_code)


def resident_bytes() -> int:
    """Without what the allocator keeps of freed memory."""
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS")


async def storm(url: str, clients: int, seconds: float, texts: list[list[str]], seed: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    await asyncio.gather(*(Client(url, seed + index, texts, counts).run(until) for index in range(clients)))
    return counts


def settle(server: RunningServer) -> tuple[int, int, int]:
    """Pages and requests in use after one more request, and threads."""
    reply = httpx.post(f"{server.url}/v1/completions", json={"model": MODEL, "prompt": "a", "max_tokens": 2})
    assert reply.status_code == 200
    return server.llm.stats["num_used_pages"], server.llm.num_unfinished, threading.active_count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        target, draft = write_pair(Path(folder))
        texts = known_texts(target)
        # So few pages that requests wait and are preempted.
        with running_server(target, draft, engine={"max_num_seqs": 24, "kv_cache_memory_bytes": 1 << 20}) as server:
            asyncio.run(storm(server.url, arguments.clients, min(10.0, arguments.seconds / 4), texts, arguments.seed))
            before, memory = settle(server), resident_bytes()
            counts = asyncio.run(storm(server.url, arguments.clients, arguments.seconds, texts, arguments.seed + 1000))
            after, growth = settle(server), resident_bytes() - memory
            preemptions = server.llm.stats["num_preemptions"]
    print(json.dumps({"counts": dict(sorted(counts.items())), "preemptions": preemptions, "memory_growth": growth}))
    assert before == after, f"pages, requests, threads: {before} before, {after} after"
    assert after[:2] == (0, 0)
    assert growth < _MAX_GROWTH_BYTES, f"resident memory grew by {growth} bytes"
    assert all(counts[f"{action} 200"] for action in ("complete", "stream", "leave"))


if __name__ == "__main__":
    main()
