#!/usr/bin/env python3
"""The simulator's self-test: kernels with deliberate mistakes, each of which must be caught.

run_mutants.py LIBRARY_DIRECTORY [NUMBER ...] compiles mutants/main.cu once per mutant, runs it on the simulator in the
default order, under three seeds and in race mode, and compares the outcomes with the table below. Mutant 0 is the
kernels as they should be: it must pass everything.
"""

import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from simulated import compile_program, run_program

SOURCE = Path(__file__).resolve().parent.parent / "mutants" / "main.cu"
MODES: dict[str, dict[str, str]] = {
    "default": {},
    "seed 1": {"PTXSIM_SEED": "1"},
    "seed 2": {"PTXSIM_SEED": "2"},
    "seed 3": {"PTXSIM_SEED": "3"},
    "race": {"PTXSIM_RACE": "1"},
}
WRONG = "wrong"  # the program's own comparison with its reference failed
PASS = "pass"


@dataclass
class Mutant:
    mistake: str
    # What must come out by mode: outcome, or outcomes of which any will do.
    default: set[str]
    seeds: set[str]  # of at least one of the three
    race: set[str]


MUTANTS = {
    0: Mutant("none", {PASS}, {PASS}, {PASS}),
    1: Mutant(
        "RMSNorm: no __syncthreads before partial sums are read", {PASS, WRONG}, {WRONG}, {"race", "uninitialised"}
    ),
    2: Mutant("cp.async: waits for one group too few", {WRONG}, {WRONG}, {"race", "uninitialised", "async"}),
    3: Mutant("pipeline: no __syncthreads after the wait", {PASS, WRONG}, {PASS, WRONG}, {"race"}),
    4: Mutant("global memory: one row too far", {"out-of-bounds"}, {"out-of-bounds"}, {"out-of-bounds"}),
    5: Mutant("dynamic shared memory: 512 bytes too little", {"out-of-bounds"}, {"out-of-bounds"}, {"out-of-bounds"}),
    6: Mutant("mma: fragments swapped", {WRONG}, {WRONG}, {WRONG}),
    7: Mutant("shuffle in a divergent branch", {"deadlock", "mask"}, {"deadlock", "mask"}, {"deadlock", "mask"}),
    8: Mutant("pipeline: stage overwritten while it is read", {WRONG}, {WRONG}, {"race"}),
    9: Mutant(
        "argmax: no __syncthreads before partial bests are read", {PASS, WRONG}, {WRONG}, {"race", "uninitialised"}
    ),
    10: Mutant("inline PTX: operands in the wrong order", {WRONG}, {WRONG}, {WRONG}),
    11: Mutant("ldmatrix and cp.async: rows not aligned to 16 bytes", {"misaligned"}, {"misaligned"}, {"misaligned"}),
    12: Mutant(
        "a block reads what other blocks of its launch write", {PASS, WRONG}, {WRONG}, {"race", "uninitialised"}
    ),
    13: Mutant("a shuffle in place of __syncwarp", {PASS}, {PASS}, {"race"}),
}


def compile_mutant(number: int, library: Path, folder: Path) -> Path:
    program = folder / f"mutant{number}"
    options = [f"-DMUTANT={number}", "--no-compress", "-diag-suppress", "177"]
    compile_program(library, program, [SOURCE], *options)
    return program


def outcome(program: Path, library: Path, variables: dict[str, str]) -> tuple[str, str]:
    """A word (pass, wrong, or the kind of the report) and what the simulator said."""
    result = run_program(library, program, variables=variables)
    if result.returncode in (0, 1):
        return (PASS if result.returncode == 0 else WRONG), ""
    report = re.search(r"^ptxsim: ([a-z-]+): ", result.stderr, re.MULTILINE)
    return (report.group(1) if report else f"exit {result.returncode}"), result.stderr


def problems(number: int, results: dict[str, tuple[str, str]]) -> list[str]:
    mutant = MUTANTS[number]
    words = {mode: word for mode, (word, _) in results.items()}
    seeds = {word for mode, word in words.items() if mode.startswith("seed")}
    found = []
    if words["default"] not in mutant.default:
        found.append(f"default order: {words['default']}, expected {mutant.default}")
    if words["race"] not in mutant.race:
        found.append(f"race mode: {words['race']}, expected {mutant.race}")
    if not (seeds <= mutant.seeds if number == 0 else seeds & mutant.seeds):
        found.append(f"seeds: {seeds}, expected {mutant.seeds}")
    if number != 0 and set(words.values()) == {PASS}:
        found.append("nothing caught it")
    for mode, (word, report) in results.items():
        if word not in (PASS, WRONG) and not re.search(r"\b(kernels\.cuh|main\.cu):\d+", report):
            found.append(f"{mode}: the report names no line of the source:\n{report}")
    return found


def main() -> int:
    library = Path(sys.argv[1]).resolve()
    numbers = [int(argument) for argument in sys.argv[2:]] or list(MUTANTS)
    failures = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        programs = {number: pool.submit(compile_mutant, number, library, Path(folder)) for number in numbers}
        print("| mutant | " + " | ".join(MODES) + " |\n|---" + "|---" * len(MODES) + "|")
        for number in numbers:
            program = programs[number].result()
            results = {mode: outcome(program, library, variables) for mode, variables in MODES.items()}
            words = " | ".join(word for word, _ in results.values())
            print(f"| m{number} {MUTANTS[number].mistake} | {words} |", flush=True)
            for problem in problems(number, results):
                failures += 1
                print(f"m{number}: {problem}")
    print(f"{failures} unexpected outcomes")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
