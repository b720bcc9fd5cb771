"""Every operator of the table: a row's bytes do not depend on its company (batch_correctness 2.5).

A row is placed first, in the middle and last among 1 to 257 rows, ordinary ones and hostile ones (zeros, Inf, NaN,
huge, subnormal), on every instruction set and on one, two and three threads, and must equal the same row alone. Of a
NaN only that it is one is compared: which operand's sign and payload survive depends on how a compiler orders them.
"""

import random

import numpy as np
import pytest

from eagle31rt import _testing

ROW_COUNTS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 255, 257]
INSTRUCTION_SETS = _testing.available_instruction_sets()
# Ordinary rows, and one that is hostile itself in a few elements (id % 6 == 5).
TARGETS = [7, 123456, _testing.HOSTILE_ROW + 6 * 11 + (5 - _testing.HOSTILE_ROW) % 6]
OPS = {op["name"]: op for op in _testing.list_ops()}
VARIANTS = [
    pytest.param(op["name"], variant, id=f"{op['name']}-{name}")
    for op in OPS.values()
    for variant, name in enumerate(op["variants"])
]


def run_case(case: _testing.Case, op: str, instruction_set: str, num_threads: int = 1) -> list[bytes]:
    """Output rows as bytes, every float NaN replaced by the same one."""
    rows = case.run("cpu", instruction_set, num_threads)
    if OPS[op]["integer_output"]:
        return rows
    values = [np.frombuffer(row, np.float32) for row in rows]
    return [np.where(np.isnan(row), np.float32(np.nan), row).tobytes() for row in values]


def row_ids_with(target: int, count: int) -> tuple[list[int], list[int]]:
    """Row ids with the target at the returned indices: the first, a middle and the last."""
    rng = random.Random(count * 1000003 + target)
    ids = [rng.randrange(2**31) + rng.choice([0, 0, _testing.HOSTILE_ROW]) for _ in range(count)]
    places = sorted({0, count // 2, count - 1})
    for place in places:
        ids[place] = target
    return ids, places


def runs_for(count: int) -> list[tuple[str, int]]:
    """Instruction set and threads: every number of threads on the best set, one number on the others."""
    best, *others = INSTRUCTION_SETS
    return [(best, 1), (best, 2), (best, 3)] + [(name, 1 + count % 3) for name in others]


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_row_bytes_do_not_depend_on_company(op: str, variant: int) -> None:
    for index, target in enumerate(TARGETS):
        single = _testing.Case(op, variant, [target])
        alone = {name: run_case(single, op, name)[0] for name in INSTRUCTION_SETS}
        for count in ROW_COUNTS if index == 0 else ROW_COUNTS[index::2]:  # the others share the counts, for time
            ids, places = row_ids_with(target, count)
            case = _testing.Case(op, variant, ids)
            for name, num_threads in runs_for(count):
                rows = run_case(case, op, name, num_threads)
                for place in places:
                    assert rows[place] == alone[name], f"row {place} of {count}, {name}, {num_threads} threads"


@pytest.mark.skipif(
    not {"avx2", "avx512"} <= set(INSTRUCTION_SETS), reason="needs a processor with both AVX2 and AVX-512"
)
@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_fused_instruction_sets_agree(op: str, variant: int) -> None:
    ids = list(range(40)) + [_testing.HOSTILE_ROW + i for i in range(24)]
    case = _testing.Case(op, variant, ids)
    avx2, avx512 = run_case(case, op, "avx2"), run_case(case, op, "avx512")
    assert [i for i, (a, b) in enumerate(zip(avx2, avx512, strict=True)) if a != b] == []
