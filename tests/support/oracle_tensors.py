"""Reads safetensors checkpoints with numpy alone: the oracle shares no code with the runtime that it judges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def bfloat16_to_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def round_to(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` rounded to nearest even in `dtype` ("float32" rounds nothing), in the dtype of `values`."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        return values.astype(np.float16).astype(values.dtype)
    if dtype != "bfloat16":
        raise ValueError(f"no such dtype: {dtype}")
    mantissa, exponent = np.frexp(values)  # |mantissa| in [0.5, 1): bfloat16 keeps 8 bits of it
    return np.ldexp(np.rint(np.ldexp(mantissa, 8)), exponent - 8).astype(values.dtype)


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """Every tensor of one file: floating point as float32, the rest as stored."""
    raw = path.read_bytes()
    header_bytes = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + header_bytes])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        data, shape = raw[begin:end], entry["shape"]
        if entry["dtype"] == "BF16":
            tensors[name] = bfloat16_to_float32(np.frombuffer(data, np.uint16)).reshape(shape)
        elif entry["dtype"] in ("F16", "F32"):
            kind = np.float16 if entry["dtype"] == "F16" else np.float32
            tensors[name] = np.frombuffer(data, kind).astype(np.float32).reshape(shape)
        else:
            kind = {"I64": np.int64, "I32": np.int32, "BOOL": np.bool_, "U8": np.uint8}[entry["dtype"]]
            tensors[name] = np.frombuffer(data, kind).reshape(shape)
    return tensors


def read_checkpoint(directory: str | Path) -> tuple[dict, dict[str, np.ndarray]]:
    """(config.json, tensors) of a checkpoint in one file or in shards."""
    directory = Path(directory)
    config = json.loads((directory / "config.json").read_text())
    index = directory / "model.safetensors.index.json"
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    tensors: dict[str, np.ndarray] = {}
    for name in names:
        tensors |= read_safetensors(directory / name)
    return config, tensors
