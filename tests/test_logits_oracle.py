"""The target's forward pass against the float64 oracle, and its bits against themselves under chunking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import TargetSpec, write_target
from support.engine import run_decoder
from support.logits_error import assert_as_good_as_float32
from support.oracle import Arithmetic, Target

_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

SPECS = {
    "llama": TargetSpec(),
    "smollm-tied": TargetSpec(model_type="smollm", tie_word_embeddings=True),
    "mistral": TargetSpec(model_type="mistral", num_kv_heads=4),
    "qwen2": TargetSpec(model_type="qwen2"),
    "biases": TargetSpec(attention_bias=True, mlp_bias=True),
    "head-dim-and-odd-sizes": TargetSpec(head_dim=40, num_heads=3, num_kv_heads=1, intermediate_size=37, vocab_size=71),
    "shards-no-prefix": TargetSpec(num_shards=3, prefix=""),
    "epsilon-theta": TargetSpec(rms_norm_eps=0.05, rope_theta=300.0),
    "linear": TargetSpec(rope_scaling={"type": "linear", "factor": 3.0}),
    "llama3": TargetSpec(rope_scaling=_LLAMA3),
    "yarn": TargetSpec(rope_scaling=_YARN),
    "yarn-mscale": TargetSpec(rope_scaling={**_YARN, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}),
    "yarn-betas": TargetSpec(rope_scaling={**_YARN, "attention_factor": 1.3, "beta_fast": 8.0, "beta_slow": 2.0}),
    "rope-parameters": TargetSpec(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 700.0}),
    "bfloat16": TargetSpec(dtype="bfloat16"),
    "float16": TargetSpec(dtype="float16"),
}
CAPTURE = (0, 1, 3, 4)  # embeddings, two in between and the input of the final norm
NUM_TOKENS = 72  # more than one attention split of 64


def _tokens(vocab_size: int, count: int = NUM_TOKENS) -> list[int]:
    tokens = np.random.default_rng(11).integers(0, vocab_size, count)
    tokens[:2] = 0, vocab_size - 1
    return tokens.tolist()


def _oracle_run(directory: Path, tokens: list[int], arithmetic: Arithmetic) -> np.ndarray:
    """Logits and captured states side by side, [n, V + A * Ht]."""
    target = Target(directory, arithmetic)
    logits, residuals = target.forward(tokens, target.new_caches())
    return np.concatenate([logits, *(residuals[k] for k in CAPTURE)], axis=-1)


@pytest.mark.parametrize("name", SPECS)
def test_logits_and_captured_states(tmp_path: Path, name: str) -> None:
    write_target(tmp_path, SPECS[name], seed=7)
    tokens = _tokens(SPECS[name].vocab_size)
    logits, captured = run_decoder(tmp_path, tokens, capture_layers=CAPTURE)

    def part(columns: slice) -> None:
        actual = np.concatenate([logits, captured], axis=-1)[:, columns]
        assert_as_good_as_float32(actual, lambda a: _oracle_run(tmp_path, tokens, a)[:, columns], Arithmetic(), name)

    part(slice(logits.shape[1]))
    part(slice(logits.shape[1], None))


@pytest.mark.parametrize("weight_dtype", ["bfloat16", "float16"])
def test_float32_files_can_be_kept_narrow(tmp_path: Path, weight_dtype: str) -> None:
    """dtype rounds the matrices; norms and biases keep float32."""
    spec = TargetSpec(model_type="qwen2")
    write_target(tmp_path, spec, seed=8)
    tokens = _tokens(spec.vocab_size)
    logits, _ = run_decoder(tmp_path, tokens, dtype=weight_dtype)

    def run(arithmetic: Arithmetic) -> np.ndarray:
        target = Target(tmp_path, arithmetic)
        return target.forward(tokens, target.new_caches())[0]

    tolerance = assert_as_good_as_float32(logits, run, Arithmetic(weight_dtype=weight_dtype), weight_dtype)
    assert np.abs(logits - run(Arithmetic())).max() > 100 * tolerance, "the weights were not rounded"


@pytest.mark.parametrize("kv_dtype", ["bfloat16", "float16"])
def test_attention_reads_the_rounded_cache(tmp_path: Path, kv_dtype: str) -> None:
    """Also for the rows of the same pass: a chunk must see the bits that later rows will see."""
    spec = TargetSpec()
    write_target(tmp_path, spec, seed=9)
    tokens = _tokens(spec.vocab_size)
    logits, _ = run_decoder(tmp_path, tokens, kv_cache_dtype=kv_dtype)

    def run(arithmetic: Arithmetic) -> np.ndarray:
        target = Target(tmp_path, arithmetic)
        return target.forward(tokens, target.new_caches())[0]

    tolerance = assert_as_good_as_float32(logits, run, Arithmetic(kv_dtype=kv_dtype), kv_dtype)
    assert np.abs(logits - run(Arithmetic())).max() > 4 * tolerance, "the cache was not rounded"


@pytest.mark.parametrize("name", ["llama", "qwen2", "llama3", "bfloat16", "float16", "head-dim-and-odd-sizes"])
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_chunks_pages_or_threads(tmp_path: Path, name: str, kv_dtype: str) -> None:
    write_target(tmp_path, SPECS[name], seed=10)
    tokens = _tokens(SPECS[name].vocab_size, 100)
    whole = run_decoder(tmp_path, tokens, kv_cache_dtype=kv_dtype, capture_layers=CAPTURE)
    ways = [
        {"chunks": [1] * 100},
        {"chunks": [63, 1, 1, 35], "num_threads": 2},
        {"chunks": [7, 64, 2, 27], "page_size": 32},
        {"page_size": 64, "num_threads": 3},
    ]
    for way in ways:
        logits, captured = run_decoder(tmp_path, tokens, kv_cache_dtype=kv_dtype, capture_layers=CAPTURE, **way)
        assert logits.tobytes() == whole[0].tobytes(), way
        assert captured.tobytes() == whole[1].tobytes(), way


def test_a_prefix_does_not_know_what_follows(tmp_path: Path) -> None:
    spec = TargetSpec()
    write_target(tmp_path, spec, seed=12)
    tokens = _tokens(spec.vocab_size)
    whole, _ = run_decoder(tmp_path, tokens)
    for length in (1, 15, 16, 17, 64, 65):
        part, _ = run_decoder(tmp_path, tokens[:length])
        assert part.tobytes() == whole[:length].tobytes(), length
