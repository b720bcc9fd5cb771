"""Structured outputs without an engine: compiling and its limits, and the state that drafts advance and take back."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_tokenizer import JSON_TEXT, VOCAB_SIZE, write_tiny_tokenizer

from eagle31rt import grammars
from eagle31rt.errors import InvalidArgumentError, ResourceError, UnsupportedError
from eagle31rt.grammars import GrammarCompiler, GrammarConstraint
from eagle31rt.structured_outputs import MAX_CHOICES, MAX_GRAMMAR_BYTES, MAX_REGEX_BYTES, StructuredOutputsParams

pytest.importorskip("llguidance")
EOS = 2
CHOICES = ["yes", "no", 'a"b', "a.b", "[x]*", "new\nline", "\u20ac"]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"), text=JSON_TEXT)


@pytest.fixture(scope="module")
def compiler(tokenizer: Any) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.to_str(), VOCAB_SIZE, [EOS])


def constraint(compiler: GrammarCompiler, **params: Any) -> GrammarConstraint:
    return compiler.compile(StructuredOutputsParams(**params))()


def allowed_ids(state: GrammarConstraint, vocab_size: int = VOCAB_SIZE) -> list[int]:
    mask = np.zeros((vocab_size + 31) // 32, np.uint32)
    state.fill_mask(mask)
    return [i for i in range(vocab_size) if mask[i // 32] >> np.uint32(i % 32) & 1]


def random_text(state: GrammarConstraint, tokenizer: Any, seed: int, max_tokens: int = 400) -> str | None:
    """What the constraint lets through, drawn at random; None if it did not end."""
    draw, ids = random.Random(seed), []
    while not state.is_finished() and len(ids) < max_tokens:
        choices = allowed_ids(state)
        if EOS in choices and draw.random() < 0.5:
            break
        ids.append(draw.choice([token for token in choices if token != EOS] or [EOS]))
        if ids[-1] == EOS:
            break
        assert state.accept(ids[-1])
    else:
        if not state.is_finished():
            return None
    return str(tokenizer.decode(ids))


@pytest.mark.parametrize(
    ("params", "matches"),
    [
        ({"regex": "[a-c]{2,5}-[0-9]+"}, lambda text: text[:1] in "abc" and text.split("-")[1].isdigit()),
        ({"choice": CHOICES}, CHOICES.__contains__),
        ({"json": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}}, json.loads),
        ({"json": json.dumps(PERSON)}, lambda text: set(json.loads(text)) == {"name", "age"}),
        ({"json_object": True}, lambda text: isinstance(json.loads(text), dict)),
        ({"grammar": 'start: "a" middle "c"\nmiddle: "b" | middle "b"'}, lambda text: re.fullmatch("ab+c", text)),
        ({"grammar": 'root ::= "x" | "(" root ")"'}, lambda text: text.count("(") == text.count(")")),
    ],
    ids=["regex", "choice", "json", "json text", "json object", "lark", "gbnf"],
)
def test_what_is_let_through_matches(compiler: GrammarCompiler, tokenizer: Any, params: Any, matches: Any) -> None:
    texts = [random_text(constraint(compiler, **params), tokenizer, seed) for seed in range(8)]
    ended = [text for text in texts if text is not None]
    assert ended
    for text in ended:
        assert matches(text), text


def test_as_many_choices_as_are_allowed(compiler: GrammarCompiler, tokenizer: Any) -> None:
    choices = [f"{number:04}" for number in range(MAX_CHOICES)]
    assert random_text(constraint(compiler, choice=choices), tokenizer, 1) in choices
    prefixes = constraint(compiler, choice=["ab", "abc", "a"])
    a, b, c = (tokenizer.token_to_id(character) for character in "abc")
    assert prefixes.accept(a) and allowed_ids(prefixes) == sorted([EOS, b])
    assert prefixes.accept(b) and allowed_ids(prefixes) == sorted([EOS, c])
    assert prefixes.accept(c) and prefixes.is_finished()


def test_whitespace_options(compiler: GrammarCompiler, tokenizer: Any) -> None:
    space = tokenizer.token_to_id("\u0120")
    loose, tight = (constraint(compiler, json=PERSON, disable_any_whitespace=value) for value in (False, True))
    for state in (loose, tight):
        assert state.accept(tokenizer.token_to_id("{"))
    assert space in allowed_ids(loose) and space not in allowed_ids(tight)
    own = constraint(compiler, json=PERSON, whitespace_pattern="\n")
    assert own.accept(tokenizer.token_to_id("{")) and tokenizer.token_to_id("\u010a") in allowed_ids(own)
    assert space not in allowed_ids(own)


def test_end_of_sequence_where_the_text_may_end(compiler: GrammarCompiler, tokenizer: Any) -> None:
    state = constraint(compiler, regex="ab|abc")
    a, b, c = (tokenizer.token_to_id(character) for character in "abc")
    assert allowed_ids(state) == [a] and not state.is_finished()
    assert state.accept(a) and allowed_ids(state) == [b]
    assert state.accept(b) and allowed_ids(state) == sorted([EOS, c]) and not state.is_finished()
    assert not state.accept(a) and allowed_ids(state) == sorted([EOS, c])  # refused, unchanged
    assert state.accept(c) and state.is_finished()
    state.roll_back(2)
    assert not state.is_finished() and allowed_ids(state) == [b]


def test_several_ends_of_sequence_and_padding_of_the_vocabulary(tokenizer: Any) -> None:
    compiler = GrammarCompiler(tokenizer.to_str(), VOCAB_SIZE + 37, [EOS, 0])
    state = constraint(compiler, regex="a*")
    assert allowed_ids(state, VOCAB_SIZE + 37) == [0, EOS, tokenizer.token_to_id("a")]


def test_a_walk_over_drafts_leaves_no_trace(compiler: GrammarCompiler, tokenizer: Any) -> None:
    """With speculation the state runs ahead, sees masks there, and comes back, which must change nothing."""
    draw = random.Random(3)
    for params in ({"json": PERSON}, {"regex": "(ab|ba){3,6}c?"}, {"grammar": 'root ::= "x" | "(" root ")"'}):
        straight, ahead = constraint(compiler, **params), constraint(compiler, **params)
        for _ in range(40):
            depth = 0
            while depth < 4 and not ahead.is_finished():
                choices = [token for token in allowed_ids(ahead) if token != EOS]
                if not choices or not ahead.accept(draw.choice(choices)):
                    break
                depth += 1
            if depth:
                ahead.roll_back(depth)
            choices = allowed_ids(straight)
            assert allowed_ids(ahead) == choices and ahead.is_finished() == straight.is_finished()
            following = [token for token in choices if token != EOS]
            if straight.is_finished() or not following:
                break
            token = draw.choice(following)
            assert straight.accept(token) and ahead.accept(token)


def test_an_error_ahead_is_forgotten_with_the_drafts(
    compiler: GrammarCompiler, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llguidance keeps an error for ever; a draft that ran into one must not end a request that never goes there."""
    state = constraint(compiler, regex="a[ab]*")
    a, b = tokenizer.token_to_id("a"), tokenizer.token_to_id("b")
    assert state.accept(a)
    assert state.accept(b)
    assert not state._matcher.consume_token(tokenizer.token_to_id("z")) and state._matcher.is_error()
    state.roll_back(1)
    assert allowed_ids(state) == sorted([EOS, a, b]) and state.accept(b)


