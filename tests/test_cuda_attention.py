"""Paged and latent attention on CUDA: how work is divided, the same bits however it is, error, and bytes moved.

Row-exactness in hostile company is in test_ops_row_exact.py. Counts come from tools/ptxsim.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from support.attention import Call, Sequence, Shape, ancestor_mask, attention_formula, causal, random_tree, rounded
from support.device import Simulator
from tolerances import assert_as_good_as_naive

from eagle31rt import _testing

RANGE = 512
SECTOR = 32
F32, F64 = np.float32, np.float64


def config(num_rows: int, num_requests: int, **changes: int) -> dict[str, int]:
    """Of Llama-3.1-8B on an H100 with 4096 positions."""
    shape = {"num_kv_heads": 8, "group": 4, "value_dim": 128, "max_length": 4096, "max_queries": 64}
    return _testing.attention_config(
        **{**shape, "num_rows": num_rows, "num_requests": num_requests, "num_multiprocessors": 132, **changes}
    )


@pytest.mark.parametrize(
    ("num_rows", "num_requests", "group", "queries", "heads", "rows"),
    [(1, 1, 4, 16, 4, 4), (6, 1, 4, 32, 4, 8), (512, 1, 4, 64, 4, 16), (8, 8, 3, 16, 3, 5), (8, 8, 64, 64, 64, 1)],
)
def test_a_tile_holds_the_rows_of_a_request(
    num_rows: int, num_requests: int, group: int, queries: int, heads: int, rows: int
) -> None:
    chosen = config(num_rows, num_requests, group=group)
    assert (chosen["tile_queries"], chosen["heads_per_tile"], chosen["rows_per_tile"]) == (queries, heads, rows)
    assert chosen["head_blocks"] == 1
    assert config(1, 1, group=128)["head_blocks"] == 2


@pytest.mark.parametrize("seed", range(20))
def test_there_are_tiles_for_every_division_of_the_rows(seed: int) -> None:
    """Request i owns tiles row_begin[i] // rows + i and those after it: no two share one, and none is past the grid."""
    draw = random.Random(seed)
    counts = [draw.choice([0, 1, 1, 2, 5, 16, 17, 100]) for _ in range(draw.randrange(1, 30))] + [1]
    chosen = config(sum(counts), len(counts), group=draw.choice([1, 3, 4, 8]))
    begins, rows, owned = np.concatenate([[0], np.cumsum(counts)]), chosen["rows_per_tile"], []
    for i, count in enumerate(counts):
        first = int(begins[i]) // rows + i
        owned += range(first, first + -(-count // rows))
    assert len(set(owned)) == len(owned) and max(owned) < chosen["num_tiles"]


def test_ranges_spread_while_the_gpu_is_not_full() -> None:
    assert config(1, 1)["num_ranges"] == 4096 // RANGE
    assert config(1, 1)["workspace_bytes"] == 32 * 8 * (128 + 2) * 4
    assert config(1, 1, max_length=RANGE)["num_ranges"] == 1
    assert config(64, 64)["num_ranges"] == 1  # 80 tiles of 8 KV heads are enough
    for rows in (1, 8, 64, 512, 8192):  # however long the context, the workspace has a bound
        chosen = config(rows, 1, max_length=1 << 20)
        assert chosen["workspace_bytes"] <= 256 << 20
        assert chosen["num_ranges"] in (1, 2048)


SHAPES = [
    Shape(),
    Shape(4, 1, 24, "float16", 20),
    Shape(4, 2, 80, "bfloat16", 1),
    Shape(2, 2, 96, "float16"),
    Shape(8, 2, 128),
    Shape(20, 1, 128, "float16"),
    Shape(2, 1, 256),
    Shape(5, 1, 48, "bfloat16", 20, latent_dim=32),
    Shape(40, 1, 80, "float16", latent_dim=64),
    Shape(9, 1, 576, latent_dim=512),
]
SMALL_SHAPES = [Shape(), Shape(4, 2, 24, "float16", 20), Shape(2, 1, 128, "float32"), Shape(5, 1, 48, latent_dim=32)]
SMALL_SHAPES += [Shape(3, 1, 64, "bfloat16", 1)]


def naive_16_bit(sequence: Sequence, row: int, kv_begin: int) -> np.ndarray:
    """Every step's result rounded to the cache's type: queries, scores, weights, output."""
    s = sequence.shape
    visible = slice(kv_begin, row + 1)
    key, value = (rounded(x[visible], s.dtype).reshape(row + 1 - kv_begin, s.num_kv_heads, 1, -1) for x in
                  (sequence.key, sequence.value))  # fmt: skip
    query = rounded(sequence.query[row] * F32(s.head_dim**-0.5), s.dtype).reshape(s.num_kv_heads, -1, s.head_dim)
    scores = rounded((query * key).sum(axis=3, dtype=F32), s.dtype)
    weights = np.exp(scores - scores.max(axis=0))
    weights = rounded(weights / weights.sum(axis=0), s.dtype)
    return rounded((weights[..., None] * value).sum(axis=0, dtype=F32), s.dtype).reshape(s.num_heads, s.value_dim)


def assert_as_good_as_16_bit(sequence: Sequence, output: np.ndarray, kv_begin: int = 0) -> None:
    rows = range(len(sequence.query) - len(output), len(sequence.query))
    exact = np.stack([attention_formula(sequence, row, kv_begin, F64) for row in rows])
    if sequence.shape.dtype == "float32":
        naive = np.stack([attention_formula(sequence, row, kv_begin, F32) for row in rows])
    else:
        naive = np.stack([naive_16_bit(sequence, row, kv_begin) for row in rows])
    assert_as_good_as_naive(output, naive, exact)


def run(call: Call) -> np.ndarray:
    return call.run(device="cuda")[0]


def bits(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint32)


def assert_same_bits(actual: np.ndarray, expected: np.ndarray, message: str = "") -> None:
    np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=message)


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SHAPES + SMALL_SHAPES[2:3], ids=Shape.name)
def test_is_as_good_as_a_naive_16_bit_version(shape: Shape) -> None:
    for length, num_rows, kv_begin in [(1, 1, 0), (64, 3, 0), (129, 9, 1), (150, 1, 70)]:
        sequence = Sequence.random(shape, length, seed=length)
        assert_as_good_as_16_bit(sequence, run(causal(sequence, num_rows, kv_begin)), kv_begin)


