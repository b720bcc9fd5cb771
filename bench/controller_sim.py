"""The speculation controller against fixed numbers of drafts, on simulated loads of up to 512 requests.

    python bench/controller_sim.py [--machine WORDS] [--load NAME] [--recorded FILE.json]
                                   [--output NAME.json] [--plot FILE.png]

A load says how many requests run at which time and how likely their drafts are accepted; a request that ends is
replaced by a new one. Costs come from controller_machines.py. The controller sees drawn acceptances, and times with 5 %
noise of which one in 30 is twice as long. Yields are scored by expected tokens and undisturbed times, against what each
fixed number of drafts would yield for the same requests at the same moment: so the score has no noise of its own.
A recorded load is a list of [seconds, requests, traffic] with the names of TRAFFIC.

It ends with status 1 unless the controller has at least 0.98 of plain decoding in every phase of every load (2000 plain
steps: 4 seconds of gpt-oss-120b on one H100), and on average 0.95 of the best fixed number in hindsight.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from common import provenance, write_result
from controller_machines import Machine, MeasuredCpu, machines

from eagle31rt import _testing

MAX_DRAFTS = 8
WINDOWS_A_PHASE = 4
LEAST_OF_PLAIN, LEAST_OF_BEST = 0.98, 0.95
PROMPT, OUTPUT = 512, 256  # tokens; outputs are geometric with this mean
# P(draft stands | those before it stand). Published acceptance lengths at K = 3: from 2.3 (roleplay) to 3.2 (code).
TRAFFIC = {
    "code": [0.85, 0.82, 0.80, 0.78, 0.76, 0.75, 0.74, 0.73],
    "chat": [0.72, 0.64, 0.60, 0.57, 0.55, 0.54, 0.53, 0.52],
    "poor": [0.35, 0.25, 0.20, 0.20, 0.20, 0.20, 0.20, 0.20],
    "none": [0.0] * 8,
    "all": [1.0] * 8,
}


@dataclass(frozen=True)
class Phase:
    seconds: float
    requests: int
    traffic: str


@dataclass
class Batch:
    """The running requests. Rates of a request are those of its traffic to a power of its own."""

    draws: np.random.Generator
    ids: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    context: np.ndarray = field(default_factory=lambda: np.zeros(0))
    left: np.ndarray = field(default_factory=lambda: np.zeros(0))
    power: np.ndarray = field(default_factory=lambda: np.zeros(0))
    num_made: int = 0

    def fill(self, count: int) -> list[int]:
        """Drops those that ended or are too many, adds new ones; the ids of the dropped."""
        keep = np.flatnonzero(self.left > 0)[:count]
        gone = np.setdiff1d(self.ids, self.ids[keep]).tolist()
        fresh = count - len(keep)
        new_ids = np.arange(self.num_made, self.num_made + fresh)
        self.num_made += fresh
        self.ids = np.concatenate([self.ids[keep], new_ids])
        self.context = np.concatenate([self.context[keep], self.draws.integers(PROMPT // 4, 2 * PROMPT, fresh)])
        self.left = np.concatenate([self.left[keep], self.draws.geometric(1 / OUTPUT, fresh)])
        self.power = np.concatenate([self.power[keep], np.exp(0.4 * self.draws.standard_normal(fresh))])
        return gone

    def advance(self, tokens: np.ndarray) -> None:
        self.context = self.context + tokens
        self.left = self.left - tokens

    def rates(self, traffic: str) -> np.ndarray:
        """[requests, MAX_DRAFTS]"""
        return np.asarray(np.array(TRAFFIC[traffic])[None, :] ** self.power[:, None])


@dataclass
class Run:
    """Per window: tokens, seconds, drafts, and what each fixed number of drafts would have yielded meanwhile."""

    num_windows: int
    reasons: dict[str, int] = field(default_factory=dict)
    num_steps: int = 0
    num_changes: int = 0  # of the longest chain, probes left out
    controller_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.tokens, self.seconds, self.rounds, self.drafts = np.zeros((4, self.num_windows))
        self.fixed_tokens = np.zeros((MAX_DRAFTS + 1, self.num_windows))


def step_seconds(machine: Machine, num_drafts: np.ndarray, context: float) -> tuple[float, float, float]:
    """Of drafting, observing and the target's pass."""
    requests, longest = len(num_drafts), int(num_drafts.max(initial=0))
    if longest == 0:
        return 0.0, 0.0, machine.plain(requests, context)
    rows = requests + int(num_drafts.sum())
    drafting = [int((num_drafts > step).sum()) for step in range(longest)]
    share = context / requests
    draft = sum(machine.draft(active, share * active) for active in drafting)
    observed = drafting[0] + int(num_drafts.sum()) // 2
    return draft, machine.observe(drafting[0], observed, share * drafting[0]), machine.verify(requests, rows, context)


