"""linear, fc_norm and packed weights: layout, rounding, arithmetic, and the same bits however the work is split."""

import numpy as np
import pytest

from eagle31rt import _testing
from eagle31rt.errors import InternalError, InvalidArgumentError

DTYPES = ["float32", "bfloat16", "float16"]
ISAS = _testing.instruction_sets()
# Variants with a fused multiply-add give the same bits; generic on x86-64 rounds the product.
FUSED_ISAS = [isa for isa in ISAS if isa != "generic"]
PANEL = 32


def bfloat16_bits(values: np.ndarray) -> np.ndarray:
    """Round to nearest, ties to even, on the integer representation; finite values only."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """What a weight of this dtype holds of float32 values, in float64."""
    if dtype == "float32":
        return values.astype(np.float64)
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float64)
    return (bfloat16_bits(values).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def raw(values: np.ndarray, dtype: str) -> np.ndarray:
    """Values in the memory format of a dtype, as write_rows takes them."""
    if dtype == "bfloat16":
        return bfloat16_bits(values)
    return values.astype(dtype)


def make_weight(values: np.ndarray, dtype: str) -> _testing.PackedWeight:
    weight = _testing.PackedWeight(dtype, *values.shape)
    assert weight.write_rows(0, np.ascontiguousarray(values, np.float32), "float32") == 0
    return weight


def run_linear(weight, rows, isa=ISAS[0], threads=1, bias=None, residual=None):
    return _testing.linear(weight, rows, bias, residual, isa, threads)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (33, 5), (70, 24)])
def test_packed_layout(dtype: str, shape: tuple[int, int]) -> None:
    num_out, num_in = shape
    values = np.arange(1, num_out * num_in + 1, dtype=np.float32).reshape(shape) / 8
    packed = make_weight(values, dtype).packed_bytes()
    panels = -(-num_out // PANEL)
    padded = np.zeros((panels * PANEL, num_in), np.float32)
    padded[:num_out] = values
    expected = padded.reshape(panels, PANEL, num_in).transpose(0, 2, 1)  # [panel, k, output]
    if dtype == "bfloat16":  # outputs j and j + 16 side by side
        expected = expected.reshape(panels, num_in, 2, 16).transpose(0, 1, 3, 2)
    assert packed.tobytes() == raw(np.ascontiguousarray(expected), dtype).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", DTYPES)
def test_write_rows_in_blocks_of_any_dtype(dtype: str, source: str) -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((77, 19)).astype(np.float32)
    weight = _testing.PackedWeight(dtype, 77, 19)
    for begin, end in [(40, 77), (0, 3), (3, 40)]:  # blocks that share panels, out of order
        assert weight.write_rows(begin, raw(values[begin:end], source), source) == 0
    expected = stored(stored(values, source).astype(np.float32), dtype)
    got = np.array([[weight.value(o, k) for k in range(19)] for o in range(77)])
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("bfloat16", 1 + 2**-8, 1.0),  # tie, to even
        ("bfloat16", 1 + 3 * 2**-8, 1 + 2**-6),  # tie, to even, upwards
        ("bfloat16", 1 + 2**-8 + 2**-20, 1 + 2**-7),
        ("bfloat16", -(2.0**-133), -(2.0**-133)),  # smallest subnormal
        ("float16", 1 + 2**-11, 1.0),
        ("float16", 1 + 3 * 2**-11, 1 + 2**-9),
        ("float16", 65519.0, 65504.0),
        ("float16", 2.0**-24, 2.0**-24),
        ("float16", 2.0**-25, 0.0),  # tie with zero
        ("float16", 3 * 2.0**-25, 2.0**-23),
        ("float32", 1 + 2**-23, 1 + 2**-23),
    ],
)
def test_conversion_rounds_to_nearest_even(dtype: str, value: float, expected: float) -> None:
    weight = _testing.PackedWeight(dtype, 1, 1)
    assert weight.write_rows(0, np.array([[value]], np.float32), "float32") == 0
    assert weight.value(0, 0) == expected
    one = np.ones((1, 1), np.float32)
    for isa in ISAS:
        assert run_linear(weight, one, isa)[0, 0] == expected


@pytest.mark.parametrize(
    ("dtype", "count"),
    [("float32", 3), ("bfloat16", 4), ("float16", 7)],  # the largest float32 rounds to inf in bfloat16
)
def test_non_finite_values_are_counted(dtype: str, count: int) -> None:
    values = np.ones((35, 7), np.float32)
    values[0, 0], values[34, 6], values[33, 2] = np.nan, np.inf, -np.inf
    values[5, 5] = np.finfo(np.float32).max
    values[6, 1], values[7, 1], values[8, 1] = 65520.0, -1e6, 3e38  # beyond float16
    values[9, 1] = 65504.0  # the largest float16
    assert _testing.PackedWeight(dtype, 35, 7).write_rows(0, values, "float32") == count


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="shape \\[0, 4\\]"):
        _testing.PackedWeight("float32", 0, 4)
    with pytest.raises(InvalidArgumentError, match="int8"):
        _testing.PackedWeight("int8", 4, 4)
    weight = _testing.PackedWeight("float32", 4, 4)
    for first_row in (-1, 3):
        with pytest.raises(InternalError):
            weight.write_rows(first_row, np.zeros((2, 4), np.float32), "float32")


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 8), (31, 24), (33, 129), (64, 1), (1000, 576), (576, 1536)])
@pytest.mark.parametrize("extras", ["", "bias", "bias residual"])
def test_linear_against_float64(isa: str, dtype: str, shape: tuple[int, int], extras: str) -> None:
    rng = np.random.default_rng(2)
    num_out, num_in = shape
    values = rng.standard_normal(shape).astype(np.float32) * 0.1
    rows = rng.standard_normal((14, num_in)).astype(np.float32)
    bias = rng.standard_normal(num_out).astype(np.float32) if "bias" in extras else None
    residual = rng.standard_normal((14, num_out)).astype(np.float32) if "residual" in extras else None
    exact_weight = stored(values, dtype)
    expected = rows.astype(np.float64) @ exact_weight.T
    magnitude = np.abs(rows.astype(np.float64)) @ np.abs(exact_weight.T)
    steps = num_in + 2
    for extra in (bias, residual):
        if extra is not None:
            expected = expected + extra
            magnitude = magnitude + np.abs(extra)
    got = run_linear(make_weight(values, dtype), rows, isa, 2, bias, residual)
    # The error of n roundings is below n * 2^-24 * sum |x w|; independent ones stay within a few sqrt(n).
    worst, usual = steps * 2.0**-24 * magnitude, 4 * np.sqrt(steps) * 2.0**-24 * magnitude
    assert (np.abs(got - expected) <= np.minimum(worst, usual)).all()


@pytest.mark.parametrize("num_in", [1, 127, 128, 129, 300])
@pytest.mark.parametrize("dtype", DTYPES)
def test_one_fused_sum_in_ascending_order(dtype: str, num_in: int) -> None:
    """The law of linear.h, step by step: float64 holds a product exactly, one rounding follows."""
    rng = np.random.default_rng(3)
    values = stored(rng.standard_normal((5, num_in)).astype(np.float32), dtype if dtype != "float32" else "bfloat16")
    rows = rng.standard_normal((9, num_in)).astype(np.float32)
    rows = stored(rows, "bfloat16").astype(np.float32)  # few bits, so that float64 sums are exact before rounding
    bias = rng.standard_normal(5).astype(np.float32)
    residual = rng.standard_normal((9, 5)).astype(np.float32)
    total = np.zeros((9, 5), np.float32)
    for k in range(num_in):
        product = rows[:, k, None].astype(np.float64) * values[None, :, k]
        total = (product + total).astype(np.float32)
    expected = (total + bias) + residual
    for isa in FUSED_ISAS:
        got = run_linear(make_weight(values, dtype), rows, isa, 1, bias, residual)
        np.testing.assert_array_equal(bits(got), bits(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(33, 24), (200, 300), (64, 4096)])
def test_same_bits_for_every_split(dtype: str, shape: tuple[int, int]) -> None:
    """Rows alone or among others, threads, instruction sets with a fused multiply-add: not one bit differs."""
    rng = np.random.default_rng(4)
    weight = make_weight(rng.standard_normal(shape) * 0.1, dtype)
    rows = rng.standard_normal((257, shape[1])).astype(np.float32)
    rows[3], rows[17, 5], rows[29] = np.nan, np.inf, 1e38
    for isa in ISAS:
        expected = np.concatenate([run_linear(weight, row[None], isa) for row in rows])
        assert np.isfinite(expected[:3]).all()
        for num_rows in [*range(1, 28), 63, 64, 65, 127, 257]:
            for threads in (1, 2, 3, 7) if num_rows in (1, 8, 27, 257) else (1 + num_rows % 3,):
                begin = (num_rows * 5) % (258 - num_rows)
                got = run_linear(weight, rows[begin : begin + num_rows], isa, threads)
                np.testing.assert_array_equal(bits(got), bits(expected[begin : begin + num_rows]))
        if isa in FUSED_ISAS:
            first = run_linear(weight, rows, FUSED_ISAS[0])
            np.testing.assert_array_equal(bits(expected), bits(first))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("num_chunks", [1, 3, 8])
@pytest.mark.parametrize("chunk_size", [8, 40, 576])
@pytest.mark.parametrize("mode", ["none", "per_chunk", "whole"])
def test_fc_norm_is_rms_norm_then_linear(isa: str, num_chunks: int, chunk_size: int, mode: str) -> None:
    rng = np.random.default_rng(5)
    num_in = num_chunks * chunk_size
    weight = make_weight(rng.standard_normal((50, num_in)) * 0.1, "bfloat16")
    captured = rng.standard_normal((15, num_in)).astype(np.float32) * 30
    captured[4], captured[7, 3], captured[9] = 0.0, np.inf, np.nan
    norm_weight = rng.standard_normal(num_in).astype(np.float32)
    if mode == "none":
        normed = captured
    elif mode == "whole":
        normed = _testing.rms_norm(captured, norm_weight, 1e-5, isa)
    else:
        parts = [slice(i, i + chunk_size) for i in range(0, num_in, chunk_size)]
        normed = np.concatenate([_testing.rms_norm(captured[:, p], norm_weight[p], 1e-5, isa) for p in parts], axis=1)
    expected = run_linear(weight, normed, isa)
    for num_rows, threads in [(1, 1), (8, 2), (15, 3)]:
        got = _testing.fc_norm(
            weight, captured[:num_rows], norm_weight, num_chunks, getattr(_testing.FcNormMode, mode), 1e-5, isa, threads
        )
        np.testing.assert_array_equal(bits(got), bits(expected[:num_rows]))


def test_machine_figures_are_plausible() -> None:
    assert 1e8 < _testing.read_bandwidth(1 << 24, 1) < 1e13
    assert 1e8 < _testing.fma_peak(1, 1) < 1e13