def test_samples_and_requests_share_what_was_compiled(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = compiler.compile(StructuredOutputsParams(regex="[ab]{3}"))
    first, second = make(), make()
    assert first.accept(allowed_ids(first)[0]) and len(allowed_ids(second)) == 2
    monkeypatch.setattr(compiler, "_matcher", None)  # compiling again would fail
    compiler.compile(StructuredOutputsParams(regex="[ab]{3}"))
    with pytest.raises(TypeError):
        compiler.compile(StructuredOutputsParams(regex="[ab]{4}"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"regex": "(a"}, r"structured_outputs\.regex does not compile: .*unclosed group"),
        ({"regex": r"(a)\1"}, "regex does not compile: .*backreferences are not supported"),
        ({"regex": "\u4e2d+"}, "regex cannot be satisfied: no token of this model"),
        ({"grammar": "start: foo"}, r"structured_outputs\.grammar does not compile: .*unknown name"),
        ({"grammar": "start: start"}, "grammar cannot be satisfied"),
        ({"grammar": "start: " + "(" * 3000 + '"a"' + ")" * 3000}, "grammar does not compile: .*nested"),
        ({"grammar": "root ::= " + "(" * 3000 + '"a"' + ")" * 3000}, "grammar does not compile: .*recursion"),
        ({"json": {"type": "objct"}}, r"structured_outputs\.json does not compile: Invalid type"),
        ({"json": {"type": "integer", "minimum": 5, "maximum": 3}}, "json does not compile: Unsatisfiable schema"),
        ({"json": {"$ref": "#"}}, "json cannot be satisfied"),
        ({"json": {"type": "array", "uniqueItems": True}}, "json does not compile: Unimplemented keys"),
        (
            {"json": {"anyOf": [{"type": "object", "properties": {f"p{i}": {"type": "null"}}} for i in range(600)]}},
            "json is too complex: .*items; max is",
        ),
        ({"json": {"$ref": "http://example.com/a"}}, "json does not compile: "),
        ({"json": '{"items":' * 900 + "{}" + "}" * 900}, r"structured_outputs\.json "),
    ],
)
def test_bad_ones_are_refused_by_name(compiler: GrammarCompiler, params: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as error:
        constraint(compiler, **params)
    assert len(str(error.value)) < 450


@pytest.mark.parametrize(
    "params",
    [
        {"regex": "(a+)+$"},
        {"regex": "((a{1,100}){1,100}){1,100}"},
        {"regex": "(a|b)*a(a|b){200}"},
        {"regex": "(x*)*" * 1600 + "y"},
        {"json": {"type": "string", "pattern": "^(a|b)*a(a|b){300}$"}},
        {"json": {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(3)]} for i in range(12)]}},
        {"json": {"type": "array", "items": {"type": "null"}, "minItems": 100_000}},
        {"json": {"anyOf": [{"type": "object", "properties": {f"p{i}": {"type": "string"}}} for i in range(400)]}},
        {"grammar": 'start: start "a" | start start "b" | "c"'},
        {"json": {"allOf": [{"type": "string", "pattern": f"^(.*{c}){{20}}"} for c in "abcdefghijklmnop"]}},
    ],
    ids=[
        *("nested", "counted", "determinised", "starred", "pattern", "all of any", "min items", "any of", "ambiguous"),
        "sixteen at once",
    ],
)
def test_explosive_ones_are_bounded(compiler: GrammarCompiler, params: Any) -> None:
    """Compiled or refused, and so are the masks of the first tokens; each of these takes below a second when idle."""
    begin = time.monotonic()
    try:
        state = constraint(compiler, **params)
        for _ in range(5):
            choices = [token for token in allowed_ids(state) if token != EOS]
            if not choices or not state.accept(choices[-1]):
                break
    except InvalidArgumentError as error:
        assert "structured_outputs." in str(error)
    assert time.monotonic() - begin < 10


