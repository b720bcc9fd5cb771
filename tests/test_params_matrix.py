"""Every sampling parameter under speculation: the output is that of plain decoding, alone and in any pair with others.

The constructed pair (support.successor) has about half of its drafts accepted, so a parameter that a verify row forgot
would show. The first test also compares with a run without the parameter: one that is ignored everywhere fails there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from support.engine import random_prompt
from support.pairwise import pairwise
from support.successor import EOS, write_successor_draft, write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt import LLM, RequestOutput, SamplingParams
from eagle31rt.sampling_params import NEUTRAL_VALUES

PROMPT = random_prompt(14)
LONG = 110  # the greedy text goes once around the vocabulary, so it holds every token and the end of sequence
_ELSEWHERE = {"output_kind", "num_speculative_tokens", *NEUTRAL_VALUES}  # change no token of LLM.generate


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, LLM]:
    """With speculation, and without."""
    folder = tmp_path_factory.mktemp("pair")
    target = write_successor_target(folder / "target")
    write_tiny_tokenizer(target.directory)
    draft = write_successor_draft(folder / "draft", target).directory
    common: dict[str, Any] = {"num_threads": 1, "kv_cache_memory_bytes": 32 << 20}
    speculation = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 4}
    return LLM(target.directory, speculative_config=speculation, **common), LLM(target.directory, **common)


def no_third_of_the_vocabulary(output_ids: list[int], logits: np.ndarray) -> None:
    """Depends on the path: which third changes with the number of tokens, drafts included."""
    logits[len(output_ids) % 3 :: 3] -= 3.0


def repeats_the_prompt(prompt_ids: list[int], output_ids: list[int], logits: np.ndarray) -> np.ndarray:
    changed = logits.copy()
    changed[prompt_ids[len(output_ids) % len(prompt_ids)]] += 4.0
    return changed


def ascii_run(text: str, length: int, start: int) -> str:
    """`length` characters of `text` after `start` that are one token each."""
    for begin in range(start, len(text) - length):
        piece = text[begin : begin + length]
        if piece.isascii() and piece.isprintable() and not piece.isspace() and piece.strip() == piece:
            return piece
    raise AssertionError(f"no run of {length} in {text!r}")


@dataclass(frozen=True)
class Case:
    """`change` is added to `base`; it may depend on the plain output of the base."""

    change: dict[str, Any] | Callable[[list[int], str], dict[str, Any]]
    base: dict[str, Any] = field(default_factory=dict)


GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
WARM: dict[str, Any] = {"temperature": 1.2, "seed": 3, "max_tokens": 60, "ignore_eos": True}
ROUND: dict[str, Any] = {"temperature": 0.0, "max_tokens": LONG, "ignore_eos": True}

# For each parameter, what makes it act.
CASES: dict[str, list[Case]] = {
    "temperature": [Case({"temperature": 0.8, "seed": 3}, GREEDY)],
    "top_k": [Case({"top_k": 2}, WARM)],
    "top_p": [Case({"top_p": 0.5}, WARM)],
    "min_p": [Case({"min_p": 0.4}, WARM)],
    "seed": [Case({"seed": 2**64 - 1}, WARM)],
    "n": [Case({"n": 3}, WARM)],
    "repetition_penalty": [Case({"repetition_penalty": 3.0}, GREEDY), Case({"repetition_penalty": 0.5}, WARM)],
    "frequency_penalty": [Case({"frequency_penalty": 2.0}, WARM), Case({"frequency_penalty": -1.5}, WARM)],
    "presence_penalty": [Case({"presence_penalty": 2.0}, WARM), Case({"presence_penalty": -2.0}, WARM)],
    "logit_bias": [
        Case(lambda ids, text: {"logit_bias": {ids[3]: -100.0}}, GREEDY),
        Case({"logit_bias": {7: 2.5, 8: 2.0}}, WARM),
    ],
    "allowed_token_ids": [
        Case(lambda ids, text: {"allowed_token_ids": [i for i in range(96) if i != ids[3]]}, GREEDY),
        Case({"allowed_token_ids": list(range(20, 60))}, WARM),
    ],
    "bad_words": [
        Case(lambda ids, text: {"bad_words": [ascii_run(text, 1, 3)]}, ROUND),
        Case(lambda ids, text: {"bad_words": [ascii_run(text, 2, 2), "never there"]}, ROUND),
    ],
    "max_tokens": [Case({"max_tokens": 1}, GREEDY), Case({"max_tokens": None}, {"temperature": 0.0})],
    "stop_token_ids": [Case(lambda ids, text: {"stop_token_ids": [ids[6]]}, GREEDY)],
    "min_tokens": [
        Case(lambda ids, text: {"stop_token_ids": [ids[4]], "min_tokens": 9}, GREEDY),
        Case({"min_tokens": LONG - 1}, {"temperature": 0.0, "max_tokens": LONG}),
    ],
    "ignore_eos": [Case({"ignore_eos": True}, {"temperature": 0.0, "max_tokens": LONG})],
    "stop": [
        Case(lambda ids, text: {"stop": ascii_run(text, 2, 6)}, ROUND),
        Case(lambda ids, text: {"stop": ["never there", ascii_run(text, 1, 9)]}, ROUND),
    ],
    "include_stop_str_in_output": [
        Case(lambda ids, text: {"stop": ascii_run(text, 2, 6), "include_stop_str_in_output": True}, ROUND)
    ],
    "logprobs": [Case({"logprobs": 3}, WARM), Case({"logprobs": 0}, GREEDY)],
    "prompt_logprobs": [Case({"prompt_logprobs": 2}, GREEDY)],
    "skip_special_tokens": [Case({"skip_special_tokens": False}, ROUND)],
    "detokenize": [Case({"detokenize": False}, GREEDY)],
    "structured_outputs": [
        Case({"structured_outputs": {"regex": "[^abcdefg]{8,30}"}}, WARM),
        Case({"structured_outputs": {"choice": ["abc", "xyz, zz", "q"]}}, GREEDY),
    ],
    "logits_processors": [
        Case({"logits_processors": [no_third_of_the_vocabulary]}, GREEDY),
        Case({"logits_processors": [no_third_of_the_vocabulary, repeats_the_prompt]}, WARM),
    ],
    "truncate_prompt_tokens": [Case({"truncate_prompt_tokens": 3}, WARM)],
}


def run(llm: LLM, params: dict[str, Any]) -> RequestOutput:
    return llm.generate([PROMPT], SamplingParams(**params), use_tqdm=False)[0]


def outcome(output: RequestOutput) -> dict[str, Any]:
    """All that a user sees, the log-probabilities bit for bit."""
    return {
        "prompt_token_ids": output.prompt_token_ids,
        "prompt_logprobs": output.prompt_logprobs,
        "samples": [vars(sample) for sample in output.outputs],
    }


@pytest.mark.parametrize(
    ("name", "case"),
    [pytest.param(name, case, id=f"{name}-{i}") for name in CASES for i, case in enumerate(CASES[name])],
)
def test_each_parameter_acts_and_speculation_changes_nothing(engines: tuple[LLM, LLM], name: str, case: Case) -> None:
    speculating, plain = engines
    base = run(plain, case.base)
    change = case.change
    if callable(change):
        change = change(base.outputs[0].token_ids, base.outputs[0].text)
    expected = run(plain, {**case.base, **change})
    without = {key: value for key, value in change.items() if key != name}
    assert outcome(expected) != outcome(run(plain, {**case.base, **without})), f"{name} had no effect"
    output = run(speculating, {**case.base, **change})
    assert outcome(output) == outcome(expected)
    assert output.outputs[0].finish_reason in ("stop", "length")
    if len(output.outputs[0].token_ids) > 8:
        assert output.metrics.num_accepted_tokens > 0, "no draft was accepted, so nothing was tested"


def test_every_parameter_has_a_case() -> None:
    fields = set(SamplingParams.__dataclass_fields__)
    assert fields - _ELSEWHERE == set(CASES)


CHOICES: dict[str, list[Any]] = {
    "temperature": [0.0, 0.9, 1.5],
    "seed": [3, 11],
    "num_speculative_tokens": [None, 1, 0],
    "max_tokens": [30, 7],
    "top_k": [0, 6],
    "top_p": [1.0, 0.85],
    "min_p": [0.0, 0.05],
    "n": [1, 2],
    "repetition_penalty": [1.0, 1.4, 0.8],
    "frequency_penalty": [0.0, 0.7],
    "presence_penalty": [0.0, -0.6],
    "logit_bias": [None, {5: 3.0, 40: -100.0, 41: 1.5}],
    "allowed_token_ids": [None, [*list(range(0, 96, 2)), EOS, 5, 41, 61]],
    "bad_words": [None, ["e", "th", "x"]],
    "stop_token_ids": [[], [17, 60]],
    "min_tokens": [0, 6],
    "ignore_eos": [False, True],
    "stop": [None, ["o", "zz", ", "]],
    "include_stop_str_in_output": [False, True],
    "logprobs": [None, 0, 4],
    "prompt_logprobs": [None, 1],
    "skip_special_tokens": [True, False],
    "structured_outputs": [None, {"regex": "[^qrst]{9,40}"}],
    "logits_processors": [None, [no_third_of_the_vocabulary], [repeats_the_prompt]],
    "truncate_prompt_tokens": [None, 5],
}


def combinations_of_parameters() -> list[dict[str, Any]]:
    rows = pairwise(CHOICES)
    return [{**row, "n": row["n"] if row["temperature"] > 0 else 1} for row in rows]


def test_pairs_of_parameters_in_one_batch(engines: tuple[LLM, LLM]) -> None:
    """All combinations run together with speculation, and each alone without."""
    speculating, plain = engines
    rows = combinations_of_parameters() * 3
    prompts = [random_prompt(3 + index % 15, seed=index) for index in range(len(rows))]
    together = speculating.generate(prompts, [SamplingParams(**row) for row in rows], use_tqdm=False)
    for prompt, row, output in zip(prompts, rows, together, strict=True):
        alone = {key: value for key, value in row.items() if key != "num_speculative_tokens"}
        assert outcome(output) == outcome(plain.generate([prompt], SamplingParams(**alone), use_tqdm=False)[0]), row
    reasons = [sample.finish_reason for output in together for sample in output.outputs]
    assert {"stop", "length"} <= set(reasons)
    assert reasons.count("error") <= len(reasons) // 10  # a regex, a list and a ban may leave nothing
    assert sum(output.metrics.num_accepted_tokens for output in together) > 100


def test_the_combinations_hold_every_pair() -> None:
    rows = pairwise(CHOICES)
    assert len(rows) <= 24
    for first, second in combinations(CHOICES, 2):
        pairs = {(str(row[first]), str(row[second])) for row in rows}
        assert len(pairs) == len(CHOICES[first]) * len(CHOICES[second]), (first, second)
