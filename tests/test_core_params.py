"""SamplingParams on their way to the core: every field arrives, and what depends on the model is checked."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_tokenizer import VOCAB_SIZE, write_tiny_tokenizer

from eagle31rt import SamplingParams, _core
from eagle31rt.core_params import CoreParamsMaker
from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.logprobs import Logprob, logprob_dict, prompt_logprob_list
from eagle31rt.tokenizer import Tokenizer

INFO = {"vocab_size": VOCAB_SIZE, "max_model_len": 100, "num_speculative_tokens": 4, "eos_token_ids": [2]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_tiny_tokenizer(folder)
    return Tokenizer(folder)


@pytest.fixture
def maker(tokenizer: Tokenizer) -> CoreParamsMaker:
    return CoreParamsMaker(INFO, tokenizer)


def core(maker: CoreParamsMaker, seed: int = 0, sample_index: int = 0, **params: Any) -> _core.SamplingParams:
    return maker.prepare(SamplingParams(**params)).make(seed, sample_index)


def test_every_parameter_arrives(maker: CoreParamsMaker) -> None:
    values: dict[str, Any] = {"temperature": 0.75, "top_k": 7, "top_p": 0.5, "min_p": 0.25, "max_tokens": 9}
    values |= {"min_tokens": 3, "ignore_eos": True, "stop_token_ids": [4, 5], "num_speculative_tokens": 2}
    values |= {"repetition_penalty": 1.5, "frequency_penalty": -0.5, "presence_penalty": 2.0}
    values |= {"logit_bias": {3: -100.0, 95: 0.5}, "allowed_token_ids": [95, 3]}
    made = core(maker, seed=2**64 - 1, **values)
    assert {name: getattr(made, name) for name in values} == values
    assert made.seed == 2**64 - 1


def test_defaults_ask_for_nothing(maker: CoreParamsMaker) -> None:
    made, untouched = core(maker, top_k=-1), _core.SamplingParams()
    names = [name for name in dir(untouched) if not name.startswith("_")]
    assert {name: getattr(made, name) for name in names} == {name: getattr(untouched, name) for name in names}
    assert core(maker, max_tokens=None).max_tokens == INFO["max_model_len"]


def test_bad_words_are_tokenised_with_and_without_a_space(tmp_path: Path) -> None:
    """As vLLM does: the spelling after a space counts if it begins differently and is as long."""
    write_tiny_tokenizer(tmp_path)
    tokenizer = Tokenizer(tmp_path)

    class WithWords:
        """Tells words at the start of a text from those after a space, as large vocabularies do."""

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert not add_special_tokens
            return [{"ab": [70], " ab": [71], "abc": [70, 5], " abc": [71, 6, 7]}[text]][0]

    maker = CoreParamsMaker(INFO, WithWords())  # type: ignore[arg-type]
    assert core(maker, bad_words=["ab", " ab", "abc"]).bad_words == [[70], [71], [70], [71], [70, 5]]
    bytes_only = core(CoreParamsMaker(INFO, tokenizer), bad_words=["ab"])
    assert bytes_only.bad_words == [tokenizer.encode("ab", add_special_tokens=False)]  # " ab" is longer


def test_logprobs(maker: CoreParamsMaker, tokenizer: Tokenizer) -> None:
    assert (core(maker, logprobs=0).num_logprobs, core(maker, logprobs=20).num_logprobs) == (0, 20)
    made = [core(maker, sample_index=index, prompt_logprobs=3).num_prompt_logprobs for index in range(2)]
    assert made == [3, -1]  # the samples have one prompt
    with pytest.raises(InvalidArgumentError, match=r"logprobs \(21\) is more than max_logprobs \(20\), which .* to 64"):
        core(maker, logprobs=21)
    with pytest.raises(InvalidArgumentError, match=r"prompt_logprobs \(-1, all 96 ids of the vocabulary\) is more"):
        core(maker, prompt_logprobs=-1)
    small = CoreParamsMaker({**INFO, "vocab_size": 50}, tokenizer, max_logprobs=64)
    assert core(small, logprobs=-1).num_logprobs == 50


@pytest.mark.parametrize("limit", [-1, 65, True, 1.0])
def test_bad_max_logprobs(limit: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="max_logprobs must be an integer from 0 to 64"):
        CoreParamsMaker(INFO, None, limit)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [96]}, r"stop_token_ids contains 96, which is outside the vocabulary \(0 to 95\)"),
        ({"allowed_token_ids": [1, 96]}, "allowed_token_ids contains 96"),
        ({"logit_bias": {96: 1.0}}, "logit_bias contains 96"),
        ({"num_speculative_tokens": 5}, r"num_speculative_tokens \(5\) is more than the engine's \(4\)"),
        ({"bad_words": ["a", " "]}, r"bad_words\[1\] is only white space"),
        ({"logits_processors": [lambda logits: None]}, "got one with 1 parameters"),
        ({"structured_outputs": {"regex": "(a"}}, r"structured_outputs\.regex does not compile"),
    ],
)
def test_what_the_model_refuses(maker: CoreParamsMaker, params: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        core(maker, **params)


def test_text_needs_a_tokenizer() -> None:
    maker = CoreParamsMaker(INFO, None)
    for name, value in (("bad_words", ["a"]), ("structured_outputs", {"regex": "a"})):
        with pytest.raises(InvalidArgumentError, match=rf"SamplingParams\.{name} needs a tokenizer"):
            core(maker, **{name: value})


def test_a_processor_without_a_signature(maker: CoreParamsMaker) -> None:
    with pytest.raises(UnsupportedError, match="wrap it in a function"):
        core(maker, logits_processors=[type])


def test_truncation_of_prompts(maker: CoreParamsMaker) -> None:
    ids = list(range(200))
    kept = [len(maker.truncate_prompt(ids, SamplingParams(truncate_prompt_tokens=n))) for n in (None, -1, 3, 500)]
    assert kept == [200, 99, 3, 200]
    assert maker.truncate_prompt(ids, SamplingParams(truncate_prompt_tokens=3)) == [197, 198, 199]


def test_each_sample_has_its_own_constraint(maker: CoreParamsMaker) -> None:
    prepared = maker.prepare(SamplingParams(structured_outputs={"regex": "ab"}))
    first, second = (prepared.make(0, index).constraint for index in range(2))
    assert first is not None and second is not None and first is not second
    mask = np.zeros(3, np.uint32)
    first.fill_mask(mask)
    assert int(mask[0]) == 1 << 3  # the id of "a"


def test_python_objects_live_as_long_as_the_parameters_and_may_die_anywhere() -> None:
    def processor(prompt: list[int], output: list[int], logits: np.ndarray) -> None: ...

    params = _core.SamplingParams()
    params.logits_processors = [processor]
    alive = weakref.ref(processor)
    del processor
    gc.collect()
    assert params.logits_processors == [alive()]
    held = [params]
    del params
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("constraint", object(), "constraint has no method fill_mask"),
        ("logits_processors", [3], "logits_processors must be callables"),
    ],
)
def test_objects_of_the_wrong_kind(name: str, value: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        setattr(_core.SamplingParams(), name, value)


class Entry:
    def __init__(self, token_id: int, logprob: float, rank: int, top_ids: list[int], top_logprobs: list[float]) -> None:
        self.token_id, self.logprob, self.rank = token_id, logprob, rank
        self.top_ids, self.top_logprobs = top_ids, top_logprobs


def test_logprob_dicts() -> None:
    outside: Any = Entry(7, -3.0, 9, [4, 5], [-0.5, -1.0])
    assert logprob_dict(outside, str) == {7: Logprob(-3.0, 9, "7"), 4: Logprob(-0.5, 1, "4"), 5: Logprob(-1.0, 2, "5")}
    assert list(logprob_dict(outside, None)) == [7, 4, 5]
    inside: Any = Entry(5, -1.0, 2, [4, 5], [-0.5, -1.0])
    assert logprob_dict(inside, None) == {5: Logprob(-1.0, 2), 4: Logprob(-0.5, 1)}
    first: Any = Entry(3, 0.0, 0, [], [])
    assert prompt_logprob_list([first, inside], None) == [None, {5: Logprob(-1.0, 2), 4: Logprob(-0.5, 1)}]
