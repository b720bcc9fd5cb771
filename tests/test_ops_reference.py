"""Every operator of the table against its scalar reference, within the tolerance that the table states."""

import numpy as np
import pytest
from tolerances import assert_close_to_reference

from eagle31rt import _testing

INSTRUCTION_SETS = _testing.available_instruction_sets()
OPS = {op["name"]: op for op in _testing.list_ops()}
VARIANTS = [
    pytest.param(op["name"], variant, id=f"{op['name']}-{name}")
    for op in OPS.values()
    for variant, name in enumerate(op["variants"])
]


def test_table_is_complete() -> None:
    names = {"embedding", "rms_norm", "linear", "rope", "kv_append", "paged_attention", "silu_mul", "fc_norm"}
    assert set(OPS) == names | {"sample", "verify_chain"}
    assert all(op["variants"] for op in OPS.values())


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_matches_reference(op: str, variant: int, instruction_set: str) -> None:
    case = _testing.Case(op, variant, list(range(48)))
    reference = case.run("reference")
    actual = case.run("cpu", instruction_set, num_threads=2)
    if OPS[op]["integer_output"]:
        assert actual == reference
        return
    for actual_row, reference_row in zip(actual, reference, strict=True):
        assert_close_to_reference(
            np.frombuffer(actual_row, np.float32),
            np.frombuffer(reference_row, np.float32),
            OPS[op]["absolute"],
            OPS[op]["relative"],
        )
