"""Inputs from public bug reports against speculative decoding, tried on this engine.

Numbers are those of the table in the project's notes on batch correctness, the report behind each is named. Rows about
draft state after a round or a chunk (vllm#14649, sglang PR#26800) are in test_draft_oracle.py.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import DraftSpec, TargetSpec, TinyCheckpoint, target_config, target_weights, write_draft
from support.engine import Request, Result, endless, make_engine, plain_outcome, random_prompt, serve
from support.oracle import Target, generate
from support.oracle_draft import Draft, speculate
from support.successor import DRAFT, TARGET, write_successor_draft, write_successor_target
from support.tensors import stored, write_directory

from eagle31rt.errors import CheckpointError


class Pair:
    def __init__(self, directory: Path, **spec: Any) -> None:
        target = write_successor_target(directory / "target", replace(TARGET, **spec))
        self.target = target.directory
        self.draft = write_successor_draft(directory / "draft", target).directory
        self.plain = make_engine(self.target)

    def run(self, requests: list[Request], num_drafts: int, **changes: Any) -> list[Result]:
        """Speculates, and compares each with plain decoding."""
        engine = make_engine(self.target, self.draft, num_speculative_tokens=num_drafts, **changes)
        results = serve(engine, requests)
        for request, result in zip(requests, results, strict=True):
            assert result.outcome == plain_outcome(self.plain, request).outcome
        return results


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(tmp_path_factory.mktemp("pair"))


def test_prompts_of_one_and_nine_tokens(pair: Pair) -> None:
    """SafeAILab/EAGLE#250: batch 2 crashed, since buffers were sized for one row."""
    requests = [Request(random_prompt(1), endless(30)), Request(random_prompt(9), endless(30))]
    together = pair.run(requests, 4)
    assert together == [pair.run([request], 4)[0] for request in requests]


@pytest.mark.parametrize("copies", [2, 8, 16])
def test_acceptance_does_not_fall_as_the_batch_grows(pair: Pair, copies: int) -> None:
    """TensorRT-LLM#9208: the same prompt once and many times must accept the same drafts."""
    request = Request(random_prompt(7), endless(40))
    alone = pair.run([request], 5)[0]
    assert alone.num_accepted_tokens > 10
    assert pair.run([request] * copies, 5) == [alone] * copies


def test_longest_run_across_a_page_edge(pair: Pair) -> None:
    """TensorRT-LLM#11300: quality fell with long drafts that began just before a page edge."""
    requests = [Request(random_prompt(length, length), endless(60)) for length in (10, 11, 12, 27)]
    results = pair.run(requests, 16, page_size=16)
    assert max(run for result in results for run in result.runs) > 6


def _ending(pair: Pair, free: Result, index: int, **params: Any) -> Request:
    assert free.token_ids[index] not in free.token_ids[:index]
    stop = {"stop_token_ids": [free.token_ids[index]]}
    return Request(random_prompt(9), {"max_tokens": 40, "ignore_eos": True, **stop, **params})


def _places_inside_runs(result: Result) -> list[int]:
    """Output indices that are accepted drafts, two or more tokens before the end of their run, and new ids."""
    places, start = [], 0
    for run in result.runs:
        places += [i for i in range(start, start + run - 2) if result.token_ids[i] not in result.token_ids[:i]]
        start += run
    return places


def test_end_accepted_in_the_middle_of_a_run(pair: Pair) -> None:
    """transformers#47912: only the last token of a run was looked at; vllm#56101: what lay behind it was counted."""
    free = pair.run([Request(random_prompt(9), endless(40))], 5)[0]
    places = _places_inside_runs(free)
    assert len(places) >= 2
    for index in places:
        result = pair.run([_ending(pair, free, index)], 5)[0]
        assert result.outcome == (free.token_ids[: index + 1], "stop", free.token_ids[index])
        assert sum(result.runs) == len(result.token_ids) == index + 1
        # All but the first token and one bonus for each finished round were drafts.
        assert result.num_accepted_tokens == index + 1 - result.num_drafts


@pytest.mark.parametrize("slack", [0, 1])
def test_end_and_length_in_the_same_run(pair: Pair, slack: int) -> None:
    """sglang#31599: the length cap was tested first and hid an end before it."""
    free = pair.run([Request(random_prompt(9), endless(40))], 5)[0]
    for index in _places_inside_runs(free):
        result = pair.run([_ending(pair, free, index, max_tokens=index + 1 + slack)], 5)[0]
        assert (len(result.token_ids), result.finish_reason) == (index + 1, "stop")
        before = pair.run([_ending(pair, free, index, max_tokens=index)], 5) if index else []
        for result in before:
            assert (len(result.token_ids), result.finish_reason) == (index, "length")


@pytest.mark.parametrize("min_tokens", [1, 4, 7])
def test_min_tokens_holds_in_the_middle_of_a_run(pair: Pair, tmp_path: Path, min_tokens: int) -> None:
    """vllm PR#32642: verify rows skipped the mask; vllm#41768: later one row too many had it."""
    free = pair.run([Request(random_prompt(9), endless(40))], 5)[0]
    for index in range(1, 9):
        end = free.token_ids[index]
        masked = Pair(tmp_path / str(index), eos_token_id=end)
        result = masked.run([Request(random_prompt(9), {"max_tokens": 40, "min_tokens": min_tokens})], 5)[0]
        first = free.token_ids.index(end)
        if first >= min_tokens:
            assert result.token_ids == free.token_ids[: first + 1]
        else:
            assert result.token_ids[:first] == free.token_ids[:first] and len(result.token_ids) >= min_tokens
            assert end not in result.token_ids[:min_tokens]


