"""An interrupt ends only the call that it hits; a forked child is refused; arrays and numpy numbers are accepted."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.successor import write_successor_draft, write_successor_target

from eagle31rt import LLM, SamplingParams
from eagle31rt.errors import InvalidArgumentError

PROMPT = [5, 9, 13]
LONG = SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)


class Alarm(Exception):
    pass


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = tmp_path_factory.mktemp("interrupts")
    target = write_successor_target(folder / "target")
    draft = write_successor_draft(folder / "draft", target)
    speculation = {"method": "eagle3", "model": str(draft.directory), "num_speculative_tokens": 3}
    return LLM(target.directory, speculative_config=speculation, skip_tokenizer_init=True, num_threads=1)


def test_interrupts_lose_no_token_of_other_callers(llm: LLM) -> None:
    expected = llm.generate([PROMPT], LONG)[0].outputs[0].token_ids
    results: list[list[int]] = []
    stop = threading.Event()

    def generate_again() -> None:
        while not stop.is_set():
            results.append(llm.generate([PROMPT], LONG)[0].outputs[0].token_ids)

    def interrupt(*_: object) -> None:
        raise Alarm

    previous = signal.signal(signal.SIGALRM, interrupt)
    background = threading.Thread(target=generate_again)
    background.start()
    interrupts = 0
    try:
        start = time.monotonic()
        while interrupts < 300 or len(results) < 4:
            assert time.monotonic() < start + 120, f"{interrupts} interrupts, {len(results)} results"
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            try:
                llm.generate([PROMPT] * 2, LONG)
            except Alarm:
                interrupts += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        stop.set()
        background.join()
        signal.signal(signal.SIGALRM, previous)
    assert all(ids == expected for ids in results)


def test_a_forked_child_is_told_to_make_its_own(llm: LLM) -> None:
    llm.generate([PROMPT], SamplingParams(max_tokens=2))
    child = os.fork()
    if child == 0:
        try:
            llm.generate([PROMPT], SamplingParams(max_tokens=2))
        except InvalidArgumentError as error:
            os._exit(7 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_arrays_and_numpy_numbers(llm: LLM) -> None:
    plain = SamplingParams(temperature=0.5, seed=3, top_k=5, max_tokens=8)
    same = SamplingParams(temperature=np.float32(0.5), seed=np.int64(3), top_k=np.int32(5), max_tokens=np.int64(8))
    expected = llm.generate([PROMPT], plain)[0].outputs[0].token_ids
    assert llm.generate(np.array(PROMPT), same)[0].outputs[0].token_ids == expected
    assert llm.generate([np.array(PROMPT)], same)[0].outputs[0].token_ids == expected
    with pytest.raises(InvalidArgumentError, match="prompt 1: token ids must be integers"):
        llm.generate([PROMPT, np.array([0.5])])
