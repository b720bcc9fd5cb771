"""StructuredOutputsParams: what the output of a request must spell. Names are vLLM's; grammars.py compiles it."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from eagle31rt.errors import InvalidArgumentError, UnsupportedError
from eagle31rt.sampling_checks import is_valid_unicode, shown

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
# Compiling is at worst quadratic in a regular expression and cubic in nested terminals of a grammar (one second for
# 8 KiB of each), and a step's mask of a large expression costs every request of the batch.
MAX_JSON_BYTES = 64 << 10
MAX_REGEX_BYTES = 8 << 10  # also of each pattern in a JSON schema
MAX_GRAMMAR_BYTES = 8 << 10
# Text that matches several patterns at once takes time exponential in their number: 16 of them 0.1 s, 20 of them 3 s.
MAX_INTERSECTED_PATTERNS = 16
_INTERSECTED_WITH_REF = {"pattern", "format", "patternProperties", "anyOf", "oneOf"}
MAX_CHOICES = 4096
MAX_CHOICE_BYTES = 64 << 10  # of all together


@dataclass
class StructuredOutputsParams:
    """Exactly one of json (a schema, as text or dict), regex, choice, grammar (Lark or GBNF) and json_object.

    `disable_any_whitespace`: JSON without spaces and newlines. `whitespace_pattern`: a regular expression for what may
    stand between the elements of JSON. Raises InvalidArgumentError or UnsupportedError naming the field.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    disable_any_whitespace: bool = False
    whitespace_pattern: str | None = None
    # Not honoured: refused by name unless neutral.
    disable_additional_properties: bool = False
    disable_fallback: bool = False
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        self.validate()

    @staticmethod
    def parse(value: StructuredOutputsParams | Mapping[str, Any]) -> StructuredOutputsParams:
        """From itself (checked again) or from a dict with its fields."""
        if isinstance(value, StructuredOutputsParams):
            value.validate()
            return value
        if not isinstance(value, Mapping):
            raise InvalidArgumentError(
                f"SamplingParams.structured_outputs must be StructuredOutputsParams, got {type(value).__name__}"
            )
        known = [field.name for field in fields(StructuredOutputsParams)]
        for key in value:
            if key not in known:
                raise InvalidArgumentError(f"structured_outputs has no field {key!r:.100}; known: {', '.join(known)}")
        return StructuredOutputsParams(**value)

    @property
    def kind(self) -> str:
        """Which of the fields is set."""
        return next(name for name in KINDS if getattr(self, name) is not None)

    def validate(self) -> None:
        """Checks all that needs no tokenizer."""
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidArgumentError(
                f"structured_outputs needs exactly one of {', '.join(KINDS[:5])}, got {' and '.join(given) or 'none'}"
            )
        for name in ("disable_additional_properties", "disable_fallback", "structural_tag"):
            if getattr(self, name):
                raise UnsupportedError(f"structured_outputs.{name} is not supported by this version; leave it out")
        if not isinstance(self.disable_any_whitespace, bool):
            raise _wrong("disable_any_whitespace", "True or False", self.disable_any_whitespace)
        if self.whitespace_pattern is not None:
            _check_text("whitespace_pattern", self.whitespace_pattern, MAX_REGEX_BYTES)
        if (self.disable_any_whitespace or self.whitespace_pattern is not None) and not self.kind.startswith("json"):
            raise InvalidArgumentError("structured_outputs: options for whitespace are for json and json_object")
        getattr(self, f"_check_{self.kind}")()

    def schema_text(self) -> str:
        """The JSON schema, for kinds json and json_object."""
        if self.json_object:
            return '{"type": "object"}'
        return self.json if isinstance(self.json, str) else json_module.dumps(self.json)

    def _check_json(self) -> None:
        try:
            text = self.schema_text()
            schema = json_module.loads(text) if len(text) <= MAX_JSON_BYTES else None
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidArgumentError(f"structured_outputs.json is not a valid JSON schema: {error}") from error
        _check_text("json", text, MAX_JSON_BYTES)
        if not isinstance(schema, dict):
            raise _wrong("json", "a JSON object", self.json)
        _check_patterns(schema)

    def _check_regex(self) -> None:
        _check_text("regex", self.regex, MAX_REGEX_BYTES)

    def _check_grammar(self) -> None:
        _check_text("grammar", self.grammar, MAX_GRAMMAR_BYTES)

    def _check_json_object(self) -> None:
        if self.json_object is not True:
            raise _wrong("json_object", "True or None", self.json_object)

    def _check_choice(self) -> None:
        choices = self.choice
        if not isinstance(choices, (list, tuple)) or not all(isinstance(one, str) and one for one in choices):
            raise _wrong("choice", "a list of non-empty texts", choices)
        if not 1 <= len(choices) <= MAX_CHOICES:
            raise InvalidArgumentError(f"structured_outputs.choice has {len(choices)} texts; give 1 to {MAX_CHOICES}")
        _check_text("choice", "".join(choices), MAX_CHOICE_BYTES)


def _check_text(name: str, value: object, max_bytes: int) -> None:
    if not isinstance(value, str) or not value:
        raise _wrong(name, "a non-empty text", value)
    if not is_valid_unicode(value):
        raise InvalidArgumentError(f"structured_outputs.{name} contains a lone surrogate")
    size = len(value.encode())
    if size > max_bytes:
        raise InvalidArgumentError(f"structured_outputs.{name} has {size} bytes; give at most {max_bytes}")


def _check_patterns(schema: Any) -> None:
    """The length of every pattern, and their number if the schema may ask for several at once."""
    pending, num_patterns, intersects = [schema], 0, False
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            patterns = [value.get("pattern"), value.get("format"), *(value.get("patternProperties") or ())]
            for pattern in patterns:
                num_patterns += isinstance(pattern, str)
                if isinstance(pattern, str) and len(pattern.encode(errors="replace")) > MAX_REGEX_BYTES:
                    raise InvalidArgumentError(
                        f"structured_outputs.json has a pattern of more than {MAX_REGEX_BYTES} bytes"
                    )
            intersects |= "allOf" in value or ("$ref" in value and bool(_INTERSECTED_WITH_REF & value.keys()))
            pending.extend(value.values())
        elif isinstance(value, list):
            pending.extend(value)
    if intersects and num_patterns > MAX_INTERSECTED_PATTERNS:
        raise InvalidArgumentError(
            f"structured_outputs.json has {num_patterns} patterns and formats; give at most "
            f"{MAX_INTERSECTED_PATTERNS} with allOf or with a pattern beside $ref"
        )


def _wrong(name: str, wanted: str, value: object) -> InvalidArgumentError:
    return InvalidArgumentError(f"structured_outputs.{name} must be {wanted}, got {shown(value)}")
