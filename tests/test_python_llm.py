"""LLM on a tiny pair: every form of input, order, seeds, streams, errors that name the index, and cancelling."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.successor import EOS, write_successor_draft, write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer

from eagle31rt import LLM, RequestOutput, SamplingParams
from eagle31rt.errors import CheckpointError, InvalidArgumentError, ResourceError, UnsupportedError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)
SAMPLED = SamplingParams(temperature=0.9, seed=5, max_tokens=12)


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("pair")
    target = write_successor_target(folder / "target")
    write_tiny_tokenizer(target.directory)
    return target.directory, write_successor_draft(folder / "draft", target).directory


@pytest.fixture(scope="module")
def plain(directories: tuple[Path, Path]) -> LLM:
    return LLM(directories[0], num_threads=1, kv_cache_memory_bytes=16 << 20)


@pytest.fixture(scope="module")
def llm(directories: tuple[Path, Path]) -> LLM:
    speculation = {"method": "eagle3", "model": str(directories[1]), "num_speculative_tokens": 4}
    return LLM(directories[0], speculative_config=speculation, num_threads=1, kv_cache_memory_bytes=16 << 20)


def ids_of(outputs: list[RequestOutput]) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in outputs]


def test_all_forms_of_a_prompt_are_the_same(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("ab c")
    assert ids[0] == 1  # the post-processor's beginning of sequence
    forms: list[Any] = ["ab c", ["ab c"], ids, [ids], tuple(ids), np.array(ids).tolist(), {"prompt": "ab c"}]
    forms += [
        {"prompt_token_ids": ids},
        [{"prompt": "shown only", "prompt_token_ids": ids}],
        [np.array(ids)[i] for i in range(len(ids))],
    ]
    results = [llm.generate(form, GREEDY) for form in forms]
    assert all(len(result) == 1 and result[0].prompt_token_ids == ids for result in results)
    assert len({tuple(ids_of(result)[0]) for result in results}) == 1
    assert [results[0][0].prompt, results[2][0].prompt, results[8][0].prompt] == ["ab c", None, "shown only"]
    assert llm.generate([], GREEDY) == []


def test_outputs_and_metrics(llm: LLM) -> None:
    output = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True))[0]
    sample, metrics = output.outputs[0], output.metrics
    assert output.finished and sample.finished() and sample.index == 0
    assert (sample.finish_reason, sample.stop_reason, len(sample.token_ids)) == ("length", None, 20)
    assert sample.text == llm.get_tokenizer().decode(sample.token_ids)
    assert metrics.num_drafts > 0 and 0 < metrics.num_accepted_tokens <= metrics.num_draft_tokens
    assert metrics.acceptance_length == 1 + metrics.num_accepted_tokens / metrics.num_drafts
    assert len(metrics.acceptance_per_position) == 4
    assert sum(metrics.acceptance_per_position) == pytest.approx(metrics.acceptance_length - 1)


def test_mixed_batch_keeps_its_order_and_equals_plain_decoding_alone(llm: LLM, plain: LLM) -> None:
    prompts: list[Any] = ["a", [5, 6, 7], {"prompt": "x y z."}, "\u20ac\U0001f600", [1] * 40]
    params = [GREEDY, SAMPLED, SamplingParams(temperature=1.2, seed=9, max_tokens=3, top_k=5), GREEDY, SAMPLED]
    together = llm.generate(prompts, params)
    alone = [plain.generate([prompt], one)[0] for prompt, one in zip(prompts, params, strict=True)]
    assert ids_of(together) == ids_of(alone)
    assert [len(ids) for ids in ids_of(together)][2] == 3
    assert [output.outputs[0].text for output in together] == [output.outputs[0].text for output in alone]


def test_speculation_can_be_set_per_request(llm: LLM, plain: LLM) -> None:
    off, two = (SamplingParams(temperature=0.0, max_tokens=12, num_speculative_tokens=k) for k in (0, 2))
    outputs = llm.generate(["abc"] * 3, [off, two, GREEDY])
    assert [output.metrics.num_drafts > 0 for output in outputs] == [False, True, True]
    assert [len(output.metrics.acceptance_per_position) for output in outputs[1:]] == [2, 4]
    assert outputs[0].metrics.acceptance_length == 1.0
    assert ids_of(outputs) == ids_of(plain.generate(["abc"] * 3, GREEDY))
    with pytest.raises(
        InvalidArgumentError, match=r"prompt 1: .*num_speculative_tokens \(5\) is more than the engine's \(4\)"
    ):
        llm.generate(["a", "b"], [off, SamplingParams(num_speculative_tokens=5)])


@pytest.mark.parametrize(
    "keys",
    [
        {"num_speculative_tokens": 3, "speculative_token_tree": "[(0,), (1,), (0, 0)]"},
        {"num_speculative_tokens": 20, "tree_top_k": 3},
        {"num_speculative_tokens": 4, "policy": "auto"},
        {"num_speculative_tokens": 4, "tree_top_k": 1},
    ],
)
def test_keys_that_shape_the_drafts(directories: tuple[Path, Path], plain: LLM, keys: dict[str, Any]) -> None:
    speculation = {"method": "eagle3", "model": str(directories[1]), **keys}
    drafting = LLM(directories[0], speculative_config=speculation, num_threads=1, kv_cache_memory_bytes=16 << 20)
    params = SamplingParams(temperature=0.0, max_tokens=40)
    outputs = drafting.generate(["abc", "x y z"], params)
    assert ids_of(outputs) == ids_of(plain.generate(["abc", "x y z"], params))
    if "policy" not in keys:
        drafted = outputs[0].metrics.num_draft_tokens / outputs[0].metrics.num_drafts
        assert keys["num_speculative_tokens"] * 0.7 < drafted <= keys["num_speculative_tokens"]


def test_stop_ids(llm: LLM) -> None:
    ids = ids_of(llm.generate("abc", GREEDY))[0]
    stopped = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=[ids[4]]))[0].outputs[0]
    assert (stopped.token_ids, stopped.finish_reason, stopped.stop_reason) == (ids[:5], "stop", ids[4])
    assert stopped.text == llm.get_tokenizer().decode(ids[:4])  # the stop token leaves no text


def test_end_of_sequence_is_no_stop_reason(llm: LLM) -> None:
    """The successor cycle passes through every token, so plain text reaches the end of sequence sometime."""
    output = llm.generate("abc", SamplingParams(temperature=0.0, max_tokens=None))[0].outputs[0]
    assert (output.token_ids[-1], output.finish_reason, output.stop_reason) == (EOS, "stop", None)
    assert EOS not in output.token_ids[:-1]


def test_max_tokens_none_reaches_the_length_of_the_model(directories: tuple[Path, Path]) -> None:
    short = LLM(directories[0], max_model_len=40, num_threads=1, kv_cache_memory_bytes=1 << 20)
    output = short.generate([[5] * 10], SamplingParams(temperature=0.0, max_tokens=None, ignore_eos=True))[0]
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (30, "length")
    with pytest.raises(InvalidArgumentError, match="prompt 1: "):
        short.generate([[5], [5] * 40], GREEDY)


def test_other_arguments_of_calls(llm: LLM) -> None:
    for call in (llm.generate, llm.chat):
        assert call([], GREEDY, lora_request=None) == []
        with pytest.raises(TypeError, match="unexpected argument 'lora_requets'"):
            call([], GREEDY, lora_requets=None)


def test_seeds(llm: LLM, directories: tuple[Path, Path]) -> None:
    free = SamplingParams(temperature=1.5, max_tokens=12)
    assert len({tuple(ids) for ids in ids_of(llm.generate(["abc"] * 4, free))}) > 1
    seeded = SamplingParams(temperature=1.5, max_tokens=12, seed=3)
    assert len({tuple(ids) for ids in ids_of(llm.generate(["abc"] * 4, seeded))}) == 1
    runs = [
        ids_of(LLM(directories[0], seed=7, num_threads=1, kv_cache_memory_bytes=1 << 20).generate(["abc"] * 4, free))
        for _ in range(2)
    ]
    assert runs[0] == runs[1] and len({tuple(ids) for ids in runs[0]}) > 1


def test_n_samples(llm: LLM) -> None:
    many = llm.generate("abc", SamplingParams(n=4, temperature=1.5, seed=3, max_tokens=12))[0]
    assert [sample.index for sample in many.outputs] == [0, 1, 2, 3]
    assert len({tuple(sample.token_ids) for sample in many.outputs}) > 1
    one = llm.generate("abc", SamplingParams(temperature=1.5, seed=3, max_tokens=12))[0]
    assert many.outputs[0].token_ids == one.outputs[0].token_ids
    assert many.metrics.num_drafts > one.metrics.num_drafts


def test_detokenize_off_and_no_tokenizer(directories: tuple[Path, Path], llm: LLM) -> None:
    assert llm.generate("abc", SamplingParams(detokenize=False, max_tokens=3))[0].outputs[0].text == ""
    bare = LLM(directories[0], skip_tokenizer_init=True, num_threads=1, kv_cache_memory_bytes=1 << 20)
    assert len(ids_of(bare.generate([[5, 6]], GREEDY))[0]) > 0
    with pytest.raises(InvalidArgumentError, match="prompt 0: there is no tokenizer"):
        bare.generate("abc")


def test_chat(llm: LLM) -> None:
    user = [{"role": "user", "content": "ab"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    single = llm.chat(user, GREEDY)
    assert single[0].prompt == "<s>user:ab</s>bot:"
    assert single[0].prompt_token_ids.count(1) == 1  # the template's beginning of sequence, no second one
    assert ids_of(llm.chat([user, user], GREEDY)) == ids_of(single) * 2
    assert llm.chat(parts, GREEDY)[0].prompt == "<s>user:a\nb</s>bot:"
    assert llm.chat(user, GREEDY, add_generation_prompt=False)[0].prompt == "<s>user:ab</s>"
    template = "{{ messages[0].content }}{{ mark }}"
    assert llm.chat(user, GREEDY, chat_template=template, chat_template_kwargs={"mark": "!"})[0].prompt == "ab!"
    assert llm.chat([], GREEDY) == []


@pytest.mark.parametrize(
    ("messages", "error", "message"),
    [
        ("hello", InvalidArgumentError, "messages must be a list of dicts"),
        ([[{"role": "user", "content": "a"}], []], InvalidArgumentError, "conversation 1: .*at least one message"),
        ([{"content": "a"}], InvalidArgumentError, "must be a dict with 'role'"),
        ([{"role": "user", "content": 3}], InvalidArgumentError, "content must be text"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], UnsupportedError, "type 'image_url' is not supported"),
        ([{"role": "user", "content": "\ud800"}], InvalidArgumentError, "conversation 0: .*lone surrogate"),
    ],
)
def test_bad_conversations(llm: LLM, messages: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        llm.chat(messages, GREEDY)


@pytest.mark.parametrize(
    ("prompts", "error", "message"),
    [
        (3, InvalidArgumentError, "prompts must be text, token ids, a dict or a list of these, got int"),
        (b"abc", InvalidArgumentError, "got bytes"),
        (["a", 3.5], InvalidArgumentError, "prompt 1: must be text, token ids or a dict, got float"),
        (["a", []], InvalidArgumentError, "prompt 1: "),
        ([[1, 2], [3, 96]], InvalidArgumentError, r"prompt 1: token id 96 is outside the vocabulary \(0 to 95\)"),
        ([[1], [2**40]], InvalidArgumentError, "prompt 1: token id"),
        ([[1], [-1]], InvalidArgumentError, "prompt 1: token id -1"),
        ([[1], [1, "a"]], InvalidArgumentError, "prompt 1: token ids must be integers"),
        ([[1], [1, True]], InvalidArgumentError, "prompt 1: token ids must be integers"),
        (["a", "b\udfff"], InvalidArgumentError, "prompt 1: .*lone surrogate"),
        (["a", {"promt": "b"}], InvalidArgumentError, "prompt 1: unknown key 'promt'"),
        (["a", {}], InvalidArgumentError, "prompt 1: needs a key"),
        (["a", {"prompt": 3}], InvalidArgumentError, "prompt 1: 'prompt' must be text"),
        (["a", {"prompt": "b", "multi_modal_data": {"image": 1}}], UnsupportedError, "prompt 1: .*multi_modal_data"),
        (["a", [1] * 600], InvalidArgumentError, "prompt 1: "),
    ],
)
def test_a_bad_prompt_raises_before_anything_runs(llm: LLM, prompts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        llm.generate(prompts, GREEDY)
    assert_idle(llm)


def assert_idle(llm: LLM) -> None:
    assert not llm._engine.has_unfinished_requests()
    assert llm._outbox == {}
    assert llm.info["num_free_pages"] == llm.info["num_pages"]
    llm._engine.check()


def test_stream_gives_the_same_in_pieces(llm: LLM) -> None:
    whole = llm.generate("\u20ac\U0001f600abc", GREEDY)[0]
    pieces = list(llm.stream("\u20ac\U0001f600abc", GREEDY))
    assert "".join(piece.text for piece in pieces) == whole.outputs[0].text
    assert [token for piece in pieces for token in piece.token_ids] == whole.outputs[0].token_ids
    assert [piece.output is not None for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert pieces[-1].output is not None and pieces[-1].output.metrics == whole.metrics
    chat = list(llm.stream_chat([{"role": "user", "content": "ab"}], GREEDY))[-1].output
    assert chat is not None and chat.prompt == "<s>user:ab</s>bot:"
    with pytest.raises(InvalidArgumentError, match="streaming needs n = 1"):
        llm.stream("a", SamplingParams(n=2))


def test_streams_and_batches_share_the_engine(llm: LLM, plain: LLM) -> None:
    """Outputs go to whom they belong, whoever makes the steps."""
    expected = ids_of(plain.generate(["abc", "xyz"], GREEDY))
    stream = llm.stream("abc", GREEDY)
    first = next(stream)
    assert ids_of(llm.generate(["xyz"], GREEDY)) == [expected[1]]
    rest = [token for piece in stream for token in piece.token_ids]
    assert [*first.token_ids, *rest] == expected[0]
    assert_idle(llm)


def test_a_closed_stream_is_cancelled(llm: LLM) -> None:
    stream = llm.stream("abc", GREEDY)
    next(stream)
    assert llm._engine.has_unfinished_requests()
    stream.close()  # type: ignore[attr-defined]
    assert_idle(llm)


def test_an_interrupt_cancels_what_was_submitted(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    original, calls = llm._make_outputs_for, []

    def interrupted(request: Any) -> None:
        calls.append(request)
        if len(calls) == 3:
            raise KeyboardInterrupt
        original(request)

    monkeypatch.setattr(llm, "_make_outputs_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "xyz", "a"], GREEDY)
    monkeypatch.undo()
    assert_idle(llm)


def test_threads(llm: LLM, plain: LLM) -> None:
    prompts = ["a", "bc", "def", "ghij", "klmno", "p q"]
    expected = ids_of(plain.generate(prompts, GREEDY))
    results: dict[int, list[int]] = {}

    def work(index: int) -> None:
        for _ in range(3):
            results[index] = ids_of(llm.generate([prompts[index]], GREEDY))[0]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert [results[index] for index in range(len(prompts))] == expected
    assert_idle(llm)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": "some-org/some-model"}, ResourceError, "model: some-org/some-model is not in the local cache.*hub"),
        ({"model": ""}, InvalidArgumentError, "model must be a model directory, a .gguf file or a hub id"),
        ({"dtype": "int8"}, InvalidArgumentError, "dtype must be one of auto"),
        ({"kv_cache_dtype": "fp8"}, UnsupportedError, "kv_cache_dtype='fp8' is not supported.* use one of auto"),
        ({"kv_cache_dtype": "float8"}, InvalidArgumentError, "kv_cache_dtype must be one of auto"),
        ({"max_num_seqs": 0}, InvalidArgumentError, "max_num_seqs must be a positive integer, got 0"),
        ({"block_size": 2.5}, InvalidArgumentError, "block_size must be a positive integer"),
        ({"num_threads": True}, InvalidArgumentError, "num_threads must be a positive integer"),
        ({"seed": -1}, InvalidArgumentError, "seed must be an integer"),
        ({"tokenizer": "nowhere"}, CheckpointError, "tokenizer: there is no directory"),
        ({"speculative_config": {"method": "mtp"}}, InvalidArgumentError, "lacks 'model'"),
        (
            {"speculative_config": {"model": "nowhere", "num_speculative_tokens": 2}},
            CheckpointError,
            r"speculative_config\['model'\]: there is no directory",
        ),
        ({"tensor_parallel_size": 2}, UnsupportedError, "tensor_parallel_size=2 is not supported by this version: "),
        ({"tensor_paralel_size": 2}, TypeError, "unexpected argument 'tensor_paralel_size'"),
        ({"max_logprobs": 65}, InvalidArgumentError, "max_logprobs must be an integer from 0 to 64"),
    ],
)
def test_bad_arguments(
    directories: tuple[Path, Path], arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LLM(**{"model": directories[0], **arguments})


def test_a_file_is_no_model_directory(directories: tuple[Path, Path]) -> None:
    with pytest.raises(CheckpointError, match="is a file but no GGUF file; give the directory"):
        LLM(directories[0] / "config.json")
