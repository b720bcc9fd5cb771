"""The demo models: real weights, where logits come close and acceptance is what it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.engine import Request, make_engine, plain_outcome, serve
from support.oracle import Arithmetic, Target
from support.oracle_draft import Draft, speculate

if TYPE_CHECKING:
    from eagle31rt.demo_model import DemoPair

pytestmark = pytest.mark.real_model

QUESTIONS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Count from one to twelve in words.",
    "Give me a Python function that reverses a list.",
]
MAX_TOKENS = 32
MAX_DRAFTS = 8


def _prompts(pair: DemoPair) -> list[list[int]]:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer.from_file(str(pair.target / "tokenizer.json"))
    chat = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
    return [tokenizer.encode(chat.format(question)).ids for question in QUESTIONS]


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def served(request: pytest.FixtureRequest, demo_pair: DemoPair) -> dict[str, Any]:
    """The pair in one dtype, eight requests (half greedy, half at T=0.7), and what plain decoding makes of each."""
    config = {"dtype": request.param, "max_model_len": 256, "num_threads": 0, "kv_cache_memory_bytes": 0}
    plain = make_engine(demo_pair.target, **config)
    requests = [
        Request(prompt, {"max_tokens": MAX_TOKENS, "temperature": temperature, "seed": seed})
        for temperature in (0.0, 0.7)
        for seed, prompt in enumerate(_prompts(demo_pair))
    ]
    return {
        "requests": requests,
        "expected": [plain_outcome(plain, request).outcome for request in requests],
        "engine": make_engine(*demo_pair, **config, num_speculative_tokens=MAX_DRAFTS),
    }


@pytest.mark.parametrize("num_drafts", range(MAX_DRAFTS + 1))
def test_ids_of_a_batch_of_eight(served: dict[str, Any], num_drafts: int) -> None:
    requests = [
        replace(request, params={**request.params, "num_speculative_tokens": num_drafts})
        for request in served["requests"]
    ]
    results = serve(served["engine"], requests)
    assert [result.outcome for result in results] == served["expected"]
    if num_drafts > 0:
        accepted = sum(result.num_accepted_tokens for result in results)
        assert accepted > 0.15 * sum(result.num_drafts for result in results)


def test_ids_of_each_alone(served: dict[str, Any]) -> None:
    for request, expected in zip(served["requests"], served["expected"], strict=True):
        assert serve(served["engine"], [request])[0].outcome == expected


def test_accepted_counts_are_those_of_the_oracle(demo_pair: DemoPair) -> None:
    """Round by round, float32 against numpy in float32."""
    engine = make_engine(*demo_pair, dtype="float32", max_model_len=128, num_threads=0, num_speculative_tokens=5)
    target = Target(demo_pair.target, Arithmetic(dtype=np.float32))
    draft = Draft(demo_pair.draft, target)
    prompt = _prompts(demo_pair)[3]
    trace = speculate(target, draft, prompt, 24, 5, (2,))
    assert trace.margin > 1e-3, "a tie that either side may break: choose another prompt"
    result = serve(engine, [Request(prompt, {"max_tokens": 24})])[0]
    assert result.token_ids == trace.token_ids
    assert result.num_draft_tokens == sum(trace.drafted) and result.num_accepted_tokens == sum(trace.accepted)
    per_position = [sum(accepted > i for accepted in trace.accepted) for i in range(5)]
    assert result.num_accepted_tokens_per_position == per_position
