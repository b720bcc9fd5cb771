"""The engine with a thread of its own: the ids of plain decoding, from many threads, and an orderly end."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.async_engine import collect, make_async_engine, submit
from support.engine import Request, endless, make_config, make_engine, plain_outcome, random_prompt, sampling
from support.successor import write_successor_draft, write_successor_target

from eagle31rt import _core, _testing
from eagle31rt.errors import DeviceError, InvalidArgumentError


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("async")
    target = write_successor_target(folder / "target")
    return target.directory, write_successor_draft(folder / "draft", target).directory


@pytest.fixture
def engine(paths: tuple[Path, Path]) -> _core.AsyncEngine:
    return make_async_engine(*paths, num_speculative_tokens=4)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    raised: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []


def test_requests_of_many_threads_get_the_ids_of_plain_decoding(
    paths: tuple[Path, Path], engine: _core.AsyncEngine
) -> None:
    requests = {i: Request(random_prompt(3 + i, i), {"max_tokens": 5 + 3 * i, "temperature": i % 2}) for i in range(12)}
    outcome: dict[int, object] = {}
    consumer = threading.Thread(target=lambda: outcome.update(collect(engine, requests)))
    consumer.start()
    in_threads(12, lambda i: submit(engine, i, requests[i]))
    consumer.join()
    plain = make_engine(paths[0])
    assert {i: result.outcome for i, result in outcome.items()} == {
        i: plain_outcome(plain, request).outcome for i, request in requests.items()
    }
    assert engine.stats["num_used_pages"] == engine.stats["num_running"] == engine.stats["num_waiting"] == 0


def test_errors_come_to_the_thread_that_submits(engine: _core.AsyncEngine) -> None:
    with pytest.raises(InvalidArgumentError, match="the prompt is empty"):
        engine.submit(1, [], sampling())
    with pytest.raises(InvalidArgumentError, match="temperature"):
        engine.submit(1, [5], sampling(temperature=-1.0))
    engine.submit(1, [5], sampling(**endless(200)))
    with pytest.raises(InvalidArgumentError, match="request_id 1 is in use"):
        engine.submit(1, [5], sampling())
    assert len(collect(engine, [1])[1].token_ids) == 200
    engine.submit(1, [5], sampling(**endless(2)))  # free again
    assert len(collect(engine, [1])[1].token_ids) == 2


def test_a_cancelled_request_yields_nothing_more(engine: _core.AsyncEngine) -> None:
    assert not engine.cancel(7)
    engine.submit(7, [5], sampling(**endless(400)))
    for _ in range(3):  # at least two steps, so there are outputs
        engine.run_between_steps(lambda _: None)
    assert engine.cancel(7)
    assert not engine.cancel(7)
    assert engine.wait_outputs(0) == []
    engine.submit(7, [6], sampling(**endless(3)))  # the same id at once: no output of the first may reach it
    fresh = collect(engine, [7])[7]
    assert len(fresh.token_ids) == 3 and fresh.finish_reason == "length"
    assert engine.wait_outputs(0) == []
    assert engine.stats["num_used_pages"] == 0


def test_cancel_before_the_engine_has_seen_it(engine: _core.AsyncEngine) -> None:
    def submit_and_cancel(_: _core.Engine) -> None:  # the engine's thread is here, so nothing is taken over meanwhile
        in_threads(1, lambda _: engine.submit(3, [5], sampling()))
        assert engine.cancel(3)

    engine.run_between_steps(submit_and_cancel)
    engine.submit(4, [5], sampling(**endless(2)))
    assert list(collect(engine, [4])) == [4]
    assert engine.wait_outputs(0) == []


def test_waiting_ends_after_the_timeout(engine: _core.AsyncEngine) -> None:
    assert engine.wait_outputs(0) == []
    assert engine.wait_outputs(0.001) == []
    for timeout in (-1.0, math.nan):
        with pytest.raises(InvalidArgumentError, match="timeout_seconds"):
            engine.wait_outputs(timeout)


def test_a_second_consumer_is_refused_and_shutdown_wakes_the_first(engine: _core.AsyncEngine) -> None:
    woken: list[list[_core.StepOutput]] = []

    def consume() -> None:
        while not woken:  # refused as long as the other thread happens to be inside
            with contextlib.suppress(InvalidArgumentError):
                woken.append(engine.wait_outputs(math.inf))

    consumer = threading.Thread(target=consume)
    consumer.start()
    with pytest.raises(InvalidArgumentError, match="another thread waits"):
        while True:  # until the consumer is there
            engine.wait_outputs(0)
    engine.shutdown()
    consumer.join()
    assert woken == [[]]


def test_shutdown_aborts_what_runs(engine: _core.AsyncEngine) -> None:
    for index in range(20):  # more than run at once
        engine.submit(index, [5], sampling(**endless(300)))
    assert engine.is_running
    engine.shutdown()
    engine.shutdown()
    assert engine.is_running  # there are outputs to take
    results: dict[int, list[str]] = {}
    while engine.is_running:
        for output in engine.wait_outputs(0):
            results.setdefault(output.request_id, []).append(output.finish_reason)
    assert {i: reasons[-1] for i, reasons in results.items()} == dict.fromkeys(range(20), "abort")
    assert all(set(reasons[:-1]) <= {""} for reasons in results.values())
    assert engine.stats["num_used_pages"] == 0
    assert engine.wait_outputs(math.inf) == []
    assert not engine.cancel(0)
    for call in (lambda: engine.submit(1, [5], sampling()), lambda: engine.run_between_steps(lambda _: None)):
        with pytest.raises(InvalidArgumentError, match="shut down"):
            call()


def test_functions_run_between_steps(engine: _core.AsyncEngine) -> None:
    engine.submit(1, [5], sampling(**endless(300)))
    seen: list[object] = []

    def look(inner: _core.Engine) -> None:
        inner.check()
        seen.append((threading.get_ident() != threading.main_thread().ident, inner.has_unfinished_requests()))
        with pytest.raises(InvalidArgumentError, match="between steps"):
            engine.shutdown()
        with pytest.raises(InvalidArgumentError, match="between steps"):
            engine.run_between_steps(look)

    engine.run_between_steps(look)
    assert seen == [(True, True)]
    with pytest.raises(ZeroDivisionError):
        engine.run_between_steps(lambda _: 1 // 0)
    assert len(collect(engine, [1])[1].token_ids) == 300


def test_a_step_that_throws_ends_every_request_and_refuses_later_ones(paths: tuple[Path, Path]) -> None:
    device = _testing.FakeDevice()
    engine = _testing.async_engine_on_fake_device(make_config(*paths, num_speculative_tokens=2), device)
    device.fail_after(20, "run", loses_device=True)
    engine.submit(1, [5], sampling(**endless(300)))
    engine.submit(2, [5], sampling(**endless(300)))
    results = collect(engine, [1, 2])
    assert {result.finish_reason for result in results.values()} == {"error"}
    with pytest.raises(DeviceError, match="has lost its device"):
        while True:  # the loss ended those requests; the next step is refused
            engine.submit(3, [5], sampling())
            assert collect(engine, [3])[3].finish_reason == "error"
    assert not engine.is_running
    with pytest.raises(DeviceError, match="has lost its device"):
        engine.run_between_steps(lambda _: None)


def test_an_async_engine_does_not_follow_a_fork(paths: tuple[Path, Path]) -> None:
    engine = make_async_engine(*paths, num_threads=2)
    child = os.fork()
    if child == 0:
        try:
            engine.submit(1, [5], sampling())
        except InvalidArgumentError:
            del engine  # joins no thread: they are the parent's
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_new_thread_may_get_the_id_of_the_engines_ended_one(paths: tuple[Path, Path]) -> None:
    """The system gives out ids of ended threads again at once; such a thread is no function between steps."""
    engine = make_async_engine(paths[0])
    engine.shutdown()
    errors: list[Exception] = []

    def shut_down_again() -> None:
        try:
            engine.shutdown()
        except InvalidArgumentError as error:
            errors.append(error)

    for _ in range(8):
        thread = threading.Thread(target=shut_down_again)
        thread.start()
        thread.join()
    assert errors == []


def test_engines_leave_no_thread_behind(paths: tuple[Path, Path]) -> None:
    def num_threads() -> int:
        return len(os.listdir("/proc/self/task"))

    before = num_threads()
    for index in range(20):
        engine = make_async_engine(*paths, num_speculative_tokens=2, num_threads=2)
        engine.submit(index, [5], sampling(**endless(100)))
        del engine  # with a request under way
    # The system lists a thread for a moment after it was joined; one left by each engine would be 20 for good.
    deadline = time.monotonic() + 10
    while num_threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert num_threads() <= before


def test_engines_leave_no_memory_behind(paths: tuple[Path, Path]) -> None:
    """An engine of this size takes 4 MB, and 16 of them leave 8 KB."""

    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def use_engines(count: int) -> None:
        for index in range(count):
            engine = make_async_engine(*paths, num_speculative_tokens=4, num_threads=2, kv_cache_memory_bytes=1 << 20)
            for request_id in range(6):
                submit(engine, request_id, Request(random_prompt(20, request_id), endless(30)))
            collect(engine, range(6 if index % 2 else 0))
            engine.shutdown()

    use_engines(8)
    before = resident_bytes()
    use_engines(16)
    assert resident_bytes() - before < 6 << 20
