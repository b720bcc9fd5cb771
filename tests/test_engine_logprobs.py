"""Log-probabilities of output and prompt: of the model's own logits, one entry for each id, whatever is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.engine import (
    Logprobs,
    Request,
    endless,
    make_engine,
    plain_outcome,
    random_prompt,
    run_decoder,
    sampling,
    serve,
)
from support.traffic import Models


@pytest.fixture(scope="module", params=["host", "device"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("logprobs"), "float32", decode_state=request.param)


def check_entries(models: Models, tokens: list[int], first: int, entries: list[Logprobs], num_top: int) -> None:
    """Entry i describes tokens[first + i]."""
    logits = run_decoder(models.pair[0], tokens, dtype="float32")[0].astype(np.float64)
    for token, row, entry in zip(tokens[first:], logits[first - 1 :], entries, strict=False):
        law = row - row.max() - np.log(np.exp(row - row.max()).sum())
        token_id, logprob, rank, top_ids, top_logprobs = entry
        assert token_id == token
        assert logprob == pytest.approx(law[token], abs=1e-5)
        assert rank == 1 + np.sum(row > row[token])
        assert top_ids == np.argsort(-row, kind="stable")[:num_top].tolist()
        assert top_logprobs == pytest.approx(law[top_ids], abs=1e-5)


@pytest.mark.parametrize("num_drafts", [0, 1, 5])
@pytest.mark.parametrize("num_logprobs", [0, 1, 5, 64])
def test_values(models: Models, num_drafts: int, num_logprobs: int) -> None:
    """Raw: what bans and penalties do to the logits does not show. sglang PR#14046: only the first id had one."""
    engine = models.engine(sequences=4, page_size=16, num_speculative_tokens=num_drafts)
    params = endless(20, temperature=0.7, seed=2, presence_penalty=1.0, allowed_token_ids=list(range(3, 90)))
    request = Request(random_prompt(5), {**params, "num_logprobs": num_logprobs})
    result, other = serve(engine, [request, Request(random_prompt(7), endless(20))])
    assert len(result.logprobs) == 20
    assert other.logprobs == other.prompt_logprobs == result.prompt_logprobs == []
    check_entries(models, request.prompt + result.token_ids, len(request.prompt), result.logprobs, num_logprobs)
    assert result.logprobs == plain_outcome(models.plain, request).logprobs


@pytest.mark.parametrize("rows", [1, 7, 512])
@pytest.mark.parametrize("length", [1, 2, 30])
def test_prompt(models: Models, rows: int, length: int) -> None:
    """However the prompt is cut into chunks, and beside others; entry 0 has no value."""
    engine = models.engine(sequences=4, page_size=16, max_num_batched_tokens=rows)
    request = Request(random_prompt(length), endless(4, num_prompt_logprobs=3))
    others = [Request(random_prompt(9, 5), endless(6, num_prompt_logprobs=wanted)) for wanted in (-1, 0)]
    result = serve(engine, [others[0], request, others[1]])[1]
    assert len(result.prompt_logprobs) == length
    assert result.prompt_logprobs[0] == (request.prompt[0], 0.0, 0, [], [])
    check_entries(models, request.prompt, 1, result.prompt_logprobs[1:], 3)
    assert result.logprobs == []
    assert result == plain_outcome(models.plain, request) or result.num_drafts > 0
    assert result.prompt_logprobs == plain_outcome(models.plain, request).prompt_logprobs


def test_long_prompts_share_the_rows_of_a_step(models: Models) -> None:
    """128 rows a step want log-probabilities, of 512 that a step may have; who wants none does not wait for them."""
    engine = make_engine(*models.pair, max_model_len=256, num_speculative_tokens=2, **models.changes)
    wanted = [Request(random_prompt(length, length), endless(2, num_prompt_logprobs=1)) for length in (150, 140)]
    for index, request in enumerate([*wanted, Request(random_prompt(200), endless(2))]):
        engine.add_request(index, request.prompt, sampling(**request.params))
    first_outputs: dict[int, int] = {}
    found: dict[int, list[int]] = {}
    for step in range(5):
        for output in engine.step():
            first_outputs.setdefault(output.request_id, step)
            found.setdefault(output.request_id, [entry.token_id for entry in output.prompt_logprobs])
    assert first_outputs == {0: 1, 1: 2, 2: 0}
    assert found == {0: wanted[0].prompt, 1: wanted[1].prompt, 2: []}


@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_tokens_that_a_stop_cut_off_have_none(models: Models, place: int) -> None:
    """vllm PR#47616: ids ended at the stop, log-probabilities went on."""
    engine = models.engine(sequences=4, page_size=16, num_speculative_tokens=6)
    request = Request(random_prompt(4, 8), endless(30, num_logprobs=1))
    free = serve(engine, [request])[0]
    assert max(free.runs) > 4
    begin = np.cumsum(free.runs)[int(np.argmax(free.runs))] - max(free.runs)
    params: dict[str, Any] = {**request.params, "stop_token_ids": [free.token_ids[begin + place]]}
    result = serve(engine, [Request(request.prompt, params)])[0]
    assert result.finish_reason == "stop"
    assert result.logprobs == free.logprobs[: len(result.token_ids)]


def test_a_forced_id(models: Models) -> None:
    """A single id is left: its log-probability is the raw one all the same."""
    engine = models.engine(sequences=4, page_size=16)
    result = serve(engine, [Request(random_prompt(4), endless(3, allowed_token_ids=[50], num_logprobs=2))])[0]
    assert result.token_ids == [50, 50, 50]
    assert all(entry[2] > 1 and 50 not in entry[3] for entry in result.logprobs[:1])
