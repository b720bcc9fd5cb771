"""Text and stop strings of token runs: as if tokens came one at a time, however the stream is cut into runs."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.engine import Request, endless, make_engine, random_prompt, sampling, serve
from support.successor import write_successor_draft, write_successor_target
from support.tiny_tokenizer import write_tiny_tokenizer
from support.traffic import DETERMINISTIC

from eagle31rt import _core, _testing
from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.token_table import read_token_bytes

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
EMOJI = "\U0001f600"
EOS = 0
SPECIAL = 1
# Halves of characters, bytes that are no UTF-8, tokens that overlap each other, one without text.
TOKENS = [b"</s>", b"<tool>", b"a", b"b", b"ab", b"aba", b" ", b" b", b"", EMOJI.encode()[:2], EMOJI.encode()[2:]]
TOKENS += [EMOJI.encode(), b"\xc3", b"\xa9", b"\xff", b"b\xc3", b"\xa9a"]
ALPHABET = "ab \u00e9\u00e8" + EMOJI
TABLE = _core.TokenTable(TOKENS, [i in (EOS, SPECIAL) for i in range(len(TOKENS))], 1)


class Oracle:
    """The whole answer, byte by byte and from all bytes each time."""

    def __init__(self, params: dict[str, Any]) -> None:
        self.ids: list[int] = []
        self.shown = b""
        self.reason = self.stop_string = ""
        self.params = params
        self.stops = [stop.encode() for stop in params.get("stop", ())]

    def add(self, token: int) -> None:
        self.ids.append(token)
        include = self.params.get("include_stop_str_in_output", False)
        ends = token == EOS and len(self.ids) >= self.params.get("min_tokens", 0)
        skipped = token in (EOS, SPECIAL) and self.params.get("skip_special_tokens", True)
        if not skipped and not (ends and not include):
            self._show(TOKENS[token], may_stop=not ends and len(self.ids) > self.params.get("min_tokens", 0))
        if ends:
            self.reason = "stop"
        elif not self.reason and len(self.ids) == self.params["max_tokens"]:
            self.reason = "length"

    def _show(self, new: bytes, may_stop: bool) -> None:
        for byte in new:
            if not self.shown and byte == 0x20 and not self._dropped_space():
                self.spaces = 1
                continue
            self.shown += bytes([byte])
            for stop in self.stops:
                if may_stop and self.shown.endswith(stop):
                    self.reason, self.stop_string = "stop", stop.decode()
                    if not self.params.get("include_stop_str_in_output", False):
                        self.shown = self.shown[: -len(stop)]
                    return

    spaces = 0

    def _dropped_space(self) -> bool:
        return self.spaces == 1

    def certain(self) -> str:
        """What may be told already."""
        if self.reason:
            return self.shown.decode(errors="replace")
        held = 0
        if not self.params.get("include_stop_str_in_output", False):
            for stop in self.stops:
                held = max([held, *(n for n in range(1, len(stop)) if self.shown.endswith(stop[:n]))])
        return codecs.getincrementaldecoder("utf-8")("replace").decode(self.shown[: len(self.shown) - held])


def commit(params: dict[str, Any], runs: Sequence[Sequence[int]]) -> list[_core.StepOutput]:
    outputs: list[_core.StepOutput] = _testing.commit_runs(
        TABLE, sampling(**params), [EOS], [list(run) for run in runs]
    )
    return outputs


PARAMS = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 24)},
    optional={
        "stop": st.lists(st.text(st.sampled_from(ALPHABET), min_size=1, max_size=5), max_size=4),
        "min_tokens": st.just(0) | st.integers(0, 12),
        "include_stop_str_in_output": st.booleans(),
        "skip_special_tokens": st.booleans(),
    },
)


@DETERMINISTIC
@given(
    params=PARAMS,
    ids=st.lists(st.integers(0, len(TOKENS) + 1).map(lambda i: i if i < len(TOKENS) else 2), min_size=1, max_size=24),
    cuts=st.lists(st.integers(1, 23), max_size=10),
)
@example(params={"max_tokens": 9, "stop": ["aba", "bab"]}, ids=[2, 3, 2, 3], cuts=[2])
@example(params={"max_tokens": 9, "stop": ["aab"]}, ids=[2, 2, 2, 3], cuts=[])
@example(params={"max_tokens": 9, "stop": [EMOJI]}, ids=[2, 9, 10, 2], cuts=[2])
def test_events_do_not_depend_on_the_cuts(params: dict[str, Any], ids: list[int], cuts: list[int]) -> None:
    oracle = Oracle(params)
    bounds = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    outputs = commit(params, [ids[left:right] for left, right in pairwise(bounds)])
    text, given_ids = "", []
    for output in outputs:
        for token in output.new_token_ids:
            assert not oracle.reason, "a token after the end"
            oracle.add(token)
        text += output.text
        given_ids += output.new_token_ids
        assert (text, output.finish_reason, output.stop_string) == (oracle.certain(), oracle.reason, oracle.stop_string)
        assert output.stop_token_id == (EOS if oracle.reason == "stop" and not oracle.stop_string else -1)
    assert given_ids == oracle.ids == ids[: len(oracle.ids)]
    assert oracle.reason or len(given_ids) == len(ids)


def test_a_stop_string_at_place_one_of_a_long_run() -> None:
    output = commit(endless(20, stop=["a"]), [[3, 2, 3, 3, 3, 3, 3, 3, 3]])[0]
    assert (output.new_token_ids, output.text, output.stop_string) == ([3, 2], "b", "a")
    assert output.metrics.num_accepted_tokens == 2 and output.metrics.num_draft_tokens == 8


def test_a_stop_string_over_tokens_of_a_run() -> None:
    run = [2, 6, 3, 2, 3, 3]  # a, space, b, a, b, b
    for include, text in ((False, "a"), (True, "a ba")):
        output = commit(endless(20, stop=[" ba"], include_stop_str_in_output=include), [run])[0]
        assert (output.new_token_ids, output.text, output.finish_reason) == (run[:4], text, "stop")


def test_the_earlier_event_wins() -> None:
    six = [2] * 6
    stop = commit({"max_tokens": 8}, [six, [3, EOS, 3, 3]])[1]  # end id and budget at once, inside the run
    assert (stop.new_token_ids, stop.finish_reason, stop.stop_token_id, stop.text) == ([3, EOS], "stop", EOS, "b")
    string = commit({"max_tokens": 8, "stop": ["ba"]}, [six, [3, 2, EOS, 3]])[1]
    assert (string.new_token_ids, string.finish_reason, string.stop_string) == ([3, 2], "stop", "ba")
    length = commit({"max_tokens": 7, "stop": ["ba"]}, [six, [3, 2, EOS, 3]])[1]  # what was held back comes out
    assert (length.new_token_ids, length.finish_reason, length.text) == ([3], "length", "b")


def test_what_a_stop_cut_off_is_not_counted() -> None:
    output = commit({"max_tokens": 20}, [[2, EOS, 3, 3]])[0]
    assert output.new_token_ids == [2, EOS]
    assert (output.metrics.num_accepted_tokens, output.metrics.num_draft_tokens) == (2, 3)
    assert list(output.metrics.num_accepted_tokens_per_position) == [1, 1, 0, 0]


def test_of_two_strings_that_end_together_the_first_in_the_list_counts() -> None:
    for stops, text in ((["ba", "aba"], "a"), (["aba", "ba"], "")):
        output = commit(endless(9, stop=stops), [[2, 3, 2]])[0]
        assert (output.stop_string, output.text) == (stops[0], text)


def test_min_tokens_holds_stop_strings_back() -> None:
    """The text of the first tokens neither ends the request nor is matched again later; a match that ends later is."""
    output = commit(endless(9, stop=["ab"], min_tokens=2), [[2, 3, 2, 3, 2]])[0]
    assert (output.new_token_ids, output.text) == ([2, 3, 2, 3], "ab")
    spanning = commit(endless(9, stop=["ab"], min_tokens=1), [[2, 3, 2]])[0]
    assert (spanning.new_token_ids, spanning.text) == ([2, 3], "")
    overlapping = commit(endless(9, stop=["aa"], min_tokens=2), [[2, 2, 2, 2]])[0]
    assert (overlapping.new_token_ids, overlapping.text) == ([2, 2, 2], "a")


@DETERMINISTIC
@given(pieces=st.lists(st.binary(max_size=6), max_size=6))
def test_bytes_become_text_as_python_does_it(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    *texts, end = _testing.decode_utf8(pieces)
    assert "".join([*texts, end]) == data.decode(errors="replace")
    held = len(data) - len("".join(texts).encode()) if REPLACEMENT not in "".join(texts) else 0
    assert held <= 3 and end in ("", REPLACEMENT)


def test_every_pair_of_lead_and_second_byte() -> None:
    """Overlong forms, surrogates and what lies past U+10FFFF are decided by the second byte."""
    data = b"".join(bytes([lead, second, 0x80, 0x80]) for lead in range(0xC0, 0x100) for second in range(0x70, 0xD0))
    assert "".join(_testing.decode_utf8([data])) == data.decode(errors="replace")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("text")
    target = write_successor_target(folder / "target")
    return target.directory, write_successor_draft(folder / "draft", target).directory


def tiny_table(folder: Path) -> _core.TokenTable:
    table = read_token_bytes(write_tiny_tokenizer(folder))
    assert table is not None
    return table.to_core()


def test_stop_strings_under_speculation_are_those_of_plain_decoding(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    plain, fast = make_engine(paths[0]), make_engine(*paths, num_speculative_tokens=8)
    table = tiny_table(tmp_path)
    for engine in (plain, fast):
        engine.set_token_table(table)
    free = [Request(random_prompt(5, i), endless(40, temperature=(i % 3) * 0.5)) for i in range(9)]
    texts = [result.text for result in serve(plain, free, simple=True)]
    for length in (1, 3):
        stopped = []
        for at, (request, text) in enumerate(zip(free, texts, strict=True), 9):
            whole = text[at:].lstrip(REPLACEMENT).split(REPLACEMENT)[0]
            stopped.append(Request(request.prompt, {**request.params, "stop": ["zzz", whole[:length]]}))
        results = serve(fast, stopped)
        assert [result.outcome_with_text for result in results] == [
            serve(plain, [one], True)[0].outcome_with_text for one in stopped
        ]
        assert {result.finish_reason for result in results} == {"stop"}
        assert any(max(result.runs) > 4 for result in results)


def test_ids_logprobs_and_text_end_together(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    engine = make_engine(*paths, num_speculative_tokens=8)
    engine.set_token_table(tiny_table(tmp_path))
    prompt, params = random_prompt(5), endless(60, num_logprobs=1)
    text = serve(engine, [Request(prompt, params)])[0].text
    stop = next(text[i : i + 2] for i in range(12, 40) if REPLACEMENT not in text[i : i + 2])
    engine.add_request(0, prompt, sampling(**{**params, "stop": [stop]}))
    longest = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            assert [entry.token_id for entry in output.logprobs] == list(output.new_token_ids)
            longest = max(longest, len(output.new_token_ids))
    assert output.finish_reason == "stop" and longest > 2


def test_bad_stop_strings_are_refused_by_name(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    engine = make_engine(paths[0])
    with pytest.raises(UnsupportedError, match=r"stop strings .* no token table"):
        engine.add_request(0, [5], sampling(stop=["a"]))
    with pytest.raises(UnsupportedError, match="include_stop_str_in_output needs a token table"):
        engine.add_request(0, [5], sampling(include_stop_str_in_output=True))
    with pytest.raises(InvalidArgumentError, match="is_special for 1"):
        engine.set_token_table(_core.TokenTable([b"a", b"b"], [True], 0))
    engine.set_token_table(tiny_table(tmp_path))
    for changes, message in (
        ({"stop": [""]}, r"stop\[0\] has 0 bytes"),
        ({"stop": ["a", "b" * 1025]}, r"stop\[1\] has 1025 bytes"),
        ({"stop": ["a"] * 10_000}, "stop has 10000 strings"),
        ({"stop": [b"\xff"]}, "not valid UTF-8"),
        ({"stop": ["a"], "detokenize": False}, "detokenize"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            engine.add_request(0, [5], sampling(**changes))
    assert not engine.has_unfinished_requests()
    engine.add_request(0, [5], sampling(detokenize=False))
    assert engine.step()[0].text == ""
    with pytest.raises(InvalidArgumentError, match="has requests"):
        engine.set_token_table(tiny_table(tmp_path))
