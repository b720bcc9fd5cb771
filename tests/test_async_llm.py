"""AsyncLLM: the ids and texts of LLM, streams, cancelling, and clear refusals of wrong use."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Coroutine
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.server import engine_arguments, slowed, write_pair

from eagle31rt import LLM, AsyncLLM, RequestOutput, SamplingParams
from eagle31rt.errors import InvalidArgumentError
from eagle31rt.sampling_params import RequestOutputKind

PROMPTS: list[Any] = ["abc", "x y z.", [5, 6, 7], "\u20ac\U0001f600", "hello"]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=24),
    SamplingParams(temperature=0.9, seed=5, max_tokens=17),
    SamplingParams(temperature=1.2, seed=9, max_tokens=9, top_k=5),
    SamplingParams(temperature=0.8, seed=3, max_tokens=12, n=3),
    SamplingParams(temperature=0.0, max_tokens=30, num_speculative_tokens=0),
]
ENDLESS = SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def llm(pair: tuple[Path, Path]) -> AsyncLLM:
    return AsyncLLM(pair[0], **engine_arguments(pair[1]))


@pytest.fixture(scope="module")
def expected(pair: tuple[Path, Path]) -> list[RequestOutput]:
    """Without speculation, offline."""
    return LLM(pair[0], **engine_arguments(None)).generate(PROMPTS, PARAMS)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def run_slowly(llm: AsyncLLM, coroutine: Coroutine[Any, Any, Any]) -> Any:
    with slowed(llm):
        return run(coroutine)


def of_kind(params: SamplingParams, kind: RequestOutputKind) -> SamplingParams:
    return SamplingParams(**{**params.__dict__, "output_kind": kind})


async def gathered(llm: AsyncLLM, kind: RequestOutputKind) -> list[list[RequestOutput]]:
    async def one(prompt: Any, params: SamplingParams) -> list[RequestOutput]:
        return [output async for output in llm.generate(prompt, of_kind(params, kind))]

    return await asyncio.gather(*(one(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)))


def shown(output: RequestOutput) -> list[tuple[list[int], str, Any, Any]]:
    return [(one.token_ids, one.text, one.finish_reason, one.stop_reason) for one in output.outputs]


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY])
def test_last_outputs_are_those_of_llm(llm: AsyncLLM, expected: list[RequestOutput], kind: RequestOutputKind) -> None:
    results = run(gathered(llm, kind))
    assert [shown(outputs[-1]) for outputs in results] == [shown(one) for one in expected]
    assert all(outputs[-1].finished for outputs in results)
    if kind is RequestOutputKind.FINAL_ONLY:
        assert [len(outputs) for outputs in results] == [1] * len(PROMPTS)
    for outputs in results:
        texts = [output.outputs[0].text for output in outputs]
        assert all(later.startswith(earlier) for earlier, later in pairwise(texts))


def test_deltas_add_up(llm: AsyncLLM, expected: list[RequestOutput]) -> None:
    for outputs, wanted in zip(run(gathered(llm, RequestOutputKind.DELTA)), expected, strict=True):
        for sample in wanted.outputs:
            parts = [one for output in outputs for one in output.outputs if one.index == sample.index]
            assert [token_id for part in parts for token_id in part.token_ids] == sample.token_ids
            assert "".join(part.text for part in parts) == sample.text
            assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
            assert parts[-1].finish_reason == sample.finish_reason


def test_a_chat_is_that_of_llm(llm: AsyncLLM, pair: tuple[Path, Path]) -> None:
    messages = [{"role": "user", "content": "ab"}]
    wanted = LLM(pair[0], **engine_arguments(None)).chat(messages, PARAMS[0])[0]

    async def answer() -> RequestOutput:
        requests = llm.prepare_chat(messages, PARAMS[0])
        return [output async for output in llm.submit(requests)][-1]

    assert shown(run(answer())) == shown(wanted)


async def started(llm: AsyncLLM, request_id: str | None = None) -> tuple[AsyncIterator[RequestOutput], RequestOutput]:
    iterator = llm.generate("abc", ENDLESS, request_id)
    return iterator, await anext(iterator)


def test_closing_the_iterator_frees_the_pages(llm: AsyncLLM) -> None:
    async def leave() -> dict[str, int]:
        iterator, first = await started(llm)
        assert not first.finished and llm.stats["num_used_pages"] > 0
        await iterator.aclose()  # type: ignore[attr-defined]
        assert llm.num_unfinished == 0
        await finished(llm)  # at least one more step
        return llm.stats

    stats = run_slowly(llm, leave())
    assert (stats["num_running"], stats["num_used_pages"]) == (0, 0)


async def finished(llm: AsyncLLM) -> RequestOutput:
    return [output async for output in llm.generate("abc", PARAMS[0])][-1]


def test_abort_ends_with_what_there_is(llm: AsyncLLM) -> None:
    async def abort() -> RequestOutput:
        iterator, first = await started(llm, "mine")
        with pytest.raises(InvalidArgumentError, match="'mine' is in use"):
            await llm.add_request("abc", ENDLESS, "mine")
        assert await llm.abort("mine") and not await llm.abort("mine")
        last = [output async for output in iterator][-1]
        assert last.outputs[0].token_ids[: len(first.outputs[0].token_ids)] == first.outputs[0].token_ids
        return last

    output = run_slowly(llm, abort())
    assert (output.request_id, output.outputs[0].finish_reason, output.finished) == ("mine", "abort", True)


@pytest.mark.parametrize("end", ["abort", "shutdown"])
def test_text_held_back_for_a_stop_string_comes_with_the_end(pair: tuple[Path, Path], end: str) -> None:
    llm = AsyncLLM(pair[0], **engine_arguments(None))

    async def cut() -> tuple[RequestOutput, RequestOutput]:
        only = llm.get_tokenizer().encode("A", add_special_tokens=False)
        never = SamplingParams(temperature=0.0, max_tokens=None, allowed_token_ids=only, stop="A" * 1000 + "b")
        iterator = llm.generate("a", never, "cut")
        before = await anext(iterator)
        while len(before.outputs[0].token_ids) < 10:
            before = await anext(iterator)
        if end == "abort":
            await llm.abort("cut")
        else:
            await asyncio.to_thread(llm.shutdown)
        return before, [output async for output in iterator][-1]

    with slowed(llm) if end == "abort" else nullcontext():
        before, last = run(cut())
    assert before.outputs[0].text == ""
    assert last.outputs[0].finish_reason == "abort"
    assert last.outputs[0].text == "A" * len(last.outputs[0].token_ids) != ""


def test_a_bad_request_raises_and_harms_nobody(llm: AsyncLLM, expected: list[RequestOutput]) -> None:
    async def mixed() -> RequestOutput:
        iterator, _ = await started(llm)
        good = asyncio.ensure_future(finished(llm))
        for prompt, params, word in [
            ([96], None, "token id 96"),
            ("a", SamplingParams(num_speculative_tokens=9), "num_speculative_tokens"),
            ([5] * 9000, None, "prompt"),
        ]:
            with pytest.raises(InvalidArgumentError, match=word):
                await anext(llm.generate(prompt, params))
        await iterator.aclose()  # type: ignore[attr-defined]
        return await good

    assert shown(run_slowly(llm, mixed())) == shown(expected[0])


def test_priority_and_deadline_reach_the_engine(llm: AsyncLLM) -> None:
    async def late() -> RequestOutput:
        outputs = llm.generate("abc", ENDLESS, priority=-3, timeout_seconds=1e-6)
        return [output async for output in outputs][-1]

    assert run(late()).outputs[0].finish_reason == "abort"


def test_another_loop_is_refused_while_requests_run(llm: AsyncLLM) -> None:
    seen: list[Exception] = []

    def elsewhere() -> None:
        try:
            asyncio.run(finished(llm))
        except InvalidArgumentError as error:
            seen.append(error)

    async def occupy() -> None:
        iterator, _ = await started(llm)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        await asyncio.to_thread(thread.join)
        await iterator.aclose()  # type: ignore[attr-defined]

    run_slowly(llm, occupy())
    assert len(seen) == 1 and "another event loop" in str(seen[0])
    run(finished(llm))  # a new loop, when the old one has nothing left, is welcome


def test_a_closed_loop_leaves_nothing_behind(llm: AsyncLLM) -> None:
    async def walk_away() -> None:
        await llm.add_request("abc", ENDLESS)

    run(walk_away())
    run(finished(llm))
    assert llm.num_unfinished == 0


def test_submitting_needs_a_loop(llm: AsyncLLM) -> None:
    with pytest.raises(InvalidArgumentError, match="event loop"):
        llm.submit(llm.prepare(["abc"], PARAMS[0]))


def test_shutdown_ends_what_runs_and_refuses_more(pair: tuple[Path, Path]) -> None:
    llm = AsyncLLM(pair[0], **engine_arguments(None))

    async def shut() -> RequestOutput:
        iterator, _ = await started(llm)
        await asyncio.to_thread(llm.shutdown)
        return [output async for output in iterator][-1]

    assert run(shut()).outputs[0].finish_reason == "abort"
    assert not llm.is_running
    with pytest.raises(InvalidArgumentError):
        run(finished(llm))


def test_an_unused_llm_takes_its_threads_with_it(pair: tuple[Path, Path]) -> None:
    llm = AsyncLLM(pair[0], **engine_arguments(None))
    thread = llm._thread
    del llm
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()
