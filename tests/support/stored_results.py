"""Outputs of every CUDA operator as the simulator computed them, kept so that a GPU can be compared with them.

    python -m support.stored_results --ptxsim PATH    # in tests/: writes data/cuda_results.npz

Whoever changes a kernel's arithmetic or an operator's cases writes the file again and looks at the size of the change.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from eagle31rt import _testing

PATH = Path(__file__).resolve().parent.parent / "data" / "cuda_results.npz"
ROW_IDS = [0, 1]


def key_of(op: str, variant_name: str) -> str:
    """A key survives the reordering of variants."""
    return f"{op}: {variant_name}".replace("/", "|")


def compute(op: str, variant: int) -> np.ndarray:
    """The output rows of the case on CUDA, one after the other, as bytes."""
    rows = _testing.Case(op, variant, ROW_IDS, "cuda").run("cuda")
    return np.frombuffer(b"".join(rows), np.uint8)


def main() -> None:
    from support.device import load_simulator

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ptxsim", metavar="PATH", help="libcudart.so.13 of tools/ptxsim")
    load_simulator(parser.parse_args().ptxsim)
    results = {
        key_of(op["name"], name): compute(op["name"], variant)
        for op in _testing.list_ops()
        for variant, name in enumerate(op["variants"])
    }
    np.savez_compressed(PATH, **results)  # type: ignore[arg-type]
    print(f"{len(results)} results, {PATH.stat().st_size} bytes in {PATH.name}")


if __name__ == "__main__":
    main()