_CHAINS = """
import sys
from eagle31rt.grammars import GrammarCompiler
from eagle31rt.structured_outputs import StructuredOutputsParams
compiler = GrammarCompiler(open(sys.argv[1]).read(), 96, [2])
schema = {f"a{i}": {"properties": {"x": {"$ref": f"#/$defs/a{i + 1}"}}} for i in range(1100)}
schema = {"$defs": {**schema, "a1100": {}}, "$ref": "#/$defs/a0"}
rules = "start: r0\\n" + "".join(f'r{i}: r{i + 1} "a"\\n' for i in range(480)) + 'r480: "b"'
for params in ({"json": schema}, {"grammar": rules}):
    compiler.compile(StructuredOutputsParams(**params))()
print("ok")
"""


def test_long_chains_of_references_do_not_overflow_the_stack(tokenizer: Any, tmp_path: Path) -> None:
    """On a usual stack the first of these ends the process."""
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    command = [sys.executable, "-c", _CHAINS, str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("grammar", "operator"),
    [
        ("start: A\nA: " + " & ".join(f"/(.*{c}){{9}}.*/" for c in "abcdefghijklmnopqrstuvwxyz"), "'&'"),
        ("start: A\nA: ~/a*/", "'~'"),
        ('start: %json {"type": "null"}', "'%json'"),
    ],
)
def test_exponential_operators_are_refused_by_name(compiler: GrammarCompiler, grammar: str, operator: str) -> None:
    with pytest.raises(UnsupportedError, match=rf"structured_outputs\.grammar uses {operator}, which is not supported"):
        constraint(compiler, grammar=grammar)


def test_the_same_characters_in_literals_are_not(compiler: GrammarCompiler) -> None:
    constraint(compiler, grammar='start: "a" /[^&~\\/]/ "&~" | "b" // & ~')
    constraint(compiler, grammar='root ::= "a" [^&~] | "\\"&" | "b"')


