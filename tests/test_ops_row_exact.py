"""Every operator of the table: a row's bytes do not depend on its company (batch_correctness 2.5).

Among 1 to 257 rows, ordinary ones and hostile ones (zeros, Inf, NaN, huge, subnormal), at every index, on every
instruction set and on one, two and three threads, each row must equal the same row alone. Of a
NaN only that it is one is compared: which operand's sign and payload survive depends on how a compiler orders them.
"""

import random

import numpy as np
import pytest

from eagle31rt import _testing

# The simulator affords fewer: about the tiles of 16 and 64 rows.
CUDA_ROW_COUNTS = [1, 2, 3, 5, 8, 15, 16, 17, 33, 64, 65]
ROW_COUNTS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257]
INSTRUCTION_SETS = _testing.available_instruction_sets()
# Rows that company is drawn from: ordinary ones and hostile ones of every kind (id % 6).
POOL = [7, 123456, 99, 2024, 31337, 271828, 314159, 555555] + [_testing.HOSTILE_ROW + i for i in range(60, 66)]
OPS = {op["name"]: op for op in _testing.list_ops()}
VARIANTS = [
    pytest.param(op["name"], variant, id=f"{op['name']}-{name}")
    for op in OPS.values()
    for variant, name in enumerate(op["variants"])
]


def run_case(case: _testing.Case, op: str, instruction_set: str, num_threads: int = 1) -> list[bytes]:
    """Output rows as bytes, every float NaN replaced by the same one. instruction_set: of the CPU, or "cuda"."""
    on_cuda = instruction_set == "cuda"
    rows = case.run("cuda" if on_cuda else "cpu", "" if on_cuda else instruction_set, num_threads)
    if OPS[op]["integer_output"]:
        return rows
    values = [np.frombuffer(row, np.float32) for row in rows]
    return [np.where(np.isnan(row), np.float32(np.nan), row).tobytes() for row in values]


def runs_for(count: int, device: str) -> list[tuple[str, int]]:
    """Instruction set and threads: every number of threads on the best set, one number on the others."""
    if device == "cuda":
        return [("cuda", 1)]
    best, *others = INSTRUCTION_SETS
    return [(best, 1), (best, 2), (best, 3)] + [(name, 1 + count % 3) for name in others]


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_row_bytes_do_not_depend_on_company(op: str, variant: int, device: str) -> None:
    on_cuda = device == "cuda"
    singles = {row_id: _testing.Case(op, variant, [row_id], device) for row_id in POOL}
    alone = {
        name: {row_id: run_case(case, op, name)[0] for row_id, case in singles.items()}
        for name in (["cuda"] if on_cuda else INSTRUCTION_SETS)
    }
    for count in CUDA_ROW_COUNTS if on_cuda else ROW_COUNTS:
        ids = random.Random(count).choices(POOL, k=count)
        case = _testing.Case(op, variant, ids, device)
        for name, num_threads in runs_for(count, device):
            rows = run_case(case, op, name, num_threads)
            wrong = [place for place, row_id in enumerate(ids) if rows[place] != alone[name][row_id]]
            assert wrong == [], f"rows {wrong[:5]} of {count}, {name}, {num_threads} threads"


@pytest.mark.skipif(
    not {"avx2", "avx512"} <= set(INSTRUCTION_SETS), reason="needs a processor with both AVX2 and AVX-512"
)
@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_fused_instruction_sets_agree(op: str, variant: int) -> None:
    ids = list(range(40)) + [_testing.HOSTILE_ROW + i for i in range(24)]
    case = _testing.Case(op, variant, ids)
    avx2, avx512 = run_case(case, op, "avx2"), run_case(case, op, "avx512")
    assert [i for i, (a, b) in enumerate(zip(avx2, avx512, strict=True)) if a != b] == []
