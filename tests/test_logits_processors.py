"""Custom logits processors from Python: what they are given on every row, and what becomes of those that fail."""

from __future__ import annotations

import gc
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engine import make_config, random_prompt, sampling
from support.successor import TARGET, write_successor_draft, write_successor_target

from eagle31rt import LLM, SamplingParams, _core

PROMPTS = [random_prompt(5), random_prompt(9, seed=4)]
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 20, "ignore_eos": True}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_successor_target(tmp_path_factory.mktemp("pair") / "target").directory


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, LLM]:
    """With speculation, and without."""
    folder: Path = tmp_path_factory.mktemp("pair")
    target = write_successor_target(folder / "target")
    draft = write_successor_draft(folder / "draft", target).directory
    common: dict[str, Any] = {"skip_tokenizer_init": True, "num_threads": 1, "kv_cache_memory_bytes": 16 << 20}
    speculation = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 4}
    return LLM(target.directory, speculative_config=speculation, **common), LLM(target.directory, **common)


def ids(llm: LLM, *processors: Any, **params: Any) -> list[int]:
    sampling = SamplingParams(**{**SAMPLED, **params}, logits_processors=list(processors))
    output = llm.generate([PROMPTS[0]], sampling, use_tqdm=False)[0].outputs[0]
    assert output.finish_reason == "length", output.stop_reason
    return output.token_ids


def recorder(rows: dict[tuple[int, ...], bytes]) -> Any:
    def record(prompt: list[int], output: list[int], logits: np.ndarray) -> None:
        assert prompt == PROMPTS[0] and logits.dtype == np.float32 and logits.shape == (TARGET.vocab_size,)
        rows[tuple(output)] = logits.tobytes()

    return record


def test_every_row_gets_the_history_of_its_own_path(engines: tuple[LLM, LLM]) -> None:
    """For the same output so far the logits are the same, bit for bit, whether the row was drafted or not."""
    seen: list[dict[tuple[int, ...], bytes]] = [{}, {}]
    outputs = []
    for llm, rows in zip(engines, seen, strict=True):
        outputs.append(ids(llm, recorder(rows)))
    drafted, plain = seen
    assert outputs[0] == outputs[1]
    assert sorted(plain) == sorted(tuple(outputs[1][:length]) for length in range(20))
    assert all(drafted[path] == logits for path, logits in plain.items())
    assert len(drafted) > len(plain), "rows behind rejected drafts ask too"


def test_in_place_and_returned_and_in_order(engines: tuple[LLM, LLM]) -> None:
    def only(token_id: int) -> Any:
        def keep(output: list[int], logits: np.ndarray) -> None:
            logits[np.arange(logits.size) != token_id] = -np.inf

        return keep

    def shifted(output: list[int], logits: np.ndarray) -> np.ndarray:
        return np.roll(logits, 1)

    for llm in engines:
        assert ids(llm, only(17)) == [17] * 20
        assert ids(llm, only(17), shifted) == [18] * 20
        assert ids(llm, shifted, only(17)) == [17] * 20
        assert ids(llm, only(17), lambda output, logits: logits.astype(np.float64).tolist()) == [17] * 20


def test_a_processor_cannot_lift_a_ban(engines: tuple[LLM, LLM]) -> None:
    def prefer(output: list[int], logits: np.ndarray) -> None:
        logits[40] = 100.0

    for llm in engines:
        assert ids(llm, prefer) == [40] * 20
        assert 40 not in ids(llm, prefer, allowed_token_ids=[41, 42, 43])


def test_arrays_may_be_kept(engines: tuple[LLM, LLM]) -> None:
    kept: list[np.ndarray] = []
    ids(engines[1], lambda output, logits: kept.append(logits))
    assert len({array.ctypes.data for array in kept}) == len(kept)
    assert len({array.tobytes() for array in kept}) > 1


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (lambda output, logits: 1 // 0, "logits_processors[0] failed: it raised ZeroDivisionError: "),
        (lambda output, logits: logits[:-1], "returned 95 values in 1 dimensions for 96 logits"),
        (lambda output, logits: logits.reshape(2, -1), "returned 96 values in 2 dimensions"),
        (lambda output, logits: "abc", "must return None or its logits"),
        (lambda output, logits: logits.fill(-np.inf), "logits_processors leave no id after position"),
    ],
    ids=["raises", "short", "two dimensions", "text", "bans all"],
)
def test_a_failure_ends_its_request_only(engines: tuple[LLM, LLM], processor: Any, message: str) -> None:
    for llm in engines:
        expected = [output.outputs[0].token_ids for output in llm.generate(PROMPTS, SamplingParams(**SAMPLED))]

        def late(output: list[int], logits: np.ndarray) -> Any:
            return processor(output, logits) if len(output) >= 7 else None

        failing = SamplingParams(**SAMPLED, logits_processors=[late])
        outputs = llm.generate([PROMPTS[0], *PROMPTS], [failing, *[SamplingParams(**SAMPLED)] * 2], use_tqdm=False)
        failed = outputs[0].outputs[0]
        assert failed.finish_reason == "error" and message in str(failed.stop_reason)
        assert failed.token_ids == expected[0][:7], "the tokens before the failure are there"
        assert [output.outputs[0].token_ids for output in outputs[1:]] == expected


def test_an_interrupt_inside_a_processor_reaches_the_caller(engines: tuple[LLM, LLM]) -> None:
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals are for the main thread")

    def interrupted(output: list[int], logits: np.ndarray) -> None:
        signal.raise_signal(signal.SIGINT)

    # A suite started in the background inherits an ignored SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()  # Python loses an interrupt that arrives in a callback of the collector (hypothesis has one)
    try:
        with pytest.raises(KeyboardInterrupt):
            ids(engines[0], interrupted)
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, before)
    assert ids(engines[0]) == ids(engines[1])


def test_an_engine_with_its_own_thread_calls_and_drops_them(directory: Path) -> None:
    """Its thread takes the GIL for the call; ending the engine in the middle of a request waits for nobody."""

    def prefer(prompt: list[int], output: list[int], logits: np.ndarray) -> None:
        logits[len(output) % 40] += 50.0

    core = sampling(max_tokens=30, ignore_eos=True, logits_processors=[prefer])
    engine = _core.AsyncEngine(make_config(directory))
    engine.submit(1, PROMPTS[0], core)
    ids: list[int] = []
    reason = ""
    while not reason:
        for output in engine.wait_outputs(5.0):
            ids += output.new_token_ids
            reason = output.finish_reason
    assert (ids, reason) == (list(range(30)), "length")
    alive = weakref.ref(prefer)
    engine.submit(2, PROMPTS[0], sampling(max_tokens=400, ignore_eos=True, logits_processors=[prefer]))
    engine.wait_outputs(5.0)
    del engine, core, prefer
    gc.collect()
    assert alive() is None
