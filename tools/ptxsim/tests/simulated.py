"""Compiling a CUDA program against the simulator's libcudart, and running it there."""

import os
import subprocess
from pathlib import Path

NVCC = os.environ.get("NVCC") or "nvcc"


def compile_program(
    library: Path, program: Path, sources: list[Path], *options: str, targets: tuple[str, ...] = ("80",)
) -> None:
    command = [NVCC, "-std=c++20", "-cudart", "shared", "-lineinfo", *options]
    for target in targets:
        command += ["-gencode", f"arch=compute_{target},code=compute_{target}"]
    # -l:libcudart.so.13 for the functions that only the simulator has.
    command += [*map(str, sources), "-o", str(program), "-L", str(library), "-l:libcudart.so.13"]
    subprocess.run(command, check=True)


def run_program(
    library: Path, program: Path, *arguments: str, variables: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Only the given PTXSIM_* variables are set."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PTXSIM_")}
    environment |= {"LD_LIBRARY_PATH": str(library), **variables}
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