class Auto:
    """The controller, told drawn acceptances and noisy times."""

    def __init__(self, seed: int) -> None:
        self.controller = _testing.SpeculationController(MAX_DRAFTS)
        self.draws = np.random.default_rng(seed)
        self.last = 0

    def choose(self, batch: Batch, run: Run) -> np.ndarray:
        requests = [
            (i, MAX_DRAFTS, c) for i, c in zip(batch.ids.tolist(), batch.context.astype(int).tolist(), strict=True)
        ]
        began = time.perf_counter()
        choice = self.controller.choose(requests)
        run.controller_seconds += time.perf_counter() - began
        reason = choice.reason
        run.reasons[reason] = run.reasons.get(reason, 0) + 1
        if reason != "probe":
            run.num_changes += choice.num_draft_steps != self.last
            self.last = choice.num_draft_steps
        return np.array(choice.num_drafts)

    def observe(
        self, batch: Batch, rates: np.ndarray, num_drafts: np.ndarray, parts: Sequence[float], run: Run
    ) -> None:
        stands = np.cumprod(self.draws.random(rates.shape) < rates, axis=1)
        accepted = (stands * (np.arange(MAX_DRAFTS)[None, :] < num_drafts[:, None])).sum(axis=1)
        noise = math.exp(0.05 * self.draws.standard_normal()) * (2.0 if self.draws.random() < 1 / 30 else 1.0)
        outcomes = list(zip(batch.ids.tolist(), num_drafts.tolist(), accepted.tolist(), strict=True))
        began = time.perf_counter()
        self.controller.observe(outcomes, *(noise * part for part in parts))
        run.controller_seconds += time.perf_counter() - began


def fixed_rates(machine: Machine, stands: np.ndarray, context: float) -> np.ndarray:
    """Tokens per second with 0 .. MAX_DRAFTS drafts for every request."""
    requests = len(stands)
    tokens = requests + np.concatenate([[0.0], np.cumsum(stands.sum(axis=0))])
    seconds = [sum(step_seconds(machine, np.full(requests, count), context)) for count in range(MAX_DRAFTS + 1)]
    return np.asarray(tokens / np.array(seconds))


def simulate(machine: Machine, load: Sequence[Phase], seed: int = 1) -> Run:
    run, batch, auto, now = Run(WINDOWS_A_PHASE * len(load)), Batch(np.random.default_rng(seed)), Auto(seed), 0.0
    total = sum(phase.seconds for phase in load)
    ends = np.cumsum([phase.seconds for phase in load])
    while now < total * (1 - 1e-9):
        index = int(np.searchsorted(ends, now, side="right"))
        phase = load[index]
        for gone in batch.fill(phase.requests):
            auto.controller.forget(gone)
        rates, context = batch.rates(phase.traffic), float(batch.context.sum())
        stands = np.cumprod(rates, axis=1)
        num_drafts = auto.choose(batch, run)
        parts = step_seconds(machine, num_drafts, context)
        tokens = 1 + (stands * (np.arange(MAX_DRAFTS)[None, :] < num_drafts[:, None])).sum(axis=1)
        auto.observe(batch, rates, num_drafts, parts, run)
        window = WINDOWS_A_PHASE * index + int((1 - (ends[index] - now) / phase.seconds) * WINDOWS_A_PHASE)
        run.tokens[window] += tokens.sum()
        run.seconds[window] += sum(parts)
        run.rounds[window] += len(num_drafts)
        run.drafts[window] += num_drafts.sum()
        run.fixed_tokens[:, window] += sum(parts) * fixed_rates(machine, stands, context)
        run.num_steps += 1
        batch.advance(tokens)
        now += sum(parts)
    return run


