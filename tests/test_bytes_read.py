"""What a step on the CPU reads: each latent entry once for all rows and heads of a request, the weights of each chosen
expert once for all rows that chose it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.attention import SPLIT, ancestor_mask, random_tree
from support.engine import random_prompt
from support.families import FAMILIES, write_family

from eagle31rt import _testing


def entries_read(*requests: tuple[int, int, int], mask: np.ndarray | None = None) -> int:
    """Of requests (first visible entry, entries before this step's rows, rows)."""
    kv_begin, kv_length, rows = (list(column) for column in zip(*requests, strict=True))
    return _testing.latent_entries_read([0, *np.cumsum(rows).tolist()], kv_begin, kv_length, mask)


@pytest.mark.parametrize("rows", [1, 2, 8, 64, 65, 300])
@pytest.mark.parametrize("length", [0, 1, SPLIT - 1, SPLIT, SPLIT + 1, 1000])
def test_rows_of_a_request_read_each_entry_once(length: int, rows: int) -> None:
    assert entries_read((0, length, rows)) == length + rows


def test_requests_read_their_own_visible_entries() -> None:
    assert entries_read((0, 10, 1), (1, 64, 4), (70, 200, 0), (70, 200, 3)) == 11 + 67 + 133


def test_rows_of_a_tree_share_the_whole_splits_before_them() -> None:
    """Behind these a row reads what it sees itself: the rest of the prefix and its ancestors."""
    paths = random_tree(9, 2, np.random.default_rng(1))
    mask, own = ancestor_mask(paths, 1), sum(map(len, paths))
    assert entries_read((0, 2 * SPLIT + 5, 9), mask=mask) == 2 * SPLIT + 9 * 5 + own
    assert entries_read((1, 5, 9), mask=mask) == 9 * 4 + own
    assert entries_read((SPLIT + 3, SPLIT + 5, 9), mask=mask) == 9 * 2 + own


@pytest.mark.parametrize(("dtype", "element_size"), [("float32", 4), ("bfloat16", 2)])
def test_a_step_reads_the_latent_cache_once_per_layer(tmp_path: Path, dtype: str, element_size: int) -> None:
    checkpoint = write_family(tmp_path, FAMILIES["deepseek_v3"])
    config = checkpoint.config
    chunks = [70, 1, 4, 8]  # a prompt, a decode step, verification of 3 and of 7 drafts
    steps = _testing.bytes_of_chunks(checkpoint.path, random_prompt(sum(chunks)), chunks, dtype)
    entry = (config["kv_lora_rank"] + config["qk_rope_head_dim"]) * element_size
    assert [step["latent"] for step in steps] == [
        config["num_hidden_layers"] * int(end) * entry for end in np.cumsum(chunks)
    ]


def packed_bytes(out_features: int, in_features: int) -> int:
    return -(-out_features // 32) * 32 * in_features * 4


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_step_reads_the_weights_of_chosen_experts_once(tmp_path: Path, num_threads: int) -> None:
    family = FAMILIES["gpt_oss"]
    checkpoint = write_family(tmp_path, family, shape=1)  # every row chooses all of the experts
    config = checkpoint.config
    chunks = [1, 2, 8, 12]
    steps = _testing.bytes_of_chunks(checkpoint.path, random_prompt(sum(chunks)), chunks, num_threads=num_threads)
    hidden, wide = config["hidden_size"], config["intermediate_size"]
    expert = packed_bytes(2 * wide, hidden) + packed_bytes(hidden, wide)
    once = config["num_hidden_layers"] * config["num_local_experts"] * expert
    assert [step["experts"] for step in steps] == [once] * len(chunks)


def test_experts_that_no_row_chose_are_not_read(tmp_path: Path) -> None:
    checkpoint = write_family(tmp_path, FAMILIES["qwen3_moe"])
    config = checkpoint.config
    one, many = _testing.bytes_of_chunks(checkpoint.path, random_prompt(41), [1, 40])
    hidden, wide = config["hidden_size"], config["moe_intermediate_size"]
    expert = config["num_hidden_layers"] * (packed_bytes(2 * wide, hidden) + packed_bytes(hidden, wide))
    assert one["experts"] == config["num_experts_per_tok"] * expert
    assert one["experts"] < many["experts"] <= config["num_experts"] * expert
