"""Numpy arrays as safetensors tensors, and checkpoint directories made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from eagle31rt.safetensors_writer import RawTensor, bfloat16_tensor, save_safetensors

Array = npt.NDArray[Any]

_STORED_NAME = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def stored(values: Array, dtype: str) -> RawTensor:
    """A tensor as a safetensors file keeps it."""
    if values.dtype == np.int64:
        return RawTensor("I64", values.shape, values.tobytes())
    if values.dtype == np.bool_:
        return RawTensor("BOOL", values.shape, values.tobytes())
    if dtype == "bfloat16":
        return bfloat16_tensor(values.astype(np.float32))
    kind = np.float16 if dtype == "float16" else np.float32
    return RawTensor(_STORED_NAME[dtype], values.shape, values.astype(kind).tobytes())


def rounded(values: Array, dtype: str) -> Array:
    """float32 values after rounding to dtype."""
    if values.dtype in (np.dtype(np.int64), np.dtype(np.bool_)):
        return values
    if dtype == "bfloat16":
        bits = np.frombuffer(bfloat16_tensor(values.astype(np.float32)).data, dtype=np.uint16)
        return (bits.astype(np.uint32) << 16).view(np.float32).reshape(values.shape)
    return values.astype(np.float16 if dtype == "float16" else np.float32).astype(np.float32)


def write_directory(
    directory: Path, config: Mapping[str, Any], tensors: Mapping[str, RawTensor], shards: int = 1
) -> None:
    """config.json and model.safetensors, or `shards` files and an index."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    if shards == 1:
        save_safetensors(directory / "model.safetensors", tensors)
        return
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: tensor for i, (name, tensor) in enumerate(tensors.items()) if i % shards == shard}
        save_safetensors(directory / file_name, part)
        weight_map.update(dict.fromkeys(part, file_name))
    index = {"metadata": {"total_size": sum(len(t.data) for t in tensors.values())}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
