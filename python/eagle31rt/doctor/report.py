"""What the rules say about a pair of folders, from configs and headers only. See docs/doctor.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eagle31rt import _core
from eagle31rt.conversion_cache import conversion_source
from eagle31rt.doctor.tokenizers import compare_tokenizers

SCHEMA_VERSION = 1
REFUSALS = ("refused", "fixable")


@dataclass(frozen=True)
class Option:
    """An engine option under which a refused rule passes; `result` says what it resolves to."""

    name: str
    value: str
    result: str


@dataclass(frozen=True)
class Finding:
    """`status`: passed, note (loads, may draft badly), fixable (passes with one of `options`), refused or skipped (a
    rule that it needs is refused). `error`: the exception class that loading raises."""

    rule: str
    status: str
    message: str = ""
    fix: str = ""
    error: str | None = None
    options: tuple[Option, ...] = ()


@dataclass(frozen=True)
class Resolved:
    """A setting of the draft and where its value came from: a key of the file, an override or a default."""

    name: str
    value: str
    origin: str


@dataclass
class Report:
    """`findings` are in the order of the rules; a rule that refuses for several reasons has several."""

    target: str
    draft: str
    loads: bool
    findings: list[Finding]
    resolved: list[Resolved]
    probe: dict[str, Any] | None = field(default=None)

    def to_dict(self) -> dict[str, Any]:
        """The JSON of `eagle31rt check --json`; keys are only ever added within a schema version."""
        return {"schema_version": SCHEMA_VERSION, **asdict(self)}

    def with_status(self, *statuses: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.status in statuses]

    def value_of(self, name: str) -> str:
        """Of a resolved setting; a draft that loads has all of them."""
        return next(entry.value for entry in self.resolved if entry.name == name)


def examine(
    target: Path,
    draft: Path,
    *,
    capture_layers: Sequence[int] = (),
    layer_id_convention: str = "",
    feedback: str = "auto",
    max_model_len: int = 0,
    num_speculative_tokens: int = 0,
) -> Report:
    """Checks every rule. Faults of the folders are findings and never raised.

    `max_model_len` 0 is the target's, `num_speculative_tokens` 0 not known yet.
    """
    result = _core.examine_draft(
        str(target),
        str(draft),
        capture_layers=list(capture_layers),
        layer_id_convention=layer_id_convention,
        feedback=feedback,
        max_model_len=max_model_len,
        num_speculative_tokens=num_speculative_tokens,
    )
    findings = [_finding(entry) for entry in result["findings"]]
    findings = [_tokenizer_finding(target, draft) if one.rule == "tokenizer" else one for one in findings]
    resolved = [Resolved(**entry) for entry in result["resolved"]]
    source = conversion_source(draft)
    if source is not None:
        resolved.append(Resolved("converted_from", source, "conversion.json"))
    return Report(str(target), str(draft), result["loads"], findings, resolved)


def _finding(entry: dict[str, Any]) -> Finding:
    options = tuple(Option(**option) for option in entry.pop("options"))
    return Finding(**entry, options=options)


def _tokenizer_finding(target: Path, draft: Path) -> Finding:
    problem = compare_tokenizers(target, draft)
    if problem is None:
        return Finding("tokenizer", "passed")
    fix = next(rule["fix"] for rule in _core.draft_rules() if rule["rule"] == "tokenizer")
    return Finding("tokenizer", "note", problem, fix)
