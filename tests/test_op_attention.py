"""Paged and latent attention: against float64 numpy, and bit-equal whatever the chunks, pages, tree and threads."""

import numpy as np
import pytest
from support.attention import SPLIT, Call, Sequence, Shape, ancestor_mask, attention_formula, causal, random_tree
from tolerances import assert_as_good_as_naive

from eagle31rt import _testing

INSTRUCTION_SETS = _testing.available_instruction_sets()
F32, F64 = np.float32, np.float64


def assert_matches_numpy(sequence: Sequence, output: np.ndarray, kv_begin: int = 0) -> None:
    rows = range(len(sequence.query) - len(output), len(sequence.query))
    naive = np.stack([attention_formula(sequence, row, kv_begin, F32) for row in rows])
    exact = np.stack([attention_formula(sequence, row, kv_begin, F64) for row in rows])
    assert_as_good_as_naive(output, naive, exact)


BOUNDARIES = [1, 2, 15, 16, 17, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT - 1, 2 * SPLIT, 2 * SPLIT + 1, 300]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("page_size", [1, 16, 20, 48, 128])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_matches_numpy_at_split_boundaries(dtype: str, page_size: int, instruction_set: str) -> None:
    shape = Shape(dtype=dtype, page_size=page_size)
    for length in BOUNDARIES:
        sequence = Sequence.random(shape, length, seed=length)
        num_rows = min(length, 1 + length % 9)
        assert_matches_numpy(sequence, causal(sequence, num_rows).run(instruction_set)[0])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 128, 256])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(2, 2), (6, 2), (4, 1), (50, 1)])
def test_matches_numpy_for_every_shape(num_heads: int, num_kv_heads: int, head_dim: int, instruction_set: str) -> None:
    shape = Shape(num_heads, num_kv_heads, head_dim)
    sequence = Sequence.random(shape, 75)
    for num_rows in (1, 2, 13):
        assert_matches_numpy(sequence, causal(sequence, num_rows).run(instruction_set, num_threads=2)[0])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("shape", [Shape(5, 1, 48, latent_dim=32), Shape(33, 1, 576, "float16", 20, latent_dim=512)])
def test_latent_attention_matches_numpy(shape: Shape, instruction_set: str) -> None:
    for length in (1, 17, SPLIT - 1, SPLIT, SPLIT + 1, 2 * SPLIT + 1):
        sequence = Sequence.random(shape, length, seed=length)
        for num_rows, kv_begin in [(1, 0), (min(length, 3), max(length - 20, 0))]:
            kv_begin = min(kv_begin, length - num_rows)
            output = causal(sequence, num_rows, kv_begin).run(instruction_set, 2)[0]
            assert_matches_numpy(sequence, output, kv_begin)


SHAPES = [
    Shape(),
    Shape(page_size=1),
    Shape(4, 1, 128, "float32", 20),
    Shape(2, 2, 24, "float16", 16),
    Shape(6, 2, 80, page_size=32),
    Shape(5, 1, 48, page_size=20, latent_dim=32),
    Shape(70, 1, 32, "float16", latent_dim=24),
]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("shape", SHAPES, ids=Shape.name)
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(shape: Shape, instruction_set: str) -> None:
    sequence = Sequence.random(shape, 210)
    whole = causal(sequence, 210).run(instruction_set)[0]
    for chunk in (1, 2, 3, 7, 9, 33, 64, 100):
        ends = [*range(chunk, 210, chunk), 210]
        for begin, end in zip([0, *ends], ends, strict=False):
            if chunk > 3 or end % 64 < 4 or end == 210:  # of the many short chunks those about the boundaries
                part = causal(sequence, end - begin, end=end).run(instruction_set, 1 + chunk % 3)[0]
                np.testing.assert_array_equal(part, whole[begin:end], err_msg=f"rows {begin}..{end}")


@pytest.mark.parametrize("shape", SHAPES, ids=Shape.name)
def test_other_requests_pages_and_threads_change_nothing(shape: Shape) -> None:
    call = Call(shape, seed=99)
    alone = []
    for i, (length, num_rows) in enumerate([(70, 1), (1, 1), (129, 9), (64, 64), (200, 3), (65, 2), (300, 1)]):
        sequence = Sequence.random(shape, length, seed=i)
        call.add(sequence.key, sequence.value, sequence.query[-num_rows:])
        alone.append(causal(sequence, num_rows).run()[0])
    for num_threads in (1, 2, 3):
        for got, expected in zip(call.run(num_threads=num_threads), alone, strict=True):
            np.testing.assert_array_equal(got, expected)


# One request over many splits runs split by split on several threads; the last shape needs two waves of them.
@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize(
    ("shape", "length"),
    [*((shape, 450) for shape in SHAPES), (Shape(60, 1, 256), 800)],
    ids=lambda value: value.name() if isinstance(value, Shape) else str(value),
)
def test_long_context_gives_the_same_bits_on_any_number_of_threads(
    shape: Shape, length: int, instruction_set: str
) -> None:
    sequence = Sequence.random(shape, length)
    for num_rows, kv_begin in [(1, 0), (1, 70), (8, 1)]:
        expected = causal(sequence, num_rows, kv_begin).run(instruction_set)[0]
        for num_threads in (2, 3):
            got = causal(sequence, num_rows, kv_begin).run(instruction_set, num_threads)[0]
            np.testing.assert_array_equal(got, expected)
    assert_matches_numpy(sequence, causal(sequence, 2).run(instruction_set, 2)[0])


