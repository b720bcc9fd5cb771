"""linear and fc_norm on CUDA: how work is divided, the same bits however it is, error, and bytes moved.

Counts come from tools/ptxsim and hold for the kernels as they ship, at shapes of Llama-3.1-8B; fc_norm at a quarter of
its outputs, whose number only changes how many blocks there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.device import Simulator
from tolerances import assert_as_good_as_naive

from eagle31rt import _testing

SECTOR = 32
# (out_features, in_features) of Llama-3.1-8B: qkv, attention output, gate and up, down, head.
LLAMA_SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096)]
OTHER_SHAPES = [(1, 1), (33, 130), (576, 1536), (1024, 4096), (8448, 1024), (2048, 5120), (64, 200000)]
ROWS = [1, 2, 5, 16, 17, 40, 64, 65, 300, 2048]


@pytest.mark.parametrize(("num_out", "num_in"), LLAMA_SHAPES)
@pytest.mark.parametrize("num_rows", [1, 5, 16, 40, 64, 2048])
def test_blocks_fill_an_h100(num_out: int, num_in: int, num_rows: int) -> None:
    config = _testing.linear_config(num_rows, num_out, num_in)
    assert config["num_blocks"] >= 132
    assert config["tile_rows"] == (16 if num_rows <= 16 else 64)
    assert config["num_row_tiles"] == -(-num_rows // config["tile_rows"])


@pytest.mark.parametrize(("num_out", "num_in"), LLAMA_SHAPES + OTHER_SHAPES)
def test_segments_depend_on_the_weight_only(num_out: int, num_in: int) -> None:
    configs = [_testing.linear_config(num_rows, num_out, num_in) for num_rows in ROWS]
    assert len({(config["segment_size"], config["num_segments"]) for config in configs}) == 1
    size, count = configs[0]["segment_size"], configs[0]["num_segments"]
    assert size % 64 == 0 and (count - 1) * size < num_in <= count * size
    assert count == 1 or size >= 512
    for config in configs:
        assert config["partial_stride"] >= num_out
        assert config["num_column_tiles"] * (64 if config["tile_rows"] == 16 else 128) == config["partial_stride"]


@pytest.mark.parametrize(("num_out", "num_in"), LLAMA_SHAPES)
def test_partial_sums_stay_small(num_out: int, num_in: int) -> None:
    """Written and read once; of the weights' bytes at decode, and none where tiles alone fill the device."""
    for num_rows, most in [(1, 0.01), (5, 0.03), (16, 0.08)]:
        config = _testing.linear_config(num_rows, num_out, num_in)
        partial = 8 * num_rows * config["num_segments"] * config["partial_stride"] if config["spread"] else 0
        assert partial <= most * 2 * num_out * num_in
    assert not _testing.linear_config(2048, num_out, num_in)["spread"]


@pytest.mark.parametrize(
    ("num_rows", "tile_rows", "num_blocks"),
    [(1, 16, 128), (16, 16, 128), (17, 16, 256), (33, 64, 128), (64, 64, 128), (2048, 64, 1024)],
)
def test_fc_norm_of_an_8b_draft(num_rows: int, tile_rows: int, num_blocks: int) -> None:
    config = _testing.fc_norm_config(num_rows, 4096)
    assert (config["tile_rows"], config["num_blocks"]) == (tile_rows, num_blocks)


