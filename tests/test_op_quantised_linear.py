"""Quantised weights of linear: the bits of the dequantised weight, for every code, scale, group, dtype and instruction
set; the packed layouts; and what is not finite is counted."""

from __future__ import annotations

import numpy as np
import pytest
from support.quantised import FP8_VALUES
from test_op_linear import ISAS, bfloat16_bits, bits, run_linear

from eagle31rt import _testing
from eagle31rt.errors import InternalError, InvalidArgumentError

DTYPES = ["float32", "bfloat16", "float16"]
FP4_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
VALUES = {"fp8": FP8_VALUES, "int4": np.arange(-8, 8, dtype=np.float32), "fp4": FP4_VALUES}
# code, scale, group size: as published, and sizes that cut codes, blocks of the loop (128) and tiles (64).
FORMS = [
    ("fp8", "float32", 128),
    ("fp8", "float32", 24),
    ("int4", "bfloat16", 32),
    ("int4", "float32", 128),
    ("int4", "bfloat16", 7),
    ("fp4", "e8m0", 32),
]
SHAPES = [(1, 1), (31, 40), (33, 129), (70, 300)]


def random_codes(code: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    codes = rng.integers(0, len(VALUES[code]), shape).astype(np.uint8)
    return np.where(np.isnan(VALUES[code][codes]), 0x7E, codes).astype(np.uint8)


def random_scales(scale: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    if scale == "e8m0":
        return np.exp2(rng.integers(-9, 4, shape)).astype(np.float32)
    scales = rng.uniform(0.001, 0.02, shape).astype(np.float32)
    if scale == "bfloat16":
        scales = (bfloat16_bits(scales).astype(np.uint32) << 16).view(np.float32)
    scales.flat[0] = 0.0
    return scales


def num_groups(size: int, group: int) -> int:
    return -(-size // group)


def dequantised(code: str, codes: np.ndarray, scales: np.ndarray, group: int) -> np.ndarray:
    """The values as a loader computes them, in float32."""
    return VALUES[code][codes] * np.repeat(scales, group, axis=1)[:, : codes.shape[1]]


def make_pair(
    form: tuple[str, str, int], shape: tuple[int, int], dtype: str, row_major: bool = False
) -> tuple[_testing.PackedWeight, _testing.PackedWeight, np.ndarray]:
    """A quantised weight, the plain one of its dequantised values, and these in float32."""
    code, scale, group = form
    rng = np.random.default_rng(sum(shape) + group)
    codes = random_codes(code, shape, rng)
    scales = random_scales(scale, (shape[0], num_groups(shape[1], group)), rng)
    quantised = _testing.PackedWeight(dtype, *shape, code, scale, group, row_major)
    for begin, end in [(shape[0] // 3, shape[0]), (0, shape[0] // 3)]:  # blocks that share panels, out of order
        assert quantised.write_codes(begin, codes[begin:end], scales[begin:end]) == 0
    values = dequantised(code, codes, scales, group)
    plain = _testing.PackedWeight(dtype, *shape)
    assert plain.write_rows(0, values, "float32") == 0
    return quantised, plain, values


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_those_of_dequantised_weights(form: tuple[str, str, int], shape: tuple[int, int], dtype: str) -> None:
    quantised, plain, _ = make_pair(form, shape, dtype)
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((30, shape[1])).astype(np.float32)
    rows[3], rows[7, 0], rows[11] = np.nan, np.inf, 1e38
    for isa in ISAS:
        for num_rows, threads in [(1, 1), (2, 2), (5, 1), (30, 3)]:
            expected = run_linear(plain, rows[:num_rows], isa, threads)
            found = run_linear(quantised, rows[:num_rows], isa, threads)
            np.testing.assert_array_equal(bits(found), bits(expected))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("code", VALUES)
def test_every_code_times_many_scales(code: str, dtype: str, isa: str) -> None:
    """Each element by itself: one row that has a one at its feature. Scales whose products round, and are subnormal."""
    codes = np.flatnonzero(np.isfinite(VALUES[code])).astype(np.uint8)
    rng = np.random.default_rng(3)
    scale = {"fp8": "float32", "int4": "bfloat16", "fp4": "e8m0"}[code]
    scales = random_scales(scale, (40, 1), rng)
    scales[1:5, 0] = np.array([2.0**-126, 2.0**-127, 2.0**-20, 1.0], np.float32)
    if scale == "bfloat16":
        scales[5, 0] = 1 + 2.0**-7
    weight = _testing.PackedWeight(dtype, 40, codes.size, code, scale, 256)
    assert weight.write_codes(0, np.tile(codes, (40, 1)), scales) == 0
    plain = _testing.PackedWeight(dtype, 40, codes.size)
    values = VALUES[code][codes][None] * scales
    plain.write_rows(0, values, "float32")
    expected = np.array([[plain.value(o, k) for k in range(codes.size)] for o in range(40)], np.float32)
    found = run_linear(weight, np.eye(codes.size, dtype=np.float32), isa).T
    np.testing.assert_array_equal(found, expected)
    by_value = np.array([[weight.value(o, k) for k in range(codes.size)] for o in range(40)], np.float32)
    np.testing.assert_array_equal(by_value, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", [("fp8", "float32", 128), ("int4", "bfloat16", 32), ("fp4", "e8m0", 32)])
@pytest.mark.parametrize("row_major", [False, True])
def test_values_and_size_in_both_layouts(form: tuple[str, str, int], dtype: str, row_major: bool) -> None:
    quantised, plain, _ = make_pair(form, (41, 200), dtype, row_major)
    for o in range(41):
        assert [quantised.value(o, k) for k in range(200)] == [plain.value(o, k) for k in range(200)]
    code_bytes, scale_bytes = {"fp8": (1, 4), "int4": (0.5, 2), "fp4": (0.5, 1)}[form[0]]
    depth = 256 if row_major else 200
    groups = depth // 32 if row_major and form[2] == 32 else num_groups(200, form[2])
    per_panel = 32 * (depth * code_bytes + groups * scale_bytes)
    assert quantised.packed_bytes().size == 2 * (-(-int(per_panel) // 64) * 64)


def test_layout_of_panels() -> None:
    """Scales of a group, then its codes feature by feature; outputs j and j + 16 share a byte."""
    weight = _testing.PackedWeight("bfloat16", 32, 3, "int4", "bfloat16", 2)
    codes = (np.arange(96).reshape(32, 3) % 16).astype(np.uint8)
    scales = np.arange(64, dtype=np.float32).reshape(32, 2)
    assert weight.write_codes(0, codes, scales) == 0
    expected = b""
    for group, features in [(0, (0, 1)), (1, (2,))]:
        expected += bfloat16_bits(scales[:, group]).tobytes()
        for k in features:
            expected += (codes[:16, k] | codes[16:, k] << 4).astype(np.uint8).tobytes()
    assert weight.packed_bytes().tobytes() == expected.ljust(192, b"\0")


def test_layout_of_tiles() -> None:
    """The fragment of mma.m16n8k16: a lane has features 2 * (lane % 4) + 0, 1, 8, 9 of two columns."""
    weight = _testing.PackedWeight("bfloat16", 32, 128, "fp8", "float32", 128, row_major=True)
    rng = np.random.default_rng(5)
    codes = random_codes("fp8", (32, 128), rng)
    scales = rng.uniform(1, 2, (32, 1)).astype(np.float32)
    assert weight.write_codes(0, codes, scales) == 0
    expected = b""
    for strip in (0, 16):
        for step in range(0, 128, 16):
            for lane in range(32):
                features = step + 2 * (lane % 4) + np.array([0, 1, 8, 9])
                for column in (lane // 4, lane // 4 + 8):
                    expected += codes[strip + column, features].tobytes()
        expected += scales[strip : strip + 16].tobytes()
    assert weight.packed_bytes().tobytes() == expected


def test_elements_that_are_not_finite_are_counted() -> None:
    fp8 = _testing.PackedWeight("bfloat16", 2, 5, "fp8", "float32", 4)
    codes = np.array([[0x7F, 1, 0x7E, 0xFF, 0], [1, 2, 3, 4, 0x7F]], np.uint8)
    assert fp8.write_codes(0, codes, np.ones((2, 2), np.float32)) == 3
    scales = np.array([[1.0, np.nan], [np.inf, 2.0**120]], np.float32)
    assert fp8.write_codes(0, np.full((2, 5), 0x38, np.uint8), scales) == 6
    half = _testing.PackedWeight("float16", 1, 4, "fp4", "e8m0", 32)
    assert half.write_codes(0, np.array([[7, 6, 15, 0]], np.uint8), np.array([[2.0**14]], np.float32)) == 3
    whole = _testing.PackedWeight("float32", 1, 2, "int4", "bfloat16", 32)
    assert whole.write_codes(0, np.array([[0, 15]], np.uint8), np.array([[2.0**119]], np.float32)) == 0


def test_forms_without_kernels_are_refused() -> None:
    for code, scale, group in [
        ("fp8", "e8m0", 32),
        ("fp4", "float32", 32),
        ("int4", "e8m0", 32),
        ("int4", "float32", 0),
    ]:
        with pytest.raises(InvalidArgumentError, match="no kernel reads a weight in groups"):
            _testing.PackedWeight("bfloat16", 4, 4, code, scale, group)
    for group in (8, 24, 96):  # they straddle tiles of 64 features, or cut a matrix instruction
        with pytest.raises(InvalidArgumentError, match=f"groups of {group}"):
            _testing.PackedWeight("bfloat16", 4, 4, "int4", "float32", group, row_major=True)
    weight = _testing.PackedWeight("bfloat16", 4, 4, "int4", "float32", 4)
    with pytest.raises(InternalError):
        weight.write_rows(0, np.zeros((4, 4), np.float32), "float32")


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "form",
    [
        ("fp8", "float32", 128),
        ("fp8", "float32", 32),
        ("int4", "bfloat16", 32),
        ("int4", "float32", 16),
        ("int4", "bfloat16", 128),
        ("fp4", "e8m0", 32),
    ],
)
@pytest.mark.parametrize("shape", [(33, 200), (70, 1100)])  # cut strips, tiles and groups; one segment and two
def test_bits_on_cuda(form: tuple[str, str, int], shape: tuple[int, int], dtype: str) -> None:
    code, scale, group = form
    rng = np.random.default_rng(shape[0] + group)
    codes = random_codes(code, shape, rng)
    scales = random_scales(scale, (shape[0], num_groups(shape[1], group)), rng)
    values = dequantised(code, codes, scales, group)
    rows = rng.standard_normal((20, shape[1])).astype(np.float32)
    for num_rows in (1, 16, 20):  # both tiles
        expected = _testing.cuda_linear(values, dtype, rows[:num_rows], None, None, shape[0])
        found = _testing.cuda_linear_of_codes(codes, scales, code, scale, group, dtype, rows[:num_rows])
        np.testing.assert_array_equal(bits(found), bits(expected))
