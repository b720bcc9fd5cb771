"""Batches of attention for the tests of its operators, and the formula in numpy."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eagle31rt import _testing

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
    """With a latent_dim: latent attention, whose one KV head has values that are the first dims of its keys."""

    num_heads: int = 3
    num_kv_heads: int = 1
    head_dim: int = 64
    dtype: str = "bfloat16"
    page_size: int = 16
    latent_dim: int = 0

    @property
    def value_dim(self) -> int:
        return self.latent_dim or self.head_dim

    def name(self) -> str:
        kind = f"mla{self.latent_dim}-" if self.latent_dim else ""
        return f"{kind}{self.num_heads}/{self.num_kv_heads}x{self.head_dim}-{self.dtype}-page{self.page_size}"


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
        value = draws[0][:, : shape.latent_dim] if shape.latent_dim else draws[1]
        return Sequence(shape, draws[0], value, draws[2] * F32(1.5))

    def part(self, entries: list[int] | slice) -> "Sequence":
        return Sequence(self.shape, self.key[entries], self.value[entries], self.query[entries])


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

    def run(self, instruction_set: str = "", num_threads: int = 1, device: str = "cpu") -> list[np.ndarray]:
        """Output rows of each request, [rows, num_heads, value_dim]."""
        s = self.shape
        pages = [-(-len(key) // s.page_size) for key, *_ in self.requests]
        order = np.random.default_rng(self.seed).permutation(sum(pages) + 3)  # three pages belong to nobody
        table = np.full((len(self.requests), max(pages) + 2), HUGE_PAGE, np.int32)
        runner = _testing.Runner(device, instruction_set, num_threads)
        cache: Any = None
        if s.latent_dim:
            rope_dim = s.head_dim - s.latent_dim
            cache = _testing.LatentCache(s.dtype, len(order), s.page_size, s.latent_dim, rope_dim, device)
        else:
            cache = _testing.KvCache(s.dtype, len(order), s.page_size, s.num_kv_heads, s.head_dim, device)
        dealt = 0
        for i, (key, value, _, kv_begin, _) in enumerate(self.requests):
            table[i, : pages[i]] = order[dealt : dealt + pages[i]]
            dealt += pages[i]
            entries = np.arange(len(key))
            slots = table[i, entries // s.page_size].astype(np.int64) * s.page_size + entries % s.page_size
            slots[:kv_begin] = -1
            cache.append(*((key,) if s.latent_dim else (key, value)), slots, runner)
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
        return np.split(output.reshape(len(output), s.num_heads, s.value_dim), row_begin[1:-1])


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
    key, value = (x.reshape(len(x), s.num_kv_heads, 1, -1) for x in (key, value))
    query = sequence.query[row].astype(precision).reshape(s.num_kv_heads, -1, s.head_dim)
    scores = sum_in_order(query * key, 3) * precision(s.head_dim**-0.5)  # [positions, num_kv_heads, group]
    weights = np.exp(scores - scores.max(axis=0))
    output = sum_in_order(weights[..., None] * value, 0) / sum_in_order(weights, 0)[..., None]
    return output.reshape(s.num_heads, s.value_dim)


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
