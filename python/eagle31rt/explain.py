"""What an engine step did, in one line: where its time went, and why its drafts (docs/speculation.md)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TextIO

_PARTS = ("draft", "verify", "sample", "host")
_REASONS = {
    "fixed": "fixed",
    "no_draft": "no draft",
    "plain": "plain",
    "best": "best",
    "probe": "probe",
    "back_off": "back-off",
}


class StepExplainer:
    """Takes the engine's stats after each step and writes a line of what the step added to them."""

    def __init__(self, stream: TextIO, before: Mapping[str, int]) -> None:
        self._stream = stream
        self._before = dict(before)
        self._num_steps = 0

    def __call__(self, stats: Mapping[str, int]) -> None:
        self._num_steps += 1
        added = {name: value - self._before[name] for name, value in stats.items()}
        self._before = dict(stats)
        reason = next((text for name, text in _REASONS.items() if added[f"num_{name}_steps"] > 0), "prompts")
        times = ", ".join(f"{part} {added[f'{part}_nanoseconds'] / 1e6:.2f}" for part in _PARTS)
        print(f"step {self._num_steps}: {reason}; {stats['num_running']} running; ms: {times}", file=self._stream)