@pytest.mark.skipif(not {"avx2", "avx512"} <= set(INSTRUCTION_SETS), reason="needs AVX2 and AVX-512 in one processor")
@pytest.mark.parametrize("shape", SHAPES, ids=Shape.name)
def test_avx2_and_avx512_agree(shape: Shape) -> None:
    for length, num_rows in [(150, 150), (300, 1), (130, 8)]:
        call = causal(Sequence.random(shape, length), num_rows)
        np.testing.assert_array_equal(call.run("avx2")[0], call.run("avx512")[0])


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("kv_begin", [1, 15, 16, 63, 64, 100])
def test_entries_before_kv_begin_are_invisible(kv_begin: int, instruction_set: str) -> None:
    for page_size in (16, 20):
        sequence = Sequence.random(Shape(page_size=page_size), kv_begin + 80)
        call = causal(sequence, 70, kv_begin)  # the entries before kv_begin stay NaN
        output = call.run(instruction_set)[0]
        assert_matches_numpy(sequence, output, kv_begin)
        single = causal(sequence, 1, kv_begin).run(instruction_set)[0]
        np.testing.assert_array_equal(single[0], output[-1])


# The last takes two mask words and has paths that cross a split.
@pytest.mark.parametrize(
    ("kv_length", "num_rows"), [(0, 9), (1, 9), (50, 9), (63, 9), (64, 9), (65, 9), (127, 12), (190, 3), (50, 70)]
)
@pytest.mark.parametrize("shape", SHAPES, ids=Shape.name)
def test_tree_rows_have_the_bits_of_the_chain_of_their_path(shape: Shape, kv_length: int, num_rows: int) -> None:
    sequence = Sequence.random(shape, kv_length + num_rows, seed=kv_length)
    paths = random_tree(num_rows, num_rows // 3, np.random.default_rng(kv_length))
    kv_begin = min(kv_length, 1)
    call = Call(shape)
    call.add(sequence.key, sequence.value, sequence.query[kv_length:], kv_begin, ancestor_mask(paths, 2))
    for instruction_set in INSTRUCTION_SETS:
        tree = call.run(instruction_set, num_threads=2)[0]
        for row, path in enumerate(paths):
            entries = [*range(kv_length), *(kv_length + node for node in path)]
            chain = Sequence(shape, sequence.key[entries], sequence.value[entries], sequence.query[entries])
            expected = causal(chain, 1, kv_begin).run(instruction_set)[0]
            np.testing.assert_array_equal(tree[row], expected[0], err_msg=f"row {row}, path {path}")


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("masked", [False, True])
def test_what_a_row_does_not_see_cannot_reach_it(masked: bool, bad: float, instruction_set: str) -> None:
    """Entry 70 of 80 is bad: causal rows before it, and with a mask all rows but those below it, stay as they were."""
    for page_size in (16, 20):
        sequence = Sequence.random(Shape(page_size=page_size), 80)
        paths = [[r] if r != 15 else [10, 15] for r in range(20)]  # rows 60 .. 79; row 15 is a child of row 10
        blind = [r for r in range(20) if (r not in (10, 15) if masked else r < 10)]

        def run(sequence: Sequence = sequence, paths: list[list[int]] = paths) -> np.ndarray:
            call = Call(sequence.shape)
            call.add(sequence.key, sequence.value, sequence.query[60:], 0, ancestor_mask(paths, 1) if masked else None)
            return call.run(instruction_set)[0]

        clean = run()
        sequence.key[70] = sequence.value[70] = bad
        dirty = run()
        np.testing.assert_array_equal(dirty[blind], clean[blind])
        seeing = [r for r in range(20) if r not in blind]
        assert not np.isfinite(dirty[seeing]).all(axis=(1, 2)).any()


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
def test_scores_that_overflow(instruction_set: str) -> None:
    shape = Shape(2, 1, 8, "float32", 16)
    sequence = Sequence.random(shape, 130)
    sequence.query[-1, :8] = -1e30  # head 0 only
    sequence.key[:64] = 1e30  # a whole split of -inf, which weighs nothing beside the finite ones
    sequence.key[64:] *= 1e-30
    output = causal(sequence, 1).run(instruction_set)[0][0]
    exact = attention_formula(sequence, 129, 64, F64)
    np.testing.assert_allclose(output[0], exact[0], rtol=1e-5, atol=1e-6)
    sequence.key[:] = 1e30  # every score of head 0 is -inf; those of head 1 are large, finite and equal
    output = causal(sequence, 1).run(instruction_set)[0][0]
    assert np.isnan(output[0]).all()
    np.testing.assert_allclose(output[1], sequence.value.mean(axis=0), rtol=1e-5, atol=1e-6)


def test_mixed_batch_of_trees() -> None:
    """Requests of different widths share one mask array; each gets the bits that it gets alone."""
    shape, rng = Shape(), np.random.default_rng(5)
    call, alone = Call(shape, seed=3), []
    for i, (kv_length, num_rows) in enumerate([(40, 5), (64, 1), (0, 3), (126, 8)]):
        sequence = Sequence.random(shape, kv_length + num_rows, seed=i)
        mask = ancestor_mask(random_tree(num_rows, 2, rng), 1)
        single = Call(shape)
        for target in (call, single):
            target.add(sequence.key, sequence.value, sequence.query[kv_length:], 0, mask)
        alone.append(single.run()[0])
    for num_threads in (1, 3):
        for got, expected in zip(call.run(num_threads=num_threads), alone, strict=True):
            np.testing.assert_array_equal(got, expected)