def random(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values as `dtype` holds them, in float32."""
    if dtype == "float16":
        return values.astype(np.float16).astype(np.float32)
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def linear(weight: np.ndarray, rows: np.ndarray, dtype: str = "bfloat16", **options: Any) -> np.ndarray:
    arguments = {"bias": None, "residual": None, "output_stride": weight.shape[0]} | options
    return _testing.cuda_linear(weight, dtype, rows, **arguments)


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("num_in", [200, 1100])
def test_linear_is_as_good_as_a_naive_16_bit_version(dtype: str, num_in: int) -> None:
    weight, rows = rounded(random(0, 96, num_in), dtype), random(1, 33, num_in)
    exact = rows.astype(np.float64) @ weight.T.astype(np.float64)
    naive = rounded((rounded(rows, dtype).astype(np.float64) @ weight.T.astype(np.float64)).astype(np.float32), dtype)
    assert_as_good_as_naive(linear(weight, rows, dtype), naive, exact)


@pytest.mark.cuda
def test_float32_weights_give_the_bits_of_the_cpu() -> None:
    weight, rows, bias = random(0, 70, 77), random(1, 19, 77), random(2, 70)
    residual, norm_weight = random(3, 19, 70), random(4, 77)
    packed = _testing.PackedWeight("float32", 70, 77)
    packed.write_rows(0, weight, "float32")
    isa = next(name for name in _testing.instruction_sets() if name != "generic")
    expected = _testing.linear(packed, rows, bias, residual, isa, 1)
    np.testing.assert_array_equal(bits(linear(weight, rows, "float32", bias=bias, residual=residual)), bits(expected))
    for num_chunks, mode in [(7, _testing.FcNormMode.per_chunk), (7, _testing.FcNormMode.whole)]:
        expected = _testing.fc_norm(packed, rows, norm_weight, num_chunks, mode, 1e-5, isa, 1)
        actual = _testing.cuda_fc_norm(weight, "float32", rows, norm_weight, num_chunks, mode, 1e-5)
        np.testing.assert_array_equal(bits(actual), bits(expected))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_tile_of_fc_norm_gives_the_same_bits(dtype: str) -> None:
    """8, 40 and 70 rows take tiles of 16 x 32, 64 x 32 and 64 x 128."""
    num_out, num_in, counts = 4224, 192, (8, 40, 70)
    configs = [_testing.fc_norm_config(n, num_out) for n in counts]
    assert [(c["tile_rows"], c["num_column_tiles"]) for c in configs] == [(16, 132), (64, 132), (64, 33)]
    weight, rows, norm_weight = random(0, num_out, num_in), random(1, 70, num_in), random(2, num_in)
    mode = _testing.FcNormMode.per_chunk
    results = [_testing.cuda_fc_norm(weight, dtype, rows[:n], norm_weight, 3, mode, 1e-5) for n in counts]
    for n, result in zip(counts, results, strict=True):
        np.testing.assert_array_equal(bits(result), bits(results[-1][:n]), err_msg=f"{n} rows")


@pytest.mark.cuda
def test_segments_in_one_block_or_in_many_give_the_same_bits() -> None:
    """4352 x 1536 is three segments: spread over blocks for one row, added up inside a block for 65."""
    num_out, num_in, num_rows = 4352, 1536, 65
    assert _testing.linear_config(1, num_out, num_in)["spread"]
    assert not _testing.linear_config(num_rows, num_out, num_in)["spread"]
    assert _testing.linear_config(num_rows, num_out, num_in)["num_segments"] == 3
    weight, rows, bias = random(0, num_out, num_in), random(1, num_rows, num_in), random(2, num_out)
    together = linear(weight, rows, bias=bias)
    for row in (0, num_rows - 1):
        np.testing.assert_array_equal(
            bits(together[row : row + 1]), bits(linear(weight, rows[row : row + 1], bias=bias))
        )


@pytest.mark.cuda
@pytest.mark.parametrize("num_rows", [1, 17])
def test_strides_change_no_bit_and_padding_is_untouched(num_rows: int) -> None:
    """Rows at 16-byte boundaries and between them; what stands behind a row (NaN) is neither read nor written."""
    weight, rows, residual = random(0, 70, 200), random(1, num_rows, 200), random(2, num_rows, 70)
    plain = linear(weight, rows, residual=residual)
    for input_padding, output_padding in [(4, 2), (3, 1), (1, 0)]:
        padded = np.pad(rows, ((0, 0), (0, input_padding)), constant_values=np.nan)
        wide_residual = np.pad(residual, ((0, 0), (0, output_padding)), constant_values=np.nan)
        actual = linear(weight, padded, residual=wide_residual, output_stride=70 + output_padding)
        np.testing.assert_array_equal(bits(actual[:, :70]), bits(plain))
        assert np.isnan(actual[:, 70:]).all()


@pytest.mark.cuda
@pytest.mark.parametrize("num_chunks", [1, 3])
def test_fc_norm_of_every_tile_gives_the_same_bits(num_chunks: int) -> None:
    """16 x 32, 64 x 32 and (8448 outputs, 33 rows) 64 x 128; chunks of 88 end inside a tile of K."""
    num_in = 88 * num_chunks
    weight, norm_weight = random(0, 8448, num_in), random(1, num_in)
    rows = random(2, 33, num_in) * 30
    rows[3], rows[5, 7], rows[9] = np.nan, np.inf, 0

    def run(num_out: int, chosen: np.ndarray) -> np.ndarray:
        mode = _testing.FcNormMode.per_chunk
        return _testing.cuda_fc_norm(weight[:num_out], "bfloat16", chosen, norm_weight, num_chunks, mode, 1e-5)

    wide, tall = run(8448, rows)[:, :96], run(96, rows)
    single = np.concatenate([run(96, row[None]) for row in rows])
    keep = [row for row in range(33) if row not in (3, 5)]  # of a NaN only that it is one is promised
    for actual in (wide, tall, single):
        np.testing.assert_array_equal(bits(actual[keep]), bits(single[keep]))
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(single))


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("mode", ["per_chunk", "whole"])
@pytest.mark.parametrize("scale", [0.02, 1.0, 3e5])
def test_fc_norm_is_as_good_as_a_naive_16_bit_version(dtype: str, mode: str, scale: float) -> None:
    """From small activations to such as float16 could not hold."""
    num_chunks, chunk, epsilon = 3, 160, 1e-6
    weight = rounded(random(0, 64, num_chunks * chunk), dtype)
    rows = random(1, 9, num_chunks * chunk) * np.float32(scale)
    norm_weight = random(2, num_chunks * chunk) * 2
    width = chunk if mode == "per_chunk" else num_chunks * chunk
    groups = rows.astype(np.float64).reshape(9, -1, width)
    inverse = 1 / np.sqrt((groups**2).mean(axis=2, keepdims=True) + epsilon)
    normed = (groups * inverse).reshape(9, -1) * norm_weight
    exact = normed @ weight.T.astype(np.float64)
    naive_sum = rounded(normed.astype(np.float32), dtype).astype(np.float64) @ weight.T.astype(np.float64)
    naive = rounded(naive_sum.astype(np.float32), dtype)
    actual = _testing.cuda_fc_norm(
        weight, dtype, rows, norm_weight, num_chunks, getattr(_testing.FcNormMode, mode), epsilon
    )
    assert_as_good_as_naive(actual, naive, exact)


def count(simulator: Simulator, run: Callable[[], np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Counters of the matrix kernel, and of the one that adds segments ({} if it did not run)."""
    with simulator.counting() as counters:
        run()
    matrix = [kernel for name, kernel in counters.items() if "mma_kernel" in name]
    adding = [kernel for name, kernel in counters.items() if "add_segments" in name]
    assert len(matrix) == 1 and len(matrix) + len(adding) == len(counters)
    return matrix[0], adding[0] if adding else {}


def assert_weights_stream_once(kernel: dict[str, Any], config: dict[str, Any], shape: tuple[int, int, int]) -> None:
    """Every weight once for each tile of rows, every row once for each tile of columns, in whole sectors."""
    num_rows, num_out, num_in = shape
    weights = 2 * num_out * num_in * config["num_row_tiles"]
    activations = 4 * num_rows * num_in * config["num_column_tiles"]
    assert kernel["global_load_bytes"] == weights + activations
    assert kernel["global_load_sectors"] * SECTOR == kernel["global_load_bytes"]
    assert kernel["bank_conflicts"] == 0


LINEAR_SHAPES = [(1, 4096, 4096), (5, 4096, 4096), (16, 4096, 4096), (40, 4096, 4096), (65, 256, 1024)]
FC_NORM_SHAPES = [(1, 1024, 12288), (5, 1024, 12288), (16, 1024, 12288), (40, 1024, 12288)]


@pytest.mark.cuda
@pytest.mark.parametrize("shape", LINEAR_SHAPES)
def test_traffic_of_linear(shape: tuple[int, int, int], simulator: Simulator) -> None:
    num_rows, num_out, num_in = shape
    weight, rows = random(0, num_out, num_in), random(1, num_rows, num_in)
    config = _testing.linear_config(*shape)
    kernel, adding = count(simulator, lambda: linear(weight, rows))
    assert_weights_stream_once(kernel, config, shape)
    tile_columns = 64 if config["tile_rows"] == 16 else 128
    tiles = config["num_row_tiles"] * config["num_column_tiles"]
    expected = tiles * config["tile_rows"] * tile_columns * num_in // (16 * 8 * 16)
    assert kernel["matrix_instructions"] == {"mma.m16n8k16.bf16": expected}
    partial = 4 * num_rows * config["num_segments"] * num_out if config["spread"] else 0
    ideal = 2 * num_out * num_in + 4 * num_rows * (num_in + num_out) + 2 * partial
    sectors = sum(k.get(name, 0) for k in (kernel, adding) for name in ("unique_load_sectors", "unique_store_sectors"))
    assert sectors * SECTOR <= 1.1 * ideal
    assert bool(adding) == config["spread"]
    if adding:
        assert adding["global_load_bytes"] == adding["global_load_sectors"] * SECTOR == partial


@pytest.mark.cuda
@pytest.mark.parametrize("shape", FC_NORM_SHAPES)
def test_traffic_of_fc_norm(shape: tuple[int, int, int], simulator: Simulator) -> None:
    """Activations pass once for the statistic and the product together: one kernel, nothing normed in memory."""
    num_rows, num_out, num_in = shape
    weight, rows, norm_weight = random(0, num_out, num_in), random(1, num_rows, num_in), random(2, num_in)
    config = _testing.fc_norm_config(num_rows, num_out)
    mode = _testing.FcNormMode.per_chunk
    kernel, adding = count(
        simulator, lambda: _testing.cuda_fc_norm(weight, "bfloat16", rows, norm_weight, 3, mode, 1e-5)
    )
    assert adding == {} and kernel["launches"] == 1
    norm_bytes = 4 * num_in * config["num_blocks"]
    kernel["global_load_bytes"] -= norm_bytes
    kernel["global_load_sectors"] -= norm_bytes // SECTOR
    assert_weights_stream_once(kernel, config, shape)
    ideal = 2 * num_out * num_in + 4 * num_in + 4 * num_rows * (num_in + num_out)
    assert (kernel["unique_load_sectors"] + kernel["unique_store_sectors"]) * SECTOR <= 1.1 * ideal
