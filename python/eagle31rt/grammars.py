"""Structured outputs compiled by llguidance, as the TokenConstraint that the engine asks (token_constraint.h).

Compiling happens when a request is submitted, never in a step. It runs on a thread of its own: llguidance descends a
schema's references recursively, and a chain of a thousand of them overflows an ordinary stack (a crash, not an error).
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from eagle31rt.errors import InvalidArgumentError, ResourceError, UnsupportedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from eagle31rt.structured_outputs import StructuredOutputsParams

Result = TypeVar("Result")

COMPILE_SECONDS = 5.0  # longer than any of the allowed size that is not made to explode
_MAX_COMPILING = 4  # what was given up still runs to its end
_STACK_BYTES = 256 << 20  # address space; 20 KiB for each level that fits MAX_JSON_BYTES
_MAX_CACHED = 32  # compiled grammars of a tokenizer
_MAX_MESSAGE = 300  # characters
_MAX_PROBES = 64  # tokens tried to begin a text
# A step's mask of a hostile grammar may not hold up the batch for long: 50,000 units of fuel take about 4 ms and 5,000
# items 15 ms at worst (a choice of 200 kinds of JSON objects; one of 480 is refused). Usual masks take 15 microseconds.
_LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 50_000,
    "step_max_items": 5_000,
    "max_lexer_states": 50_000,
    "verbose_errors": False,
}
# Where Lark's operators are none: comments, texts and regular expressions.
_LITERALS = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/')
_compiling = threading.BoundedSemaphore(_MAX_COMPILING)
_starting = threading.Lock()


class GrammarCompiler:
    """Compiles for one tokenizer and keeps what was compiled last. Any thread may use it."""

    def __init__(self, tokenizer_json: str, vocab_size: int, eos_token_ids: list[int]) -> None:
        """`vocab_size`: number of logits, which may be more than the tokenizer has tokens.

        Raises UnsupportedError without llguidance or if it does not understand the tokenizer.
        """
        try:
            import llguidance
        except ImportError as error:
            raise UnsupportedError(
                "structured_outputs needs the package llguidance: pip install 'eagle31rt[structured]'"
            ) from error
        self._llguidance = llguidance
        try:
            self._tokenizer = llguidance.LLTokenizer(
                tokenizer_json, n_vocab=vocab_size, eos_token=list(eos_token_ids) or None
            )
        except Exception as error:  # it raises whatever Rust reports
            raise UnsupportedError(f"structured_outputs: llguidance cannot read this tokenizer: {error}") from error
        self._limits = llguidance.LLParserLimits(**_LIMITS)
        self._lock = threading.Lock()
        self._cache: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def compile(self, params: StructuredOutputsParams) -> Callable[[], GrammarConstraint]:
        """A maker of constraints, one for each sample.

        Raises InvalidArgumentError naming the field if it does not compile, takes too long, or no text satisfies it,
        UnsupportedError for what can explode, and ResourceError if too many others are being compiled.
        """
        name = f"structured_outputs.{params.kind}"
        source = _source(params)
        key = (params.kind, source)
        with self._lock:
            matcher = self._cache.get(key)
        if matcher is None:
            matcher = run_on_deep_stack(name, lambda: self._matcher(name, params.kind, source))
            with self._lock:
                self._cache[key] = matcher
                while len(self._cache) > _MAX_CACHED:
                    self._cache.popitem(last=False)
        return lambda: GrammarConstraint(matcher)

    def _matcher(self, name: str, kind: str, source: str) -> Any:
        matcher = self._llguidance.LLMatcher(
            self._tokenizer, self._grammar(name, kind, source), log_level=0, limits=self._limits
        )
        if matcher.is_error():
            raise InvalidArgumentError(f"{name} does not compile: {_short(matcher.get_error())}")
        if not matcher.is_accepting():
            self._check_beginning(name, matcher)
        return matcher

    def _check_beginning(self, name: str, matcher: Any) -> None:
        """That some token can begin it: the mask alone does not tell, as the matcher may refuse what its mask allows
        (bytes that no token spells, or more alternatives than its limit).
        """
        first = matcher.deep_copy()
        allowed = np.unpackbits(np.frombuffer(first.compute_bitmask(), np.uint8), bitorder="little").nonzero()[0]
        if first.is_error() and "NoExtension" not in first.get_error():
            raise InvalidArgumentError(f"{name} is too complex: {_short(first.get_error())}")
        error = ""
        for token_id in allowed[:_MAX_PROBES] if not first.is_error() else ():
            probe = matcher.deep_copy()
            if probe.consume_token(int(token_id)):
                return
            error = probe.get_error()
        if "max is" in error:
            raise InvalidArgumentError(f"{name} is too complex: {_short(error)}")
        raise InvalidArgumentError(f"{name} cannot be satisfied: no token of this model can begin it")

    def _grammar(self, name: str, kind: str, source: str) -> str:
        matcher = self._llguidance.LLMatcher
        try:
            if kind.startswith("json"):
                schema, options = json.loads(source)
                return str(matcher.grammar_from_json_schema(schema, overrides=options))
            if kind == "regex":
                return str(matcher.grammar_from_regex(source))
            if kind == "choice":
                return str(matcher.grammar_from_lark(source))
            grammar = str(self._llguidance.grammar_from("grammar", source))
            _refuse_explosive(name, grammar)
            return grammar
        except (ValueError, RecursionError) as error:
            raise InvalidArgumentError(f"{name} does not compile: {_short(str(error))}") from error


class GrammarConstraint:
    """The state of one sample within a compiled grammar: the TokenConstraint of csrc/include/eagle31rt."""

    def __init__(self, matcher: Any) -> None:
        """`matcher`: a compiled one, which is not changed."""
        self._compiled = matcher
        self._matcher = matcher.deep_copy()
        self._token_ids: list[int] = []
        # After each number of tokens. Kept, since a matcher may notice its end only when asked for a mask, and with
        # speculation masks are asked for at other times.
        self._finished = [self._matcher.is_stopped()]

    def fill_mask(self, allowed: npt.NDArray[np.uint32]) -> None:
        """Writes the ids that may come next. None, if a limit was hit or no token fits: the request ends there."""
        mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if self._matcher.is_error():
            self._restore()
            mask = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        if not self._matcher.is_error():
            allowed[: mask.size] = mask[: allowed.size]

    def accept(self, token_id: int) -> bool:
        """Advances; False leaves the state as it was."""
        if self._matcher.is_error():
            self._restore()
        if self._matcher.try_consume_tokens([token_id]) != 1:
            return False
        self._token_ids.append(token_id)
        self._finished.append(self._matcher.is_stopped() and not self._matcher.is_error())
        return True

    def roll_back(self, num_tokens: int) -> None:
        del self._token_ids[len(self._token_ids) - num_tokens :]
        del self._finished[len(self._finished) - num_tokens :]
        if self._matcher.is_error() or not self._matcher.rollback(num_tokens):
            self._restore()

    def is_finished(self) -> bool:
        """Nothing but the end of sequence may follow."""
        return bool(self._finished[-1])

    def _restore(self) -> None:
        """A matcher with an error keeps it for ever, also if it came from a draft that is taken back."""
        self._matcher = self._compiled.deep_copy()
        self._matcher.try_consume_tokens(self._token_ids)


def run_on_deep_stack(name: str, work: Callable[[], Result]) -> Result:
    """Runs `work` on a thread with _STACK_BYTES and gives it up after COMPILE_SECONDS."""
    if not _compiling.acquire(timeout=COMPILE_SECONDS):
        raise ResourceError(f"{name}: {_MAX_COMPILING} others are being compiled; try again later")
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            # Its frames reach this list: with them, what was given up would be kept, megabytes of a refused grammar
            # each, until the garbage collector happens to run.
            errors.append(error.with_traceback(None))
        finally:
            _compiling.release()

    thread = threading.Thread(target=run, name="eagle31rt-compile", daemon=True)
    with _starting:  # the size is a setting of the process
        usual = threading.stack_size(_STACK_BYTES)
        try:
            thread.start()
        except RuntimeError as error:
            _compiling.release()
            raise ResourceError(f"{name}: no thread to compile it: {error}") from error
        finally:
            threading.stack_size(usual)
    thread.join(COMPILE_SECONDS)
    if errors:
        raise errors.pop()  # out of the list, for the same reason
    if not results:
        raise InvalidArgumentError(f"{name} takes more than {COMPILE_SECONDS:g} s to compile; simplify it")
    return results[0]


def _refuse_explosive(name: str, grammar: str) -> None:
    found = re.search("[&~]|%json", _LITERALS.sub(" ", grammar))
    if found is not None:
        raise UnsupportedError(
            f"{name} uses {found[0]!r}, which is not supported: intersections (&), complements (~) and JSON inside a "
            "grammar (%json) can take exponential time to compile"
        )


def _source(params: StructuredOutputsParams) -> str:
    """All that the grammar depends on, as text."""
    if params.kind.startswith("json"):
        options: dict[str, Any] = {"whitespace_flexible": not params.disable_any_whitespace}
        if params.whitespace_pattern is not None:
            options["whitespace_pattern"] = params.whitespace_pattern
        return json.dumps([json.loads(params.schema_text()), options])
    if params.kind == "choice":
        # As one terminal: alternatives of a rule cost the parser an item each in every step.
        return "start: CHOICE\nCHOICE: " + " | ".join(
            json.dumps(one, ensure_ascii=False) for one in params.choice or ()
        )
    return str(getattr(params, params.kind))


def _short(message: str) -> str:
    return " ".join(message.replace("<non-verbose/>", "").split())[:_MAX_MESSAGE]
