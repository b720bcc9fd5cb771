"""Weights of a target: every value lands where the operators look for it; what does not fit is refused by name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import TargetSpec, write_target
from support.loading import TINY, assert_layer, matrix, rewrite
from support.tensors import Array, rounded

from eagle31rt import _testing
from eagle31rt.errors import CheckpointError, UnsupportedError
from eagle31rt.safetensors_writer import RawTensor


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("prefix", ["model.", ""])
def test_target(tmp_path: Path, dtype: str, shards: int, prefix: str) -> None:
    spec = TargetSpec(**{**vars(TINY), "dtype": dtype, "num_shards": shards, "prefix": prefix, "attention_bias": True,
                         "mlp_bias": True})  # fmt: skip
    target = write_target(tmp_path, spec, seed=3)
    loaded = _testing.load_decoder_weights(target.path)
    assert loaded["dtype"] == dtype and not loaded["tied"]
    np.testing.assert_array_equal(loaded["embedding"], target.weights["embed_tokens.weight"])
    np.testing.assert_array_equal(loaded["head"], target.weights["lm_head.weight"])
    np.testing.assert_array_equal(loaded["final_norm"], target.weights["norm.weight"])
    assert loaded["num_layers"] == 2
    for index in range(2):
        assert_layer(loaded["layers"][index], target.weights, index)


@pytest.mark.parametrize("stored_as", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_conversion_rounds_to_nearest(tmp_path: Path, stored_as: str, dtype: str) -> None:
    target = write_target(tmp_path, TargetSpec(**{**vars(TINY), "dtype": stored_as}))
    loaded = _testing.load_decoder_weights(target.path, dtype=dtype)
    assert loaded["dtype"] == dtype
    np.testing.assert_array_equal(loaded["embedding"], rounded(target.weights["embed_tokens.weight"], dtype))
    # vectors stay as the file has them
    np.testing.assert_array_equal(loaded["final_norm"], target.weights["norm.weight"])


def test_qwen2_loads_biases_of_query_key_and_value_only(tmp_path: Path) -> None:
    target = write_target(tmp_path, TargetSpec(**{**vars(TINY), "model_type": "qwen2"}))
    layer = _testing.load_decoder_weights(target.path)["layers"][0]
    assert_layer(layer, target.weights, 0)
    assert layer["qkv_bias"].size == 40 and layer["output_bias"].size == 0


def test_num_bytes_counts_whole_panels(tmp_path: Path) -> None:
    loaded = _testing.load_decoder_weights(write_target(tmp_path, TINY).path)
    panels = {"embedding": (64, 24), "head": (64, 24)}
    layer = {"qkv": (64, 24), "output": (32, 24), "gate_up": (96, 24), "down": (32, 40)}
    elements = sum(rows * columns for rows, columns in panels.values()) + 24
    elements += 2 * (sum(rows * columns for rows, columns in layer.values()) + 2 * 24)
    assert loaded["num_bytes"] == 4 * elements


# ---------------------------------------------------------------- tied heads and old buffers


def test_tied_head(tmp_path: Path) -> None:
    target = write_target(tmp_path, TargetSpec(**{**vars(TINY), "tie_word_embeddings": True}))
    assert _testing.load_decoder_weights(target.path)["tied"]
    embedding = target.weights["embed_tokens.weight"]
    rewrite(target, {"lm_head.weight": embedding})
    loaded = _testing.load_decoder_weights(target.path)
    assert loaded["tied"] and loaded["head"] is None
    different = embedding.copy()
    different[5, 5] += 1
    rewrite(target, {"lm_head.weight": different})
    with pytest.raises(CheckpointError, match=r'"lm_head.weight" differs from "model.embed_tokens.weight"'):
        _testing.load_decoder_weights(target.path)


def test_rope_buffers_of_old_checkpoints_are_ignored(tmp_path: Path) -> None:
    target = write_target(tmp_path, TINY)
    rewrite(target, {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": np.ones(4) for i in range(2)})
    assert _testing.load_decoder_weights(target.path)["num_layers"] == 2


# ---------------------------------------------------------------- what is refused

Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


REFUSED: dict[str, tuple[dict[str, RawTensor | Array | None], str]] = {
    "missing": ({Q_PROJ: None}, r'lacks the tensor\(s\) "layers.1.self_attn.q_proj.weight"'),
    "missing head": ({"lm_head.weight": None}, 'lacks .* "lm_head.weight"'),
    "missing norm": ({"model.norm.weight": None}, '"norm.weight"'),
    "unused bias": (
        {"model.layers.0.mlp.up_proj.bias": np.ones(40)},
        '"model.layers.0.mlp.up_proj.bias"; the model has',
    ),
    "unused layer": ({"model.layers.2.input_layernorm.weight": np.ones(24)}, '"model.layers.2.input_layernorm.weight"'),
    "unused scale": ({Q_PROJ + "_scale": np.ones(1)}, "q_proj.weight_scale"),
    "rows": ({Q_PROJ: matrix(rows=25)}, r"has shape \[25, 24\], but config.json asks for \[24, 24\]"),
    "columns": ({Q_PROJ: matrix(columns=23)}, r"has shape \[24, 23\], but config.json asks for \[24, 24\]"),
    "flat": ({Q_PROJ: np.ones(576)}, r"has shape \[576\], but config.json asks for \[24, 24\]"),
    "norm shape": ({"model.norm.weight": np.ones(23)}, r"has shape \[23\], but config.json asks for \[24\]"),
    "scalar norm": ({"model.norm.weight": np.float32(1).reshape(())}, r"has shape \[\]"),
    "NaN": ({Q_PROJ: matrix(np.nan)}, f'tensor "{Q_PROJ}" .F32. has 1 values that are NaN or infinite'),
    "infinity": ({Q_PROJ: matrix(-np.inf)}, f'tensor "{Q_PROJ}" .F32. has 1 values that are NaN or infinite'),
    "NaN in a norm": ({"model.norm.weight": np.full(24, np.nan)}, '"model.norm.weight" .F32. has 24 values'),
    "two spellings": ({"norm.weight": np.ones(24)}, '"model.norm.weight" and "norm.weight" are the same weight'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_target(case: str, tmp_path: Path) -> None:
    tensors, message = REFUSED[case]
    target = write_target(tmp_path, TINY)
    rewrite(target, tensors)
    with pytest.raises(CheckpointError, match=message):
        _testing.load_decoder_weights(target.path)


@pytest.mark.parametrize(("dtype", "size"), [("F8_E4M3", 1), ("I8", 1), ("F64", 8), ("I32", 4), ("BOOL", 1)])
def test_other_dtypes_are_refused(dtype: str, size: int, tmp_path: Path) -> None:
    target = write_target(tmp_path, TINY)
    rewrite(target, {Q_PROJ: RawTensor(dtype, (24, 24), bytes(576 * size))})
    with pytest.raises(UnsupportedError, match=f'"{Q_PROJ}" has dtype {dtype}; weights must be F32, BF16 or F16'):
        _testing.load_decoder_weights(target.path)


def test_overflow_in_the_wanted_dtype_is_refused(tmp_path: Path) -> None:
    target = write_target(tmp_path, TINY)
    rewrite(target, {Q_PROJ: matrix(1e5)})
    assert _testing.load_decoder_weights(target.path, dtype="bfloat16")["dtype"] == "bfloat16"
    with pytest.raises(CheckpointError, match="NaN or infinite as float16; load it in its own dtype"):
        _testing.load_decoder_weights(target.path, dtype="float16")


def test_many_missing_tensors_are_counted(tmp_path: Path) -> None:
    target = write_target(tmp_path, TINY)
    rewrite(target, {}, {"num_hidden_layers": 4})
    with pytest.raises(CheckpointError, match=r"and 14 more"):
        _testing.load_decoder_weights(target.path)


MEASURE = """
import re, sys
from eagle31rt import _testing
def peak(): return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read()).group(1))
before = peak()
loaded = _testing.load_decoder_weights(sys.argv[1], values=False)
print(peak() - before, loaded["num_bytes"])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to read the peak of resident memory")
def test_loading_holds_one_copy(tmp_path: Path) -> None:
    """Pages of the file are dropped tensor by tensor: the peak is the weights and one tensor, not twice the weights."""
    spec = TargetSpec(num_layers=6, hidden_size=512, intermediate_size=2048, num_heads=8, num_kv_heads=8)
    target = write_target(tmp_path, spec)
    run = subprocess.run([sys.executable, "-c", MEASURE, target.path], capture_output=True, text=True, check=True)
    peak, num_bytes = map(int, run.stdout.split())
    largest = 4 * 512 * 2048
    assert num_bytes > 16 * largest
    assert peak < num_bytes + largest + (8 << 20)
