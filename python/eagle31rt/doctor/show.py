"""A report as text for people."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from eagle31rt.doctor.report import REFUSALS, Finding, Report

_STYLES = {"refused": "bold red", "fixable": "bold yellow", "note": "yellow", "skipped": "dim", "passed": "green"}


def show_report(report: Report, console: Console) -> None:
    console.print(Text(f"target  {report.target}\ndraft   {report.draft}\n"))
    for finding in report.with_status("note", *REFUSALS):
        _show_finding(finding, console)
    skipped = report.with_status("skipped")
    if skipped:
        _line(console, "skipped", "skipped  ", ", ".join(finding.rule for finding in skipped))
    _line(console, "passed", "passed   ", f"{len(report.with_status('passed'))} rules")
    _show_resolved(report, console)
    refused = report.with_status(*REFUSALS)
    rules = list(dict.fromkeys(finding.rule for finding in refused))
    verdict = "The draft loads for this target." if report.loads else f"The draft is refused: {', '.join(rules)}."
    console.print(Text(f"\n{verdict}", style="bold green" if report.loads else "bold red"))


def show_probe(probe: dict[str, Any], console: Console) -> None:
    table = Table("position", "accepted", "of those that got there", "chance", "a trained head")
    low, high = probe["expected"]
    rates = zip(probe["acceptance_per_position"], probe["conditional_per_position"], strict=True)
    for position, (accepted, conditional) in enumerate(rates):
        shown = "-" if conditional is None else f"{conditional:.2f}"
        table.add_row(str(position), f"{accepted:.2f}", shown, f"{probe['chance']:.2f}", f"{low:.2f} to {high:.2f}")
    console.print(table)
    drafts, length = probe["num_drafts"], probe["acceptance_length"]
    console.print(Text(f"mean acceptance length {length:.2f} over {drafts} drafts of {probe['num_prompts']} prompts"))
    for other in probe["alternatives"]:
        reading = f"capture_layers={other['capture_layers']}, feedback={other['feedback']}"
        console.print(Text(f"with {reading}: {other['acceptance_length']:.2f}"))
    for fault in probe["faults"]:
        _line(console, "note", f"{fault['kind']}: ", fault["message"])


def _show_finding(finding: Finding, console: Console) -> None:
    _line(console, finding.status, f"{finding.status:8} ", f"{finding.rule}: {finding.message}")
    if finding.options:
        choices = [f"{one.name}={one.value}" + (f" ({one.result})" if one.result else "") for one in finding.options]
        console.print(Text(f"         pass {' or '.join(choices)}"), soft_wrap=True)
    elif finding.fix:
        console.print(Text(f"         {finding.fix}"), soft_wrap=True)


def _show_resolved(report: Report, console: Console) -> None:
    width = max((len(entry.name) for entry in report.resolved), default=0)
    console.print()
    for entry in report.resolved:
        console.print(Text(f"{entry.name:{width}}  {entry.value}  <- {entry.origin}"), soft_wrap=True)


def _line(console: Console, status: str, label: str, text: str) -> None:
    console.print(Text.assemble((label, _STYLES[status]), text), soft_wrap=True)