def test_a_banned_id_that_is_drafted(pair: Pair) -> None:
    """vllm#18902, sglang#10617: verify rows skipped logit_bias, so that a banned draft could stand."""
    free = pair.run([Request(random_prompt(9), endless(40))], 5)[0]
    for index in _places_inside_runs(free):
        banned = free.token_ids[index]
        result = pair.run([Request(random_prompt(9), endless(40, logit_bias={banned: -100.0}))], 5)[0]
        first = free.token_ids.index(banned)
        assert result.token_ids[:first] == free.token_ids[:first]
        assert banned not in result.token_ids


def test_a_draft_without_a_head_is_refused(tmp_path: Path) -> None:
    """sglang PR#27908: the head stayed random and the server looked healthy."""
    target = write_successor_target(tmp_path / "target")
    write_draft(tmp_path / "draft", target, replace(DRAFT, own_head=False))
    with pytest.raises(CheckpointError, match="lm_head"):
        make_engine(target.directory, tmp_path / "draft", num_speculative_tokens=3)


@pytest.mark.parametrize("own", ["own_head", "own_embedding"])
def test_the_drafts_own_weights_are_used(tmp_path: Path, own: str) -> None:
    """vllm PR#27732: the drafter's own head or embedding was overwritten by the target's, acceptance fell."""
    target = write_successor_target(tmp_path / "target")
    # A head of the target's own size could be taken for a shared one.
    spec = replace(DRAFT, **{own: True, "draft_vocab_size": 96 if own == "own_head" else 88})
    draft = write_successor_draft(tmp_path / "draft", target, spec)
    judge = Target(target.directory)
    trace = speculate(judge, Draft(draft.directory, judge), random_prompt(9), 40, 4)
    engine = make_engine(target.directory, draft.directory, num_speculative_tokens=4)
    result = serve(engine, [Request(random_prompt(9), endless(40))])[0]
    assert (result.token_ids, result.num_accepted_tokens) == (trace.token_ids, sum(trace.accepted))
    assert sum(trace.accepted) > 12


def test_chunks_do_not_change_acceptance(pair: Pair) -> None:
    """sglang PR#26800, PR#28254: prompt 10 in chunks of 4, and a resumed request with outputs."""
    whole = pair.run([Request(random_prompt(10), endless(30))], 4)[0]
    assert pair.run([Request(random_prompt(10), endless(30))], 4, max_num_batched_tokens=4)[0] == whole
    resumed = Request(random_prompt(10) + whole.token_ids[:3], endless(27))
    one = pair.run([resumed], 4)[0]
    assert pair.run([resumed], 4, max_num_batched_tokens=4)[0] == one
    assert one.token_ids == whole.token_ids[3:]


def _all_negative(directory: Path) -> Any:
    """A target of 71 ids (padded to 96 lanes inside) whose logits are all far below 0."""
    spec = TargetSpec(vocab_size=71)
    weights = target_weights(spec, 5)
    weights["embed_tokens.weight"][:, 0] = 8.0
    weights["norm.weight"][0] = 1.0
    weights["lm_head.weight"][:, 0] = -20.0
    tensors = {(n if n == "lm_head.weight" else f"model.{n}"): stored(w, "float32") for n, w in weights.items()}
    write_directory(directory, target_config(spec), tensors)
    return spec, weights


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padding_never_wins(tmp_path: Path, temperature: float) -> None:
    """vllm PR#44744: with all real logits below 0, zeros of padding lanes won; ids past the vocabulary came out."""
    spec, weights = _all_negative(tmp_path / "target")
    target = TinyCheckpoint(tmp_path / "target", target_config(spec), weights, spec)
    draft = write_draft(tmp_path / "draft", target, DraftSpec(draft_vocab_size=41))
    judge = Target(target.directory)
    logits, _ = judge.forward(list(range(71)), judge.new_caches())
    assert logits.max() < -2
    requests = [Request([t], endless(20, temperature=temperature, seed=t)) for t in (0, 35, 70)]
    engine = make_engine(target.directory, draft.directory, num_speculative_tokens=4)
    results = serve(engine, requests)
    plain = make_engine(target.directory)
    for request, result in zip(requests, results, strict=True):
        assert all(0 <= token < 71 for token in result.token_ids)
        assert result.outcome == plain_outcome(plain, request).outcome
        if temperature == 0:
            assert result.token_ids == generate(judge, request.prompt, 20)


def test_seeds_in_one_batch(pair: Pair) -> None:
    """vllm#6038, #9441: seeds ignored, or mixed up between rows."""
    seeds = [1, 2, 1, 0, 2**64 - 1]
    requests = [Request(random_prompt(5), endless(30, temperature=1.0, seed=seed)) for seed in seeds]
    results = pair.run(requests, 4)
    assert results[0] == results[2]
    assert len({tuple(result.token_ids) for result in results}) == 4
