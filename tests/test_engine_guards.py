"""Misuse of the engine is refused by name, and many requests that speculate do not starve a new prompt."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import TargetSpec, target_config
from support.engine import Request, endless, make_engine, plain_outcome, random_prompt, sampling
from support.successor import write_successor_draft, write_successor_target

from eagle31rt import _core, _testing
from eagle31rt.errors import CheckpointError, InvalidArgumentError


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("guards")
    target = write_successor_target(folder / "target")
    return target.directory, write_successor_draft(folder / "draft", target).directory


@pytest.mark.parametrize(
    "changes",
    [
        {"capture_layers": [1, 2]},
        {"layer_id_convention": "residual_index"},
        {"feedback": "post"},
        {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"},
        {"num_speculative_tokens": 3},
    ],
)
def test_draft_fields_without_a_draft_are_refused(paths: tuple[Path, Path], changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"no draft model is given|none is given"):
        make_engine(paths[0], **changes)


def test_vocabulary_that_the_sampler_cannot_hold_is_refused() -> None:
    config = target_config(TargetSpec())
    limit = 2**20 - 1
    assert _testing.parse_decoder_config(json.dumps({**config, "vocab_size": limit}).encode())["vocab_size"] == limit
    with pytest.raises(CheckpointError, match="vocab_size"):
        _testing.parse_decoder_config(json.dumps({**config, "vocab_size": limit + 1}).encode())


def test_a_prompt_does_not_starve_behind_drafts(paths: tuple[Path, Path]) -> None:
    engine = make_engine(*paths, num_speculative_tokens=8, max_num_batched_tokens=64, max_num_seqs=16)
    for index in range(15):  # 15 * 9 rows a step, more than the prompt budget
        engine.add_request(index, random_prompt(4, index), sampling(**endless(200)))
    for _ in range(3):
        engine.step()
    engine.add_request(99, random_prompt(128), sampling(**endless(4)))
    steps = 0
    while not any(output.request_id == 99 for output in engine.step()):
        steps += 1
    assert steps == 1  # 128 tokens in two chunks of 64


def test_step_simple_refuses_what_step_began(paths: tuple[Path, Path]) -> None:
    engine = make_engine(*paths, num_speculative_tokens=2)
    engine.add_request(0, random_prompt(4), sampling(**endless(20)))
    engine.step()
    with pytest.raises(InvalidArgumentError, match="begun by step"):
        engine.step_simple()
    engine.check()


def test_two_threads_in_one_engine_are_refused(paths: tuple[Path, Path]) -> None:
    engine = make_engine(*paths, num_speculative_tokens=2)
    request = Request(random_prompt(4), endless(250))
    engine.add_request(0, request.prompt, sampling(**request.params))
    refused: list[str] = []
    ids: list[int] = []
    done = threading.Event()

    def intrude() -> None:
        while not done.is_set():
            try:
                engine.cancel(12345)
            except InvalidArgumentError as error:
                refused.append(str(error))

    intruder = threading.Thread(target=intrude)
    intruder.start()
    while engine.has_unfinished_requests():
        try:
            ids += [token for output in engine.step() for token in output.new_token_ids]
        except InvalidArgumentError as error:
            refused.append(str(error))
    done.set()
    intruder.join()
    assert refused and all("another thread" in message for message in refused)
    assert ids == plain_outcome(make_engine(paths[0]), request).token_ids


def test_an_engine_does_not_follow_a_fork(paths: tuple[Path, Path]) -> None:
    engine: _core.Engine = make_engine(paths[0])
    engine.add_request(0, random_prompt(4), sampling(**endless(4)))
    child = os.fork()
    if child == 0:
        try:
            engine.step()
        except InvalidArgumentError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
