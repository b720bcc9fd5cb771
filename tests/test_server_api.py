"""The official openai client against a server of a tiny pair: whole == streamed == offline, speculation on == off."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from support.server import MODEL, NUM_DRAFTS, RunningServer, engine_arguments, running_server, write_pair
from support.successor import write_successor_draft, write_successor_target

from eagle31rt import LLM, SamplingParams, __version__

MESSAGES: Any = [{"role": "user", "content": "ab c"}]
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0, "max_tokens": 24},
    {"temperature": 0.9, "seed": 5, "max_tokens": 17},
    {"temperature": 1.1, "seed": 6, "max_tokens": 20, "top_p": 0.8, "presence_penalty": 0.5, "stop": ["e", ". "]},
    {"temperature": 0.8, "seed": 3, "max_tokens": 12, "n": 3, "frequency_penalty": 0.3},
    {"temperature": 0.7, "seed": 8, "max_tokens": 15, "logit_bias": {"7": 3.5, "9": -100}},
]
EXTRAS: list[dict[str, Any]] = [
    {},
    {"top_k": 4, "min_p": 0.02},
    {"repetition_penalty": 1.3, "include_stop_str_in_output": True},
    {"min_tokens": 12},
    {"allowed_token_ids": list(range(3, 40)), "ignore_eos": True, "bad_words": ["q"]},
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def server(pair: tuple[Path, Path]) -> Iterator[RunningServer]:
    with running_server(*pair, per_request_spec_decode_metrics="summary") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture(scope="module")
def offline(pair: tuple[Path, Path]) -> LLM:
    """Without speculation."""
    return LLM(pair[0], **engine_arguments(None))


def params_of(setting: dict[str, Any], extra: dict[str, Any]) -> SamplingParams:
    values = {**setting, **extra}
    if "logit_bias" in values:
        values["logit_bias"] = {int(key): value for key, value in values["logit_bias"].items()}
    return SamplingParams(**values)


@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_completions_whole_streamed_and_offline_are_the_same(client: openai.OpenAI, offline: LLM, index: int) -> None:
    setting, extra = SETTINGS[index], {**EXTRAS[index], "return_token_ids": True}
    wanted = offline.generate("abc", params_of(setting, EXTRAS[index]))[0].outputs
    for speculative in ("on", "off", 2):
        body = {**extra, "speculative": speculative}
        whole = client.completions.create(model=MODEL, prompt="abc", extra_body=body, **setting)
        assert [(one.token_ids, one.text, one.finish_reason, one.stop_reason) for one in whole.choices] == [  # type: ignore[attr-defined]
            (one.token_ids, one.text, one.finish_reason, one.stop_reason) for one in wanted
        ]
    chunks = list(client.completions.create(model=MODEL, prompt="abc", extra_body=extra, stream=True, **setting))
    for sample in wanted:
        parts = [one for chunk in chunks for one in chunk.choices if one.index == sample.index]
        assert "".join(part.text for part in parts) == sample.text
        assert [token_id for part in parts for token_id in part.token_ids] == sample.token_ids  # type: ignore[attr-defined]
        assert [part.finish_reason for part in parts if part.finish_reason] == [sample.finish_reason]


@pytest.mark.parametrize("index", range(len(SETTINGS)))
def test_chats_whole_streamed_and_offline_are_the_same(client: openai.OpenAI, offline: LLM, index: int) -> None:
    setting, extra = SETTINGS[index], EXTRAS[index]
    wanted = offline.chat(MESSAGES, params_of(setting, extra))[0].outputs
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra, **setting)
    assert [(one.message.content, one.finish_reason) for one in whole.choices] == [
        (one.text, one.finish_reason) for one in wanted
    ]
    chunks = list(
        client.chat.completions.create(model=MODEL, messages=MESSAGES, extra_body=extra, stream=True, **setting)
    )
    for sample in wanted:
        parts = [one for chunk in chunks for one in chunk.choices if one.index == sample.index]
        assert parts[0].delta.role == "assistant"
        assert "".join(part.delta.content or "" for part in parts) == sample.text


def test_usage(client: openai.OpenAI, offline: LLM) -> None:
    setting = SETTINGS[3]
    wanted = offline.generate("abc", SamplingParams(**setting))[0]
    total = sum(len(one.token_ids) for one in wanted.outputs)
    usage = client.completions.create(model=MODEL, prompt="abc", **setting).usage
    assert usage is not None
    counts = (len(wanted.prompt_token_ids), total, len(wanted.prompt_token_ids) + total)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == counts
    stream = client.completions.create(
        model=MODEL, prompt="abc", stream=True, stream_options={"include_usage": True}, **setting
    )
    *others, last = list(stream)
    assert all(chunk.usage is None for chunk in others) and last.choices == []
    assert last.usage is not None and last.usage.completion_tokens == total


def test_several_prompts_in_one_request(client: openai.OpenAI, offline: LLM) -> None:
    prompts: list[str] = ["abc", "x y", "hello"]
    setting: dict[str, Any] = {"temperature": 0.9, "seed": 4, "n": 2, "max_tokens": 9}
    wanted = [one.text for output in offline.generate(prompts, SamplingParams(**setting)) for one in output.outputs]
    whole = client.completions.create(model=MODEL, prompt=prompts, **setting)
    assert [(one.index, one.text) for one in whole.choices] == list(enumerate(wanted))
    texts = [""] * len(wanted)
    for chunk in client.completions.create(model=MODEL, prompt=prompts, stream=True, **setting):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == wanted
    ids = offline.get_tokenizer().encode("abc")
    from_ids = client.completions.create(model=MODEL, prompt=ids, **setting)
    assert [one.text for one in from_ids.choices] == wanted[:2]


def test_echo(client: openai.OpenAI) -> None:
    plain = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5).choices[0].text
    echoed = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5, echo=True)
    assert echoed.choices[0].text == "abc" + plain
    stream = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=5, echo=True, stream=True)
    assert "".join(choice.text for chunk in stream for choice in chunk.choices) == "abc" + plain


def test_logprobs_of_completions(client: openai.OpenAI, offline: LLM) -> None:
    wanted = offline.generate("abc", SamplingParams(temperature=0.0, max_tokens=6, logprobs=2))[0].outputs[0]
    assert wanted.logprobs is not None
    whole = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=6, logprobs=2).choices[0]
    assert whole.logprobs is not None and whole.logprobs.top_logprobs is not None
    chosen = [one[token_id].logprob for one, token_id in zip(wanted.logprobs, wanted.token_ids, strict=True)]
    assert whole.logprobs.token_logprobs == pytest.approx(chosen, rel=1e-6)
    assert [max(one.values()) for one in whole.logprobs.top_logprobs] == pytest.approx(chosen, rel=1e-6)  # greedy
    assert whole.logprobs.text_offset == [0, 1, 2, 3, 4, 5]  # one byte a token
    stream = client.completions.create(model=MODEL, prompt="abc", temperature=0, max_tokens=6, logprobs=2, stream=True)
    parts = [choice.logprobs for chunk in stream for choice in chunk.choices if choice.logprobs is not None]
    assert [value for part in parts for value in part.token_logprobs or []] == whole.logprobs.token_logprobs
    assert [value for part in parts for value in part.text_offset or []] == whole.logprobs.text_offset


def test_logprobs_of_chats(client: openai.OpenAI) -> None:
    setting: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 8, "logprobs": True}
    choice = client.chat.completions.create(model=MODEL, messages=MESSAGES, top_logprobs=3, **setting).choices[0]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 8
    for entry in choice.logprobs.content:
        assert len(entry.top_logprobs) == 3 and entry.logprob <= entry.top_logprobs[0].logprob + 1e-6
        assert [one.logprob for one in entry.top_logprobs] == sorted(
            (o.logprob for o in entry.top_logprobs), reverse=True
        )
    bare = client.chat.completions.create(model=MODEL, messages=MESSAGES, **setting).choices[0]
    assert bare.logprobs is not None and bare.logprobs.content is not None
    assert [one.top_logprobs for one in bare.logprobs.content] == [[]] * 8
    assert [one.logprob for one in bare.logprobs.content] == [one.logprob for one in choice.logprobs.content]


def test_prompt_logprobs(client: openai.OpenAI, offline: LLM) -> None:
    wanted = offline.generate("abc", SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=1))[0]
    assert wanted.prompt_logprobs is not None
    extra = {"prompt_logprobs": 1}
    choice = client.completions.create(
        model=MODEL, prompt="abc", temperature=0, max_tokens=2, extra_body=extra
    ).choices[0]
    first, *others = choice.prompt_logprobs  # type: ignore[attr-defined]
    assert first is None and len(others) == 3
    for shown, entries in zip(others, wanted.prompt_logprobs[1:], strict=True):
        assert entries is not None
        assert {int(key): one["logprob"] for key, one in shown.items()} == pytest.approx(
            {key: one.logprob for key, one in entries.items()}, rel=1e-6
        )


ENUM = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"enum": ["ab", "cd"]}}}


@pytest.mark.parametrize(
    ("extra", "pattern"),
    [
        ({"response_format": ENUM}, '"ab"|"cd"'),
        ({"guided_regex": "[a-c]{3}x"}, "[a-c]{3}x"),
        ({"structured_outputs": {"choice": ["left", "right"]}}, "left|right"),
        ({"guided_choice": ["north"]}, "north"),
    ],
)
def test_structured_outputs(client: openai.OpenAI, extra: dict[str, Any], pattern: str) -> None:
    setting: dict[str, Any] = {"temperature": 1.0, "seed": 3, "max_tokens": 40}
    texts = {
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, extra_body={**extra, "speculative": speculative}, **setting
        )
        .choices[0]
        .message.content
        for speculative in ("on", "off")
    }
    assert len(texts) == 1 and re.fullmatch(pattern, texts.pop() or "")


def test_tools_reach_the_template(pair: tuple[Path, Path], client: openai.OpenAI) -> None:
    """The tiny template ignores tools, so only refusals and acceptance show here; the prompt stays the same."""
    tools: Any = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    with_tools = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, tools=tools, temperature=0, max_tokens=4
    )
    without = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=4)
    assert with_tools.choices[0].message.content == without.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="tool_choice"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=tools, tool_choice="required")


def test_the_speculation_block(client: openai.OpenAI, offline: LLM) -> None:
    whole = client.completions.create(
        model=MODEL, prompt="abc", temperature=0, max_tokens=30, extra_body={"ignore_eos": True}
    )
    block = whole.metrics["speculative_decoding"]  # type: ignore[attr-defined]
    histogram = block["acceptance_histogram"]
    assert block["num_spec_tokens"] == NUM_DRAFTS and len(histogram) == NUM_DRAFTS + 1
    assert sum(histogram) == block["num_spec_steps"] > 0
    assert sum(count * index for index, count in enumerate(histogram)) == block["num_accepted_draft_tokens"] > 0
    assert block["mean_acceptance_length"] == 1 + block["num_accepted_draft_tokens"] / block["num_spec_steps"]
    off = client.completions.create(
        model=MODEL, prompt="abc", temperature=0, max_tokens=30, extra_body={"speculative": "off"}
    )
    assert off.metrics["speculative_decoding"]["num_spec_steps"] == 0  # type: ignore[attr-defined]


def test_many_clients_at_once_get_their_own_ids(client: openai.OpenAI, offline: LLM) -> None:
    settings = [{"temperature": 0.8, "seed": seed, "max_tokens": 10 + seed} for seed in range(24)]
    wanted = [one.outputs[0].text for one in offline.generate(["abc"] * 24, [SamplingParams(**s) for s in settings])]  # type: ignore[arg-type]

    def ask(index: int) -> str:
        if index % 2:
            stream = client.completions.create(model=MODEL, prompt="abc", stream=True, **settings[index])  # type: ignore[call-overload]
            return "".join(choice.text for chunk in stream for choice in chunk.choices)
        text: str = client.completions.create(model=MODEL, prompt="abc", **settings[index]).choices[0].text  # type: ignore[call-overload]
        return text

    with ThreadPoolExecutor(24) as pool:
        assert list(pool.map(ask, range(24))) == wanted


def test_models_version_health_and_tokens(client: openai.OpenAI, server: RunningServer, offline: LLM) -> None:
    card = client.models.list().data[0]
    assert card.id == MODEL and card.max_model_len == offline.info["max_model_len"]  # type: ignore[attr-defined]
    assert client.models.retrieve(MODEL).id == MODEL
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/health").status_code == 200
        assert http.get("/version").json() == {"version": __version__}
        tokenizer = offline.get_tokenizer()
        ids = tokenizer.encode("a b\u20ac")
        reply = http.post("/tokenize", json={"model": MODEL, "prompt": "a b\u20ac", "return_token_strs": True}).json()
        assert (reply["tokens"], reply["count"]) == (ids, len(ids)) and reply["token_strs"][1] == "a"
        bare = http.post("/tokenize", json={"prompt": "a b\u20ac", "add_special_tokens": False}).json()
        assert bare["tokens"] == ids[1:]
        chat = http.post("/tokenize", json={"messages": MESSAGES}).json()
        assert chat["tokens"] == offline.chat(MESSAGES, SamplingParams(max_tokens=1))[0].prompt_token_ids
        assert http.post("/detokenize", json={"tokens": ids[1:]}).json() == {"prompt": "a b\u20ac"}


def test_a_draft_is_swapped_in_a_running_server(pair: tuple[Path, Path], offline: LLM, tmp_path: Path) -> None:
    """Another seed knows other successors badly: fewer drafts are accepted, the ids stay."""
    target = write_successor_target(tmp_path / "target")
    other = write_successor_draft(tmp_path / "other", target, seed=7).directory
    body = {"prompt": "abc", "temperature": 0, "max_tokens": 60, "ignore_eos": True}
    wanted = offline.generate("abc", SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True))[0].outputs[0].text
    with running_server(*pair, enable_admin=True) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == wanted
        for bad in ({}, {"model": "nowhere"}, {"model": str(pair[0])}):
            reply = http.post("/swap_draft", json=bad)
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, "model")
        assert http.post("/swap_draft", json={"model": str(other)}).status_code == 200
        assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == wanted