def loads(machine: Machine, steps: int) -> dict[str, list[Phase]]:
    """By name; times are so long that about `steps` plain steps of the phase's batch fit in."""
    most = 32 if isinstance(machine, MeasuredCpu) else 512

    def phase(requests: int, traffic: str, share: float = 1.0) -> Phase:
        return Phase(steps * share * machine.plain(requests, requests * PROMPT * 1.3), requests, traffic)

    steady = {f"steady {count}": [phase(count, "chat"), phase(count, "chat")] for count in (1, 8, most // 4, most)}
    return steady | {
        "steps 1-32-1": [phase(1, "chat"), phase(32, "chat"), phase(1, "chat"), phase(32, "code"), phase(1, "poor")],
        "shift": [phase(8, "code"), phase(8, "poor"), phase(8, "code"), phase(8, "none"), phase(8, "chat")],
        "ramp": [phase(max(1, most >> shift), "chat") for shift in (9, 7, 5, 3, 2, 1, 0, 1, 2, 3, 5, 7, 9)],
        "nothing accepted": [phase(1, "none"), phase(most // 2, "none")],
        "all accepted": [phase(1, "all"), phase(most // 2, "all")],
    }


def by_phase(tokens: np.ndarray, plain: np.ndarray) -> list[float]:
    ratios = tokens.reshape(-1, WINDOWS_A_PHASE).sum(axis=1) / plain.reshape(-1, WINDOWS_A_PHASE).sum(axis=1)
    return [round(float(ratio), 4) for ratio in ratios]


def evaluate(machine: Machine, name: str, load: Sequence[Phase]) -> dict[str, Any]:
    run = simulate(machine, load)
    used = run.seconds > 0
    fixed = run.fixed_tokens.sum(axis=1)
    best = int(np.argmax(fixed))
    plain = run.fixed_tokens[0, used]
    return {
        "machine": machine.name,
        "load": name,
        "phases": [[phase.seconds, phase.requests, phase.traffic] for phase in load],
        "of_plain": float(run.tokens.sum() / fixed[0]),
        "fixed_of_plain": (fixed / fixed[0]).round(4).tolist(),
        "best_fixed": best,
        "of_best_fixed": float(run.tokens.sum() / fixed[best]),
        "of_plain_by_phase": by_phase(run.tokens, run.fixed_tokens[0]),
        "of_plain_by_window": (run.tokens[used] / plain).round(4).tolist(),
        "best_fixed_of_plain_by_window": (run.fixed_tokens[best, used] / plain).round(4).tolist(),
        "best_of_window_of_plain": (run.fixed_tokens[:, used].max(axis=0) / plain).round(4).tolist(),
        "drafts_by_window": (run.drafts[used] / run.rounds[used]).round(3).tolist(),
        "steps": run.num_steps,
        "steps_by_reason": run.reasons,
        "changes_of_length": run.num_changes,
        "controller_microseconds_a_step": 1e6 * run.controller_seconds / run.num_steps,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", default="", help="only machines whose name this regular expression finds")
    parser.add_argument("--load", default="", help="only loads whose name contains this")
    parser.add_argument("--recorded", type=Path, help="a load as JSON: [[seconds, requests, traffic], ...]")
    parser.add_argument("--steps", type=int, default=2000, help="plain steps a phase")
    parser.add_argument("--output", help="name of the result in bench/results")
    parser.add_argument("--plot", type=Path, help="PNG to write (needs matplotlib)")
    options = parser.parse_args()
    cases = []
    for machine in machines():
        named = loads(machine, options.steps)
        if options.recorded is not None:
            named = {options.recorded.stem: [Phase(*entry) for entry in json.loads(options.recorded.read_text())]}
        for name, load in named.items():
            if re.search(options.machine, machine.name) and options.load in name:
                cases.append(evaluate(machine, name, load))
                print_case(cases[-1])
    least = min(min(case["of_plain_by_phase"]) for case in cases)
    mean = float(np.mean([case["of_best_fixed"] for case in cases]))
    met = {"least_of_plain": least >= LEAST_OF_PLAIN, "mean_of_best_fixed": mean >= LEAST_OF_BEST}
    print(f"least of plain in a phase {least:.3f}, mean of the best fixed {mean:.3f}: {met}")
    if options.output:
        figures = {"least_of_plain": least, "mean_of_best_fixed": mean}
        write_result(options.output, {"provenance": provenance(), "figures": figures, "met": met, "cases": cases})
    if options.plot is not None:
        from controller_plot import plot

        plot(cases, options.plot)
    return 0 if all(met.values()) else 1


def print_case(case: dict[str, Any]) -> None:
    print(
        f"{case['machine']:28} {case['load']:17} of plain {case['of_plain']:.3f} (least phase "
        f"{min(case['of_plain_by_phase']):.3f}, window {min(case['of_plain_by_window']):.3f}), "
        f"of best fixed K={case['best_fixed']} {case['of_best_fixed']:.3f}, "
        f"{case['steps']} steps, {case['changes_of_length']} changes, {case['controller_microseconds_a_step']:.0f} us, "
        f"{case['steps_by_reason']}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