TILE_SHAPES = [Shape(2, 1, dim, dtype) for dim in (64, 96, 128, 256) for dtype in ("bfloat16", "float16")]
TILE_SHAPES += [Shape(2, 1, 576, dtype, latent_dim=512) for dtype in ("bfloat16", "float16")]


@pytest.mark.cuda
@pytest.mark.parametrize("shape", TILE_SHAPES, ids=Shape.name)
def test_every_tile_gives_the_same_bits(shape: Shape) -> None:
    """5, 12 and 40 rows of two heads take tiles of 16, 32 and 64 queries: every kernel of the type and dimension."""
    length = 70
    sequence = Sequence.random(shape, length)
    whole = run(causal(sequence, 40))
    assert_as_good_as_16_bit(sequence, whole)
    for num_rows in (5, 12):
        assert_same_bits(run(causal(sequence, num_rows)), whole[-num_rows:], f"{num_rows} rows")


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=Shape.name)
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(shape: Shape) -> None:
    length = 140
    sequence = Sequence.random(shape, length)
    whole = run(causal(sequence, length))
    for begin, end in [(0, 1), (0, 64), (63, 64), (64, 65), (60, 69), (128, 129), (125, 140), (139, 140), (40, 139)]:
        assert_same_bits(run(causal(sequence, end - begin, end=end)), whole[begin:end], f"rows {begin}..{end}")


@pytest.mark.cuda
@pytest.mark.parametrize("shape", [Shape(2, 1, 64), Shape(3, 1, 48, latent_dim=32)], ids=Shape.name)
def test_ranges_in_one_block_or_in_many_give_the_same_bits(shape: Shape) -> None:
    """1100 positions are three ranges: in blocks of their own for a request alone, in one for one of many."""
    sequence = Sequence.random(shape, 1100)
    for num_rows, kv_begin in [(1, 0), (5, 1), (1, 600)]:
        alone = causal(sequence, num_rows, kv_begin)
        together = causal(sequence, num_rows, kv_begin)
        for _ in range(300):  # padding: requests without rows
            together.add(sequence.key[:0], sequence.value[:0], sequence.query[:0])
        output = run(alone)
        assert_as_good_as_16_bit(sequence, output, kv_begin)
        assert_same_bits(run(together), output)
    early = Sequence(shape, sequence.key[:512], sequence.value[:512], sequence.query[:512])
    chunk = run(causal(sequence, 600))
    assert_same_bits(chunk[:12], run(causal(early, 12)), "rows with one range beside rows with three")
    assert_same_bits(chunk[-5:], run(causal(sequence, 5)))


