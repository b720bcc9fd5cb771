"""What the tests of loading weights share: a tiny target, its expected packed layers, and edits of written files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from eagle31rt import _testing
from eagle31rt.safetensors_writer import RawTensor
from support.checkpoints import TargetSpec, TinyCheckpoint
from support.tensors import Array, stored, write_directory

# Sizes that are no multiple of the 32 outputs of a panel.
TINY = TargetSpec(num_layers=2, hidden_size=24, intermediate_size=40, num_heads=3, num_kv_heads=1, vocab_size=37)


def expected_layer(weights: Mapping[str, Array], index: int) -> dict[str, Array]:
    def stacked(suffix: str, *names: str) -> Array:
        parts = [weights.get(f"layers.{index}.{name}.{suffix}") for name in names]
        return np.concatenate([part for part in parts if part is not None]) if parts[0] is not None else np.empty(0)

    qkv, gate_up = [f"self_attn.{n}_proj" for n in "qkv"], ["mlp.gate_proj", "mlp.up_proj"]
    groups = {"qkv": qkv, "output": ["self_attn.o_proj"], "gate_up": gate_up, "down": ["mlp.down_proj"]}
    result = {name: stacked("weight", *parts) for name, parts in groups.items()}
    result |= {f"{name}_bias": stacked("bias", *parts) for name, parts in groups.items()}
    result["input_norm"] = weights[f"layers.{index}.input_layernorm.weight"]
    result["post_attention_norm"] = weights[f"layers.{index}.post_attention_layernorm.weight"]
    result["hidden_norm"] = weights.get(f"layers.{index}.hidden_norm.weight", np.empty(0))
    return result


def assert_layer(loaded: Mapping[str, Array], weights: Mapping[str, Array], index: int) -> None:
    expected = expected_layer(weights, index)
    assert set(loaded) == set(expected)
    for name, values in expected.items():
        np.testing.assert_array_equal(loaded[name], values, err_msg=name)


def rewrite(tiny: TinyCheckpoint, tensors: Mapping[str, RawTensor | Array | None], config: Any = None) -> None:
    """Writes a checkpoint again with tensors (names as in the file) replaced, added or removed (None)."""
    files: dict[str, RawTensor] = {
        name: RawTensor(dtype, shape, data)
        for name, (dtype, shape, data) in _testing.read_checkpoint(tiny.path).items()
    }
    for name, tensor in tensors.items():
        if tensor is None:
            del files[name]
        else:
            files[name] = tensor if isinstance(tensor, RawTensor) else stored(tensor, "float32")
    write_directory(tiny.directory, {**tiny.config, **(config or {})}, files)


def matrix(value: float = 0.5, rows: int = 24, columns: int = 24) -> Array:
    values = np.ones((rows, columns), dtype=np.float32)
    values[rows // 2, columns // 2] = value
    return values
