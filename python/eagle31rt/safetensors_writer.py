"""Writes safetensors files without torch, so that bfloat16 needs no library: tensors are raw little-endian bytes.

Format: https://huggingface.co/docs/safetensors (8-byte header length, JSON header, data). Reading is the core's job.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt


class RawTensor(NamedTuple):
    """One tensor: dtype as safetensors spells it ("BF16", "F32", "I64", ...), shape, row-major bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def float32_to_bfloat16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds finite float32 to bfloat16 bits, to nearest, ties to even."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def bfloat16_tensor(values: npt.NDArray[np.float32]) -> RawTensor:
    return RawTensor("BF16", tuple(values.shape), float32_to_bfloat16(values).tobytes())


def save_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, RawTensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes `tensors` to `path` through a temporary file, so that a broken write leaves nothing behind."""
    header: dict[str, object] = {"__metadata__": {"format": "pt", **(metadata or {})}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(tensor.data)],
        }
        offset += len(tensor.data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target = Path(path)
    temporary = target.with_name(target.name + ".partial")
    try:
        with open(temporary, "wb") as file:
            file.write(len(text).to_bytes(8, "little"))
            file.write(text)
            for tensor in tensors.values():
                file.write(tensor.data)
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