def test_slow_ones_are_given_up(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammars, "COMPILE_SECONDS", 0.01)
    rules = "start: R0\n" + "".join(f'R{i}: (R{i + 1} "a")*\n' for i in range(300)) + 'R300: "b"'
    with pytest.raises(InvalidArgumentError, match=r"structured_outputs\.grammar takes more than 0\.01 s to compile"):
        constraint(compiler, grammar=rules)
    with pytest.raises(ResourceError, match="0 others are being compiled"):
        monkeypatch.setattr(grammars, "_MAX_COMPILING", 0)
        monkeypatch.setattr(grammars, "_compiling", grammars.threading.BoundedSemaphore(0))
        constraint(compiler, regex="never compiled before")


@pytest.mark.parametrize(
    ("params", "error", "message"),
    [
        ({}, InvalidArgumentError, "exactly one of json, regex, choice, grammar, json_object, got none"),
        ({"json": {}, "regex": "a"}, InvalidArgumentError, "got json and regex"),
        ({"json": "{"}, InvalidArgumentError, "json is not a valid JSON schema"),
        ({"json": "[" * 100_000}, InvalidArgumentError, "json has 100000 bytes; give at most 65536"),
        ({"json": {"a": object()}}, InvalidArgumentError, "json is not a valid JSON schema"),
        *[({"json": value}, InvalidArgumentError, "json must be a JSON object") for value in ([1], "false", "null")],
        ({"json": {"pattern": "a" * (MAX_REGEX_BYTES + 1)}}, InvalidArgumentError, "a pattern of more than"),
        ({"json": {"items": [{"patternProperties": {"a" * 9000: {}}}]}}, InvalidArgumentError, "a pattern of more"),
        (
            {"json": {"$defs": {f"d{i}": {"pattern": "a", "$ref": f"#/$defs/d{i + 1}"} for i in range(17)}}},
            InvalidArgumentError,
            "json has 17 patterns and formats; give at most 16 with allOf",
        ),
        ({"json_object": False}, InvalidArgumentError, "json_object must be True or None"),
        ({"regex": "a" * (MAX_REGEX_BYTES + 1)}, InvalidArgumentError, r"regex has 8193 bytes; give at most 8192"),
        ({"regex": 3}, InvalidArgumentError, "regex must be a non-empty text"),
        ({"regex": ""}, InvalidArgumentError, "regex must be a non-empty text"),
        ({"regex": "\ud800"}, InvalidArgumentError, "regex contains a lone surrogate"),
        ({"grammar": " " * (MAX_GRAMMAR_BYTES + 1)}, InvalidArgumentError, "grammar has 8193 bytes"),
        ({"choice": []}, InvalidArgumentError, "choice has 0 texts"),
        ({"choice": "ab"}, InvalidArgumentError, "choice must be a list of non-empty texts"),
        ({"choice": ["a", ""]}, InvalidArgumentError, "choice must be a list of non-empty texts"),
        ({"choice": ["a"] * 5000}, InvalidArgumentError, "choice has 5000 texts"),
        ({"choice": ["a" * 70_000]}, InvalidArgumentError, "choice has 70000 bytes"),
        ({"regex": "a", "disable_any_whitespace": True}, InvalidArgumentError, "options for whitespace"),
        ({"json": {}, "disable_any_whitespace": 1}, InvalidArgumentError, "disable_any_whitespace must be"),
        ({"structural_tag": "{}"}, UnsupportedError, "structural_tag is not supported"),
        ({"json": {}, "disable_additional_properties": True}, UnsupportedError, "disable_additional_properties is not"),
    ],
)
def test_params_are_checked(params: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        StructuredOutputsParams(**params)


def test_params_from_a_dict() -> None:
    assert StructuredOutputsParams.parse({"regex": "a"}) == StructuredOutputsParams(regex="a")
    with pytest.raises(InvalidArgumentError, match="structured_outputs has no field 'regexp'; known: json, regex"):
        StructuredOutputsParams.parse({"regexp": "a"})
    with pytest.raises(InvalidArgumentError, match="must be StructuredOutputsParams, got str"):
        StructuredOutputsParams.parse("a")  # type: ignore[arg-type]


def test_without_llguidance(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'eagle31rt\[structured\]'"):
        GrammarCompiler(tokenizer.to_str(), VOCAB_SIZE, [EOS])


def test_a_tokenizer_that_llguidance_cannot_read() -> None:
    with pytest.raises(UnsupportedError, match="cannot read this tokenizer"):
        GrammarCompiler("{}", VOCAB_SIZE, [EOS])
