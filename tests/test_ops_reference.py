"""Every operator of the table against its scalar reference, within the tolerance that the table states."""

from pathlib import Path

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


def test_every_operator_folder_is_in_the_table() -> None:
    folders = {path.parent.name for path in (Path(__file__).parent.parent / "csrc" / "ops").glob("*/cases.cpp")}
    assert set(OPS) == folders and len(folders) >= 11
    assert all(op["variants"] for op in OPS.values())


def assert_matches_reference(op: str, actual: list[bytes], reference: list[bytes], on_cuda: bool) -> None:
    if OPS[op]["integer_output"]:
        assert actual == reference
        return
    prefix = "cuda_" if on_cuda else ""
    for actual_row, reference_row in zip(actual, reference, strict=True):
        assert_close_to_reference(
            np.frombuffer(actual_row, np.float32),
            np.frombuffer(reference_row, np.float32),
            OPS[op][prefix + "absolute"],
            OPS[op][prefix + "relative"],
        )


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_matches_reference(op: str, variant: int, device: str) -> None:
    on_cuda = device == "cuda"
    case = _testing.Case(op, variant, list(range(20 if on_cuda else 48)), device)
    reference = case.run("reference")
    for instruction_set in [""] if on_cuda else INSTRUCTION_SETS:
        assert_matches_reference(op, case.run(device, instruction_set, num_threads=2), reference, on_cuda)
