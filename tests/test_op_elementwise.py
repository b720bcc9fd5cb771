"""rms_norm, rope, silu_mul and kv_append against float64 numpy, and the inputs where naive arithmetic goes wrong."""

import numpy as np
import pytest
from tolerances import assert_as_good_as_naive, assert_close_to_reference

from eagle31rt import _testing

INSTRUCTION_SETS = _testing.available_instruction_sets()
RNG_SEED = 20240
F32, F64 = np.float32, np.float64


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(RNG_SEED).standard_normal(shape) * scale).astype(F32)


def rms_norm_formula(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    mean = np.cumsum(x * x, axis=1)[:, -1:] / x.dtype.type(x.shape[1])  # cumsum adds one by one, as naive code does
    return x / np.sqrt(mean + x.dtype.type(epsilon)) * weight


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("hidden_size", [1, 8, 17, 576, 4096])
def test_rms_norm(hidden_size: int, instruction_set: str) -> None:
    runner = _testing.Runner("cpu", instruction_set, 2)
    x, weight = normal(33, hidden_size, scale=20.0), normal(hidden_size) + 1
    output, residual = _testing.rms_norm(x, weight, 1e-5, None, runner)
    np.testing.assert_array_equal(residual, x)
    exact = rms_norm_formula(x.astype(F64), weight.astype(F64), 1e-5)
    assert_as_good_as_naive(output, rms_norm_formula(x, weight, 1e-5), exact)


def test_rms_norm_adds_the_delta_first() -> None:
    runner = _testing.Runner()
    x, delta, weight = normal(5, 100), normal(5, 100)[::-1].copy() * 3, normal(100)
    output, residual = _testing.rms_norm(x, weight, 1e-5, delta, runner)
    np.testing.assert_array_equal(residual, x + delta)
    np.testing.assert_array_equal(output, _testing.rms_norm(x + delta, weight, 1e-5, None, runner)[0])


def test_rms_norm_of_zeros_is_zero_and_epsilon_counts() -> None:
    runner = _testing.Runner()
    zeros = np.zeros((1, 16), F32)
    np.testing.assert_array_equal(_testing.rms_norm(zeros, np.ones(16, F32), 1e-5, None, runner)[0], zeros)
    small = np.full((1, 16), 1e-3, F32)  # mean square 1e-6: epsilon 1e-6 halves it
    output = _testing.rms_norm(small, np.ones(16, F32), 1e-6, None, runner)[0]
    np.testing.assert_allclose(output, np.sqrt(0.5), rtol=1e-6)


def silu_mul_formula(x: np.ndarray) -> np.ndarray:
    gate, up = np.split(x, 2, axis=1)
    with np.errstate(over="ignore"):
        return gate / (1 + np.exp(-gate)) * up


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("intermediate_size", [1, 16, 23, 1536])
def test_silu_mul(intermediate_size: int, instruction_set: str) -> None:
    x = normal(19, 2 * intermediate_size, scale=6.0)
    output = _testing.silu_mul(x, _testing.Runner("cpu", instruction_set, 2))
    assert_as_good_as_naive(output, silu_mul_formula(x), silu_mul_formula(x.astype(F64)))


def test_silu_mul_at_the_ends() -> None:
    x = np.array([[0.0, 200.0, -200.0, -88.0, np.nan, 1.0, 1.0, 1.0, 1.0, 1.0]], F32)
    output = _testing.silu_mul(x, _testing.Runner())[0]
    np.testing.assert_array_equal(output[[0, 1, 2]], np.array([0.0, 200.0, -0.0], F32))
    np.testing.assert_allclose(output[3], -88.0 * np.exp(F64(-88.0)), rtol=1e-6)
    assert np.isnan(output[4])


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [rows, heads, head_dim]; only the first rotary_dim elements rotate."""
    half = cosine.shape[1]
    rotated = x.copy()
    first = slice(0, 2 * half, 2) if interleaved else slice(0, half)
    second = slice(1, 2 * half, 2) if interleaved else slice(half, 2 * half)
    c, s = cosine[:, None, :], sine[:, None, :]
    rotated[..., first] = x[..., first] * c - x[..., second] * s
    rotated[..., second] = x[..., second] * c + x[..., first] * s
    return rotated


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(8, 8), (64, 64), (80, 80), (64, 16), (128, 120)])
def test_rope(head_dim: int, rotary_dim: int, interleaved: bool, instruction_set: str) -> None:
    num_heads, num_kv_heads, rows = 3, 2, 37
    width = (num_heads + num_kv_heads) * head_dim
    qkv = normal(rows, width + num_kv_heads * head_dim)
    angles = np.arange(rows)[:, None] * 10000.0 ** (-np.arange(rotary_dim // 2) / (rotary_dim // 2))
    cosine, sine = np.cos(angles).astype(F32), np.sin(angles).astype(F32)
    runner = _testing.Runner("cpu", instruction_set, 2)
    output = _testing.rope(qkv, cosine, sine, num_heads, num_kv_heads, head_dim, interleaved, runner)
    np.testing.assert_array_equal(output[:, width:], qkv[:, width:])  # the values of the fused row
    heads = qkv[:, :width].reshape(rows, -1, head_dim)
    naive = rotate(heads, cosine, sine, interleaved).reshape(rows, width)
    exact = rotate(heads.astype(F64), cosine.astype(F64), sine.astype(F64), interleaved).reshape(rows, width)
    assert_as_good_as_naive(output[:, :width], naive, exact)
    unrotated = output[:, :width].reshape(rows, -1, head_dim)[..., rotary_dim:]
    np.testing.assert_array_equal(unrotated, heads[..., rotary_dim:])


def bfloat16_bits(x: np.ndarray) -> np.ndarray:
    """Round to nearest even on the bits of finite float32 values."""
    bits = x.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


ROUNDING_CASES = np.array(
    [1.0, 1.00390625, 1.01171875, -1.00390625, 3e38, 1e-40, 65504.0, 65519.0, 65520.0, 6e-8, 3e-8, 2.98e-8, 0.1], F32
)  # ties to even in both directions, overflow of float16 and the subnormals of both


@pytest.mark.parametrize("instruction_set", [*INSTRUCTION_SETS, "reference"])
@pytest.mark.parametrize(("dtype", "page_size"), [("float32", 16), ("bfloat16", 16), ("float16", 3), ("bfloat16", 1)])
def test_kv_append_places_and_rounds(dtype: str, page_size: int, instruction_set: str) -> None:
    num_heads, head_dim, num_pages, rows = 2, 8, 7, 5
    cache = _testing.KvCache(dtype, num_pages, page_size, num_heads, head_dim)
    key, value = normal(rows, num_heads * head_dim), normal(rows, num_heads * head_dim, scale=100.0)
    key[0, : len(ROUNDING_CASES)] = ROUNDING_CASES
    slots = np.array([6 * page_size, -1, page_size, 0, 3 * page_size - 1], np.int64)
    runner = _testing.Runner("reference") if instruction_set == "reference" else _testing.Runner("cpu", instruction_set)
    cache.append(key, value, slots, runner)

    with np.errstate(over="ignore"):
        convert = {
            "float32": lambda x: x.view(np.uint32),
            "bfloat16": bfloat16_bits,
            "float16": lambda x: x.astype(np.float16).view(np.uint16),
        }[dtype]
        key_bits, value_bits = convert(key), convert(value)
    poison = np.iinfo(key_bits.dtype).max
    keys = np.full((num_pages, num_heads, head_dim, page_size), poison, key_bits.dtype)
    values = np.full((num_pages, num_heads, page_size, head_dim), poison, key_bits.dtype)
    for row, slot in enumerate(slots):
        if slot >= 0:
            page, offset = divmod(int(slot), page_size)
            keys[page, :, :, offset] = key_bits[row].reshape(num_heads, head_dim)
            values[page, :, offset, :] = value_bits[row].reshape(num_heads, head_dim)
    assert cache.key_bytes == keys.tobytes()
    assert cache.value_bytes == values.tobytes()


def test_reference_mode_is_the_reference() -> None:
    x = normal(4, 64, scale=3.0)
    reference = _testing.silu_mul(x, _testing.Runner("reference"))
    assert_close_to_reference(reference, silu_mul_formula(x.astype(F64)).astype(F32), 0.0, 2.0**-24)