@pytest.mark.cuda
@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=Shape.name)
def test_other_requests_pages_and_padding_change_nothing(shape: Shape) -> None:
    call, alone = Call(shape, seed=99), []
    for i, (length, num_rows) in enumerate([(70, 1), (1, 1), (129, 9), (66, 33), (65, 2)]):
        sequence = Sequence.random(shape, length, seed=i)
        call.add(sequence.key[:0], sequence.value[:0], sequence.query[:0])
        call.add(sequence.key, sequence.value, sequence.query[-num_rows:])
        alone.append(run(causal(sequence, num_rows)))
    sequence = Sequence.random(shape, 3)
    call.add(sequence.key[:0], sequence.value[:0], sequence.query[:1])  # kv_length -1: inert
    outputs = call.run(device="cuda")
    for output, expected in zip(outputs[1::2], alone, strict=False):
        assert_same_bits(output, expected)
    assert (outputs[-1] == F32(-1234.5)).all()


@pytest.mark.cuda
@pytest.mark.parametrize(("kv_length", "num_rows"), [(0, 9), (50, 17), (63, 9), (64, 9), (127, 5), (505, 12)])
@pytest.mark.parametrize("shape", SMALL_SHAPES, ids=Shape.name)
def test_tree_rows_have_the_bits_of_the_chain_of_their_path(shape: Shape, kv_length: int, num_rows: int) -> None:
    """The last crosses the end of a range. Some branch is a chain as causal rows make it, and equals those, too."""
    sequence = Sequence.random(shape, kv_length + num_rows, seed=kv_length)
    paths = random_tree(num_rows, num_rows // 3, np.random.default_rng(kv_length))
    kv_begin = min(kv_length, 1)
    call = Call(shape)
    call.add(sequence.key, sequence.value, sequence.query[kv_length:], kv_begin, ancestor_mask(paths, 2))
    tree = run(call)
    for row in {0, num_rows // 2, num_rows - 2, num_rows - 1}:
        chain = sequence.part([*range(kv_length), *(kv_length + node for node in paths[row])])
        assert_same_bits(tree[row], run(causal(chain, 1, kv_begin))[0], f"row {row}, path {paths[row]}")
        verified = run(causal(chain, len(paths[row]), kv_begin))
        assert_same_bits(tree[row], verified[-1], f"row {row} after its ancestors, path {paths[row]}")


@pytest.mark.cuda
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shape", SMALL_SHAPES[:4], ids=Shape.name)
def test_what_a_row_does_not_see_cannot_reach_it(shape: Shape, masked: bool, bad: float) -> None:
    """Entry 70 of 80 is bad: causal rows before it, and with a mask all rows but those below it, stay as they were."""
    sequence = Sequence.random(shape, 80)
    paths = [[r] if r != 15 else [10, 15] for r in range(20)]  # rows 60 .. 79; row 15 is a child of row 10
    blind = [r for r in range(20) if (r not in (10, 15) if masked else r < 10)]

    def attend() -> np.ndarray:
        call = Call(shape)
        mask = ancestor_mask(paths, 1) if masked else None
        call.add(sequence.key, sequence.value, sequence.query[60:], 0, mask)
        return run(call)

    clean = attend()
    sequence.key[70] = sequence.value[70] = bad
    dirty = attend()
    assert_same_bits(dirty[blind], clean[blind])
    seeing = [r for r in range(20) if r not in blind]
    assert not np.isfinite(dirty[seeing]).all(axis=(1, 2)).any()


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_scores_that_overflow(dtype: str) -> None:
    shape = Shape(2, 1, 8, dtype, 16)
    sequence = Sequence.random(shape, 130)
    sequence.query[-1, :8] = -1e30  # head 0 only
    sequence.key[:64] = 1e30  # a whole split of -inf, which weighs nothing beside the finite ones
    sequence.key[64:] *= F32(1e-30)
    output = run(causal(sequence, 1))[0]
    exact = attention_formula(sequence, 129, 64, F64)
    np.testing.assert_allclose(output[0], exact[0], atol=1e-5 if dtype == "float32" else 2e-2)
    sequence.key[:] = 1e30  # every score of head 0 is -inf; those of head 1 are large, finite and equal
    output = run(causal(sequence, 1))[0]
    assert np.isnan(output[0]).all()
    mean = rounded(sequence.value, dtype).mean(axis=0)
    np.testing.assert_allclose(output[1], mean, atol=1e-5)
    sequence.query[-1, :8] = 1e30  # +inf
    assert np.isnan(run(causal(sequence, 1))[0][0]).all()


def counted(simulator: Simulator, call: Call) -> tuple[dict[str, Any], dict[str, Any]]:
    """Counters of the attention kernel and of the one that merges ranges ({} if it did not run)."""
    with simulator.counting() as counters:
        run(call)
    attention = [kernel for name, kernel in counters.items() if "attention" in name]
    merging = [kernel for name, kernel in counters.items() if "merge" in name]
    assert len(attention) == 1 and attention[0]["launches"] == 1
    return attention[0], merging[0] if merging else {}


def assert_entries_stream_once(kernel: dict[str, Any], entry_bytes: int, query_bytes: int, output_bytes: int) -> None:
    """`entry_bytes`: of keys and values, once for each block that needs them; the rest of what is read is small."""
    ideal = entry_bytes + query_bytes + output_bytes
    moved = (kernel["global_load_sectors"] + kernel["global_store_sectors"]) * SECTOR
    assert entry_bytes + query_bytes <= kernel["global_load_sectors"] * SECTOR and moved <= 1.1 * ideal
    assert kernel["global_store_bytes"] == kernel["global_store_sectors"] * SECTOR == output_bytes
    assert kernel["bank_conflicts"] == 0


@pytest.mark.cuda
@pytest.mark.parametrize("num_rows", [1, 6])
def test_traffic_of_llama_8b(num_rows: int, simulator: Simulator) -> None:
    """Decode and verification at 512 positions: each key and value once for the four heads of its group."""
    shape, length = Shape(32, 8, 128), 512
    kernel, merging = counted(simulator, causal(Sequence.random(shape, length), num_rows))
    entries, rows = 2 * length * 8 * 128 * 2, num_rows * 32 * 128 * 4
    assert_entries_stream_once(kernel, entries, rows, rows)
    products = (64 // 8) * (128 // 16) + (64 // 16) * (128 // 8)  # of a split with 16 queries
    sums = 4 * (64 // 16)  # of the weights, in each of the four warps
    expected = 8 * (length // 64) * (-(-num_rows * 4 // 16) * products + sums)
    assert kernel["matrix_instructions"] == {"mma.m16n8k16.bf16": expected}
    assert merging["global_store_bytes"] == 0 and merging["unique_load_sectors"] < 8  # one range


@pytest.mark.cuda
@pytest.mark.parametrize("num_rows", [1, 4])
def test_traffic_of_several_ranges(num_rows: int, simulator: Simulator) -> None:
    """Partial results of ranges, written once and read once, are 2 % of the entries' bytes for four queries."""
    shape, length = Shape(4, 1, 128), 1024
    kernel, merging = counted(simulator, causal(Sequence.random(shape, length), num_rows))
    entries, rows = 2 * length * 128 * 2, num_rows * 4 * 128 * 4
    partial = 2 * num_rows * 4 * (128 + 2) * 4
    moved = sum(k["unique_load_sectors"] + k["unique_store_sectors"] for k in (kernel, merging)) * SECTOR
    assert entries + 2 * rows + 2 * partial <= moved <= 1.01 * (entries + 2 * rows + 2 * partial)
    assert kernel["global_load_sectors"] * SECTOR <= 1.1 * (entries + 2 * rows)
    assert 2 * partial < 0.02 * num_rows * entries
    assert kernel["bank_conflicts"] == merging["bank_conflicts"] == 0


@pytest.mark.cuda
def test_traffic_of_latent_attention(simulator: Simulator) -> None:
    """64 heads at 256 positions: a block reads each latent entry once, as key and value of all its heads."""
    shape, length = Shape(64, 1, 576, latent_dim=512), 256
    kernel, merging = counted(simulator, causal(Sequence.random(shape, length), 1))
    assert merging == {}
    large = _testing.cuda_device_info()["shared_memory_per_block"] >= 220 * 1024
    blocks = 1 if large else 2  # of 64 or 32 heads
    assert_entries_stream_once(kernel, blocks * length * 576 * 2, 64 * 576 * 4, 64 * 512 * 4)
    unique = kernel["unique_load_sectors"] * SECTOR
    assert unique <= 1.1 * (length * 576 * 2 + 64 * 576 * 4)
