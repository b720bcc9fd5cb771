#!/usr/bin/env python3
"""Compiles the tests of the stand-in runtime with nvcc and runs them on it: run_cudart.py LIBRARY_DIRECTORY.

Tests named environment_* need variables of the environment and run in processes of their own.
"""

import json
import sys
import tempfile
from pathlib import Path

from simulated import compile_program, run_program

TESTS = Path(__file__).resolve().parent
ENVIRONMENTS = {
    "environment_eager_runs_at_once": {"PTXSIM_EAGER": "1"},
    "environment_fails_the_second_allocation": {"PTXSIM_FAIL_MALLOC": "2"},
    "environment_small_memory": {"PTXSIM_MEMORY_BYTES": str(1 << 20)},
    "environment_fails_a_launch": {"PTXSIM_FAIL_LAUNCH": "fill_values(int*:1"},
    "environment_no_driver": {"PTXSIM_DEVICE": "none"},
    "environment_no_gpu": {"PTXSIM_DEVICE": "nogpu"},
    "environment_too_old": {"PTXSIM_DEVICE": "t4"},
    "environment_h100": {"PTXSIM_DEVICE": "h100"},
}
ABORT_EXIT_CODE = 86
# The same program in other packagings: tests of streams must pass in each.
VARIANTS = {
    "LZ4": ["-compress-mode=speed"],
    "uncompressed": ["--no-compress"],
    "stream per thread": ["--default-stream", "per-thread"],
}
VARIANT_SOURCES = [TESTS / "cudart_main.cu", TESTS / "cudart_streams.cu"]
VARIANT_TESTS = ["work_waits_for_synchronisation", "event_makes_a_stream_wait_for_another", "event_query_and_time"]


def check_abort(library: Path, program: Path, counters: Path) -> bool:
    variables = {"PTXSIM_ABORT": "1", "PTXSIM_COUNTERS_FILE": str(counters)}
    result = run_program(library, program, "environment_aborts", variables=variables)
    found = json.loads(counters.read_text())
    return (
        result.returncode == ABORT_EXIT_CODE
        and "ptxsim: out-of-bounds" in result.stderr
        and any("write_far(int*)" in name for name in found)
    )


def main() -> int:
    library = Path(sys.argv[1]).resolve()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "cudart_tests"
        compile_program(library, program, sorted(TESTS.glob("cudart_*.cu")), targets=("80", "90a"))
        result = run_program(library, program, variables={})
        print(result.stdout, end="")
        if result.returncode != 0:
            failed.append("tests in the plain environment")
            print(result.stderr, end="")
        for test, variables in ENVIRONMENTS.items():
            result = run_program(library, program, test, variables=variables)
            print(result.stdout, end="")
            if result.returncode != 0:
                failed.append(test)
                print(result.stderr, end="")
        if not check_abort(library, program, Path(folder) / "counters.json"):
            failed.append("environment_aborts")
        for variant, options in VARIANTS.items():
            compile_program(library, program, VARIANT_SOURCES, *options)
            result = run_program(library, program, *VARIANT_TESTS, variables={})
            print(f"{variant} {'ok' if result.returncode == 0 else 'FAILED'}")
            if result.returncode != 0:
                failed.append(variant)
                print(result.stdout, result.stderr, end="")
    print(f"{len(failed)} failed" + "".join(f"\n  {name}" for name in failed))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
