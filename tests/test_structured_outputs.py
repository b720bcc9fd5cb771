"""Structured outputs through the engine: outputs match their schema, and speculation changes no token."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.successor import EOS, write_successor_draft, write_successor_target
from support.tiny_tokenizer import JSON_TEXT, write_tiny_tokenizer

from eagle31rt import LLM, SamplingParams, grammars
from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.inputs import Prompt

if TYPE_CHECKING:
    from eagle31rt.demo_model import DemoPair

pytest.importorskip("llguidance")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]{1,4}$"}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
CASES: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "json": ({"json": PERSON, "disable_any_whitespace": True}, lambda text: set(json.loads(text)) == {"name", "age"}),
    "regex": ({"regex": "([a-f]{2}-){3}[0-9]{1,3}x"}, lambda text: re.fullmatch("([a-f]{2}-){3}[0-9]{1,3}x", text)),
    "choice": ({"choice": ["yes", "no", "never"]}, ["yes", "no", "never"].__contains__),
    "lark": ({"grammar": 'start: item+ "."\nitem: "a" | "bc" | "{" item "}"'}, lambda text: text.endswith(".")),
    "gbnf": ({"grammar": 'root ::= ("a" | "b"){5} "c"'}, lambda text: re.fullmatch("[ab]{5}c", text)),
    "wide": ({"regex": "[^x]{30}x?"}, lambda text: re.fullmatch("[^x]{30}x?", text, re.DOTALL)),
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[LLM, LLM]:
    """With speculation, and without."""
    folder: Path = tmp_path_factory.mktemp("pair")
    target = write_successor_target(folder / "target")
    write_tiny_tokenizer(target.directory, text=JSON_TEXT)
    draft = write_successor_draft(folder / "draft", target).directory
    common: dict[str, Any] = {"num_threads": 1, "kv_cache_memory_bytes": 32 << 20}
    speculation = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 4}
    return LLM(target.directory, speculative_config=speculation, **common), LLM(target.directory, **common)


def params(name: str, **changes: Any) -> SamplingParams:
    values = {"temperature": 0.0, "max_tokens": 200, "structured_outputs": CASES[name][0], **changes}
    return SamplingParams(**values)


def test_all_kinds_in_one_batch_match_and_equal_plain_decoding(engines: tuple[LLM, LLM]) -> None:
    speculating, plain = engines
    wanted = [
        (name, params(name, temperature=temperature, seed=seed))
        for name in CASES
        for temperature, seed in ((0.0, 0), (1.0, 1), (1.0, 2))
    ]
    prompts = [f"say {index % 5}" for index in range(len(wanted))]
    together = speculating.generate(prompts, [one for _, one in wanted], use_tqdm=False)
    num_ended = 0
    for prompt, (name, one), output in zip(prompts, wanted, together, strict=True):
        sample, alone = output.outputs[0], plain.generate([prompt], one, use_tqdm=False)[0].outputs[0]
        assert vars(sample) == vars(alone), name
        assert sample.finish_reason in ("stop", "length"), (name, sample.stop_reason)
        if sample.finish_reason == "stop":
            num_ended += 1
            assert sample.stop_reason is None and CASES[name][1](sample.text), (name, sample.text)
    assert num_ended >= len(wanted) // 2
    wide = [output.metrics for output, (name, _) in zip(together, wanted, strict=True) if name == "wide"]
    assert sum(one.num_accepted_tokens for one in wide) > 5, "drafts within the grammar are accepted"


def test_the_samples_of_a_request_have_their_own_state(engines: tuple[LLM, LLM]) -> None:
    many = [llm.generate(["say"], params("json", n=4, temperature=1.3, seed=8), use_tqdm=False)[0] for llm in engines]
    assert [vars(sample) for sample in many[0].outputs] == [vars(sample) for sample in many[1].outputs]
    assert len({tuple(sample.token_ids) for sample in many[0].outputs}) > 1


def test_the_end_of_sequence_only_where_the_text_may_end(engines: tuple[LLM, LLM]) -> None:
    """The model is made to prefer the end of sequence everywhere; the grammar keeps it back until then."""
    for llm in engines:
        output = llm.generate(["a"], params("regex", logit_bias={EOS: 100.0}), use_tqdm=False)[0].outputs[0]
        assert output.finish_reason == "stop" and CASES["regex"][1](output.text)
        open_ended = params("regex", logit_bias={EOS: 100.0}, structured_outputs={"regex": "[a-z]{5,}"})
        output = llm.generate(["a"], open_ended, use_tqdm=False)[0].outputs[0]
        assert (len(output.text), output.token_ids[-1], output.finish_reason) == (5, EOS, "stop")


def test_a_finished_text_ends_the_request_without_an_end_of_sequence(engines: tuple[LLM, LLM]) -> None:
    for llm in engines:
        output = llm.generate(["a"], params("gbnf", ignore_eos=True), use_tqdm=False)[0].outputs[0]
        assert (len(output.token_ids), output.finish_reason, output.stop_reason) == (6, "stop", None)
        cut = llm.generate(["a"], params("gbnf", max_tokens=3), use_tqdm=False)[0].outputs[0]
        assert (len(cut.token_ids), cut.finish_reason) == (3, "length")


def test_a_state_without_any_token_ends_its_request_only(engines: tuple[LLM, LLM]) -> None:
    """A ban and a grammar that leave nothing: found out only when that place is reached."""
    for llm in engines:
        alone = llm.generate(["b"], params("json"), use_tqdm=False)[0].outputs[0]
        stuck = params("regex", bad_words=["x"])
        outputs = llm.generate(["a", "b"], [stuck, params("json")], use_tqdm=False)
        assert outputs[0].outputs[0].finish_reason in ("error", "length")
        assert vars(outputs[1].outputs[0]) == vars(alone)
        impossible = params("choice", allowed_token_ids=[5])
        assert llm.generate(["a"], impossible, use_tqdm=False)[0].outputs[0].finish_reason == "error"


class BrokenConstraint(grammars.GrammarConstraint):
    def fill_mask(self, allowed: Any) -> None:
        if len(self._token_ids) == 3:
            raise RuntimeError("broken")
        super().fill_mask(allowed)


def test_a_failing_constraint_ends_its_request_only(engines: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    for llm in engines:
        expected = llm.generate(["a", "b"], params("json"), use_tqdm=False)
        make = llm._params_maker._compiler._matcher  # type: ignore[union-attr]
        matcher = make("structured_outputs.regex", "regex", "[a-e]{10}")
        broken, sound = params("regex", structured_outputs=None), params("json")
        requests = llm._make_requests(
            [Prompt("a", [5, 6]), Prompt("b", llm.get_tokenizer().encode("b"))], [broken, sound]
        )
        requests[0].prepared._make_constraint = lambda matcher=matcher: BrokenConstraint(matcher)
        outputs = llm._run(requests, show_progress=False)
        failed = outputs[0].outputs[0]
        assert (failed.finish_reason, len(failed.token_ids)) == ("error", 3)
        assert "constraint failed: fill_mask raised RuntimeError: broken" in str(failed.stop_reason)
        assert vars(outputs[1].outputs[0]) == vars(expected[1].outputs[0])


def test_bad_ones_are_refused_before_anything_runs(engines: tuple[LLM, LLM]) -> None:
    llm = engines[0]
    with pytest.raises(InvalidArgumentError, match=r"prompt 1: structured_outputs\.regex does not compile"):
        llm.generate(["a", "b"], [params("json"), params("json", structured_outputs={"regex": "(a"})])
    with pytest.raises(InvalidArgumentError, match=r"structured_outputs\.json does not compile: Unsatisfiable"):
        llm.generate(["a"], params("json", structured_outputs={"json": {"allOf": [{"type": "null"}, {"enum": [1]}]}}))
    assert llm.info["num_free_pages"] == llm.info["num_pages"]


def test_without_llguidance(engines: tuple[LLM, LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(engines[0]._params_maker, "_compiler", None)
    with pytest.raises(UnsupportedError, match=r"eagle31rt\[structured\]"):
        engines[0].generate(["a"], params("regex"))


def test_a_real_vocabulary(demo_pair: DemoPair) -> None:
    """Tokens of many characters, real schemas, real acceptance."""
    city = {"type": "string", "maxLength": 20}
    schema = {"type": "object", "properties": {"city": city, "rank": {"type": "integer"}}, "required": ["city", "rank"]}
    wanted = [
        {"json": {**schema, "additionalProperties": False}},
        {"regex": r"The capital of [A-Z][a-z]+ is [A-Z][a-z]+\."},
        {"choice": ["Paris", "London", "Berlin"]},
        {"regex": "[\u4e00-\u9fff]{2}\u20ac"},
    ]
    common: dict[str, Any] = {"max_model_len": 256, "kv_cache_memory_bytes": 64 << 20}
    speculation = {"method": "eagle3", "model": str(demo_pair.draft), "num_speculative_tokens": 3}
    conversations = [[{"role": "user", "content": "Where is the Louvre? Answer in one line."}]] * len(wanted)
    params = [SamplingParams(temperature=0.0, max_tokens=48, structured_outputs=one) for one in wanted]
    speculating, plain = (
        LLM(demo_pair.target, speculative_config=speculation, **common),
        LLM(demo_pair.target, **common),
    )
    outputs = speculating.chat(conversations, params, use_tqdm=False)
    assert [vars(one.outputs[0]) for one in outputs] == [
        vars(one.outputs[0]) for one in plain.chat(conversations, params, use_tqdm=False)
    ]
    texts = [output.outputs[0].text for output in outputs]
    assert set(json.loads(texts[0])) == {"city", "rank"}
    assert re.fullmatch(wanted[1]["regex"], texts[1]) and texts[2] in wanted[2]["choice"]
    assert re.fullmatch(wanted[3]["regex"], texts[3])
