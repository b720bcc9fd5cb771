"""Paged attention: against float64 numpy, and bit-equal whatever the chunks, the pages, the tree and the threads."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from tolerances import assert_as_good_as_naive

from eagle31rt import _testing

INSTRUCTION_SETS = _testing.available_instruction_sets()
SPLIT = 64
HUGE_PAGE = 2**31 - 1
F32, F64 = np.float32, np.float64


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bfloat16":
        bits = x.view(np.uint32).astype(np.uint64)
        return (((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) << 16).astype(np.uint32).view(F32)
    return x.astype(np.float16).astype(F32) if dtype == "float16" else x


@dataclass
class Shape:
    num_heads: int = 3
    num_kv_heads: int = 1
    head_dim: int = 64
    dtype: str = "bfloat16"
    page_size: int = 16


@dataclass
class Sequence:
    """Keys and values of one request [length, num_kv_heads * head_dim] and a query for every position."""

    shape: Shape
    key: np.ndarray
    value: np.ndarray
    query: np.ndarray

    @staticmethod
    def random(shape: Shape, length: int, seed: int = 0) -> "Sequence":
        rng = np.random.default_rng(seed)
        kv_width, width = shape.num_kv_heads * shape.head_dim, shape.num_heads * shape.head_dim
        draws = [rng.standard_normal((length, w)).astype(F32) for w in (kv_width, kv_width, width)]
        return Sequence(shape, draws[0], draws[1], draws[2] * F32(1.5))


@dataclass
class Call:
    """Requests in a poisoned cache, with pages in a random order and a page table that ends in huge entries."""

    shape: Shape
    seed: int = 0
    requests: list[tuple[np.ndarray, np.ndarray, np.ndarray, int, int]] = field(default_factory=list)
    masks: list[np.ndarray] = field(default_factory=list)

    def add(
        self, key: np.ndarray, value: np.ndarray, query: np.ndarray, kv_begin: int = 0, mask: np.ndarray | None = None
    ) -> None:
        """The last len(query) entries of key and value are this step's rows. mask: [rows, words] of uint64."""
        self.requests.append((key, value, query, kv_begin, len(key) - len(query)))
        if mask is not None:
            self.masks.append(mask)

    def run(self, instruction_set: str = "", num_threads: int = 1) -> list[np.ndarray]:
        """Output rows of each request, [rows, num_heads, head_dim]."""
        s = self.shape
        pages = [-(-len(key) // s.page_size) for key, *_ in self.requests]
        order = np.random.default_rng(self.seed).permutation(sum(pages) + 3)  # three pages belong to nobody
        table = np.full((len(self.requests), max(pages) + 2), HUGE_PAGE, np.int32)
        runner = _testing.Runner("cpu", instruction_set, num_threads)
        cache = _testing.KvCache(s.dtype, len(order), s.page_size, s.num_kv_heads, s.head_dim)
        dealt = 0
        for i, (key, value, _, kv_begin, _) in enumerate(self.requests):
            table[i, : pages[i]] = order[dealt : dealt + pages[i]]
            dealt += pages[i]
            entries = np.arange(len(key))
            slots = table[i, entries // s.page_size].astype(np.int64) * s.page_size + entries % s.page_size
            slots[:kv_begin] = -1
            cache.append(key, value, slots, runner)
        rows = [len(query) for _, _, query, _, _ in self.requests]
        row_begin = np.concatenate([[0], np.cumsum(rows)]).astype(np.int32)
        output = cache.attend(
            np.concatenate([query for _, _, query, _, _ in self.requests]),
            table,
            row_begin,
            np.array([r[3] for r in self.requests], np.int32),
            np.array([r[4] for r in self.requests], np.int32),
            s.head_dim**-0.5,
            np.concatenate(self.masks) if self.masks else None,
            runner,
        )
        return np.split(output.reshape(len(output), s.num_heads, s.head_dim), row_begin[1:-1])


def causal(sequence: Sequence, num_rows: int, kv_begin: int = 0, end: int | None = None) -> Call:
    """The last num_rows rows of the sequence, or of its first `end` entries."""
    call = Call(sequence.shape, seed=num_rows)
    key, value, query = (x[:end] for x in (sequence.key, sequence.value, sequence.query))
    call.add(key, value, query[len(query) - num_rows :], kv_begin)
    return call


def sum_in_order(x: np.ndarray, axis: int) -> np.ndarray:
    """One by one, as a plain loop adds; numpy's own sums are pairwise and better than naive."""
    return np.take(np.cumsum(x, axis=axis), -1, axis=axis)


def attention_formula(sequence: Sequence, row: int, kv_begin: int, precision: type) -> np.ndarray:
    """Row at position `row`, in numpy at one precision throughout."""
    s = sequence.shape
    visible = slice(kv_begin, row + 1)
    key, value = (rounded(x[visible], s.dtype).astype(precision) for x in (sequence.key, sequence.value))
    key, value = (x.reshape(-1, s.num_kv_heads, 1, s.head_dim) for x in (key, value))
    query = sequence.query[row].astype(precision).reshape(s.num_kv_heads, -1, s.head_dim)
    scores = sum_in_order(query * key, 3) * precision(s.head_dim**-0.5)  # [positions, num_kv_heads, group]
    weights = np.exp(scores - scores.max(axis=0))
    output = sum_in_order(weights[..., None] * value, 0) / sum_in_order(weights, 0)[..., None]
    return output.reshape(s.num_heads, s.head_dim)


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


SHAPES = [
    Shape(),
    Shape(page_size=1),
    Shape(4, 1, 128, "float32", 20),
    Shape(2, 2, 24, "float16", 16),
    Shape(6, 2, 80, page_size=32),
]


def shape_name(shape: Shape) -> str:
    return f"{shape.num_heads}/{shape.num_kv_heads}x{shape.head_dim}-{shape.dtype}-page{shape.page_size}"


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
def test_chunks_of_a_prompt_give_the_bits_of_the_whole(shape: Shape, instruction_set: str) -> None:
    sequence = Sequence.random(shape, 210)
    whole = causal(sequence, 210).run(instruction_set)[0]
    for chunk in (1, 2, 3, 7, 9, 33, 64, 100):
        ends = [*range(chunk, 210, chunk), 210]
        for begin, end in zip([0, *ends], ends, strict=False):
            if chunk > 3 or end % 64 < 4 or end == 210:  # of the many short chunks those about the boundaries
                part = causal(sequence, end - begin, end=end).run(instruction_set, 1 + chunk % 3)[0]
                np.testing.assert_array_equal(part, whole[begin:end], err_msg=f"rows {begin}..{end}")


@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
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
    ids=lambda value: shape_name(value) if isinstance(value, Shape) else str(value),
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
@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
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


def random_tree(num_rows: int, chain_length: int, rng: np.random.Generator) -> list[list[int]]:
    """The path of every node, itself included: a chain first, then nodes with a random parent before them."""
    paths: list[list[int]] = []
    for node in range(num_rows):
        parent = node - 1 if node < chain_length else int(rng.integers(-1, node))
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    return paths


def ancestor_mask(paths: list[list[int]], num_words: int) -> np.ndarray:
    mask = np.zeros((len(paths), num_words), np.uint64)
    for row, path in enumerate(paths):
        for node in path:
            mask[row, node // 64] |= np.uint64(1) << np.uint64(node % 64)
    return mask


# The last takes two mask words and has paths that cross a split.
@pytest.mark.parametrize(
    ("kv_length", "num_rows"), [(0, 9), (1, 9), (50, 9), (63, 9), (64, 9), (65, 9), (127, 12), (190, 3), (50, 70)]
)
@pytest.mark.parametrize("shape", SHAPES, ids=shape_name)
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
