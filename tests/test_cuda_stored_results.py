"""CUDA operators against what the simulator computed when they were last changed.

On the simulator the bytes are equal, or the file is stale. On a GPU integers are equal and floats agree within the
tolerance that both have against the reference: matrix instructions may add in another order there.
"""

import numpy as np
import pytest
from support.stored_results import PATH, compute, key_of
from tolerances import assert_close_to_reference

from eagle31rt import _testing

pytestmark = pytest.mark.cuda

OPS = {op["name"]: op for op in _testing.list_ops()}
VARIANTS = [
    pytest.param(op["name"], variant, id=key_of(op["name"], name))
    for op in OPS.values()
    for variant, name in enumerate(op["variants"])
]


@pytest.fixture(scope="module")
def stored() -> dict[str, np.ndarray]:
    return dict(np.load(PATH))


def test_nothing_is_stored_that_does_not_exist(stored: dict[str, np.ndarray]) -> None:
    assert set(stored) == {param.id for param in VARIANTS}


@pytest.mark.parametrize(("op", "variant"), VARIANTS)
def test_agrees_with_stored_result(op: str, variant: int, stored: dict[str, np.ndarray], on_simulator: bool) -> None:
    expected, actual = stored[key_of(op, OPS[op]["variants"][variant])], compute(op, variant)
    if on_simulator or OPS[op]["integer_output"]:
        assert actual.tobytes() == expected.tobytes(), "run `python -m support.stored_results` if the change is meant"
        return
    absolute, relative = 2 * OPS[op]["cuda_absolute"], 2 * OPS[op]["cuda_relative"]
    assert_close_to_reference(actual.view(np.float32), expected.view(np.float32), absolute, relative)
